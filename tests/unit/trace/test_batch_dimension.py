"""A step scaled from one recording, against the same step recorded at that batch size."""

import pytest

torch = pytest.importorskip("torch")

from msgspec.structs import replace  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from breakeven.capture import trace_step  # noqa: E402
from breakeven.trace import ScalingError, StepTrace, scaled_from_one  # noqa: E402

SIZE, LARGER = 6, 22


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(5, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, series):
        return self.head(self.recurrent(series)[0][:, -1])


class Sentences(nn.Module):
    """Batch and time are flattened into one dimension, and heads into that of the batch."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(17, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 20, batch_first=True)
        self.head = nn.Linear(8, 17)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens))).flatten(0, 1)


def mlp():
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3))


def images():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * 7 * 7, 3),
    )  # fmt: skip


NETWORKS = {
    "mlp": (mlp, lambda size: (torch.randn(size, 5), torch.randint(0, 3, (size,)))),
    "images": (images, lambda size: (torch.randn(size, 3, 14, 14), torch.randint(0, 3, (size,)))),
    "recurrent": (
        Recurrent, lambda size: (torch.randn(size, 7, 5), torch.randint(0, 3, (size,))),
    ),
    "sentences": (
        Sentences,
        lambda size: (torch.randint(0, 17, (size, 11)), torch.randint(0, 17, (size * 11,))),
    ),
}  # fmt: skip


def recorded(name: str, size: int, *, optimizer: str = "Adam", is_resident: bool = True):
    torch.manual_seed(0)
    make, batch = NETWORKS[name]
    model = make()
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    inputs, labels = batch(size)
    data, answers = batch(5 * size)

    def step():
        x, y = (inputs, labels)
        if not is_resident:
            # As a script does that draws its batches from data in memory.
            chosen = torch.randperm(len(data))[:size]
            x, y = (data[chosen], answers[: len(labels)])
        loss = F.cross_entropy(model(x), y)
        update.zero_grad()
        loss.backward()
        update.step()
        return loss.item()

    return replace(trace_step(step).trace, batch_size=size)


def shapes(trace: StepTrace):
    return [
        (op.name, [t.shape for t in op.inputs], [t.shape for t in op.outputs]) for op in trace.ops
    ]


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_shapes_are_those_of_the_step_at_that_size(name):
    scaled = scaled_from_one(recorded(name, SIZE)).at(LARGER)
    real = recorded(name, LARGER)
    assert shapes(scaled) == shapes(real)
    assert scaled.batch_size == LARGER
    assert [copy.num_bytes for copy in scaled.copies] == [copy.num_bytes for copy in real.copies]


def test_batches_drawn_from_data_in_memory():
    scaled = scaled_from_one(recorded("mlp", SIZE, is_resident=False)).at(LARGER)
    # The data set does not grow; what is drawn from it does.
    (draw,) = [op for op in scaled.ops if op.name == "aten.index.Tensor"]
    assert draw.inputs[0].shape == (5 * SIZE, 5)
    assert draw.outputs[0].shape == (LARGER, 5)


def test_memory_grows_by_what_is_not_kept():
    trace = recorded("mlp", SIZE)
    scaled = scaled_from_one(trace)
    growth = scaled.at(3 * SIZE).peak_memory_bytes - trace.peak_memory_bytes
    assert 0 < growth < 2 * trace.peak_memory_bytes
    assert growth == 2 * (scaled.at(2 * SIZE).peak_memory_bytes - trace.peak_memory_bytes)


@pytest.mark.parametrize(
    ("size", "message"),
    [(9, "as large as a dimension of the model"), (1, "one sample"), (5, "as large as a dim")],
)
def test_a_batch_that_cannot_be_told_from_the_model_is_refused(size, message):
    with pytest.raises(ScalingError, match=message):
        scaled_from_one(recorded("mlp", size))


def test_a_step_without_a_batch_size_is_refused():
    with pytest.raises(ScalingError, match="no single call of a model"):
        scaled_from_one(replace(recorded("mlp", SIZE), batch_size=None))


def test_dimensions_that_no_longer_agree_are_refused():
    trace = recorded("mlp", SIZE)

    def broken(event):
        """Return a product of which one side seems to have a dimension of the batch."""
        if not getattr(event, "name", "").startswith("aten.addmm."):
            return event
        bias, left, right = event.inputs
        right = replace(right, shape=(SIZE, right.shape[1]), storage=-5)
        left = replace(left, shape=(left.shape[0], 7))
        return replace(event, inputs=(bias, left, right))

    with pytest.raises(ScalingError, match=r"dimensions of aten\.addmm\.default grow"):
        scaled_from_one(replace(trace, events=tuple(map(broken, trace.events))))

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


class Tokens(nn.Module):
    """Positions are looked up as tokens are, and heads are as many as samples of a batch."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(17, 30)
        self.positions = nn.Embedding(40, 30)
        self.mix = nn.Linear(30, 90)
        self.head = nn.Linear(30, 17)

    def forward(self, tokens):
        batch, time = tokens.shape
        x = self.embedding(tokens) + self.positions(torch.arange(time, device=tokens.device))
        q, k, v = (
            part.view(batch, time, SIZE, 5).transpose(1, 2) for part in self.mix(x).split(30, dim=2)
        )
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x.transpose(1, 2).contiguous().view(batch, time, 30))


def accumulated(size: int, *, num_batches: int = 3):
    """Record a step of several batches that are cut from a corpus and copied to the GPU."""
    torch.manual_seed(0)
    model = Tokens()
    update = torch.optim.Adam(model.parameters())
    corpus = torch.randint(0, 17, (5000,))
    time = 2 * SIZE

    def step():
        update.zero_grad()
        for number in range(num_batches):
            first = number * size * time
            text = corpus[first : first + size * time + 1]
            x, y = text[:-1].view(size, time).cuda(), text[1:].view(size, time).cuda()
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, 17), y.view(-1)) / num_batches
            loss.backward()
        update.step()

    return trace_step(step).trace


def test_a_step_that_accumulates_gradients_is_scaled_by_each_of_its_batches():
    trace = accumulated(SIZE)
    assert trace.batch_size == 3 * SIZE

    scaled, real = scaled_from_one(trace).at(3 * LARGER), accumulated(LARGER)
    # The text that a batch is cut from has a token more than the batch.
    on_device = [
        [shape for op, shape in zip(step.ops, shapes(step), strict=True) if not op.is_on_host]
        for step in (scaled, real)
    ]
    assert on_device[0] == on_device[1]
    assert len(on_device[0]) > 3 * 40
    assert [copy.num_bytes for copy in scaled.copies] == [copy.num_bytes for copy in real.copies]


def test_a_batch_as_large_as_another_dimension_of_its_own_is_refused():
    with pytest.raises(ScalingError, match="as large as a dimension of the model or its data"):
        scaled_from_one(accumulated(2 * SIZE))


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

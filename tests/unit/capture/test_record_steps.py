from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from breakeven.capture import kept_training, record_steps, time_step, trace_step
from breakeven.errors import BreakevenError
from breakeven.measure import own_time_ns
from breakeven.trace import HostWork, Op, Phase, StepTrace
from factories.fake_steps import next_line

BATCH = 8


def train(
    model: nn.Module,
    make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    *,
    num_steps: int = 3,
    between: Callable[[nn.Module], object] = lambda _: None,
) -> StepTrace:
    """Return the recorded step of a loop over random batches of four features."""
    with record_steps() as recording:
        model = model.cuda()
        optimizer = make_optimizer(model.parameters())
        x = torch.randn(BATCH, 4, device="cuda")
        for _ in range(num_steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            between(model)
            optimizer.step()
    return recording.trace


class Tagger(nn.Module):
    """Reads sequences, by a recurrent layer or by attention."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.layer = layer

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.layer(self.embedding(tokens))
        return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda: nn.LSTM(6, 5), 3),
        (lambda: nn.TransformerEncoderLayer(6, 2, 8), 3),
        (lambda: nn.LSTM(6, 5, batch_first=True), 7),
        (lambda: nn.Linear(6, 5), 7),
    ],
)
def test_the_batch_of_a_model_with_time_in_front_is_behind_it(
    layer: Callable[[], nn.Module], expected: int
) -> None:
    with record_steps() as recording:
        model = Tagger(layer()).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        tokens = torch.randint(0, 11, (7, 3), device="cuda")
        for _ in range(3):
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
            optimizer.step()
    assert recording.trace.batch_size == expected


@pytest.mark.parametrize(("device", "num_syncs", "num_copies"), [("cpu", 0, 2), ("cuda", 2, 0)])
def test_what_a_mask_of_the_host_chooses_is_counted_there(
    device: str, num_syncs: int, num_copies: int
) -> None:
    with record_steps() as recording:
        model = nn.Linear(4, 3).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        x = torch.randn(BATCH, 4, device="cuda")
        mask = torch.tensor([True, False, True, True], device=device)
        for _ in range(3):
            optimizer.zero_grad()
            rows = model(x).t()
            filled = rows.new_zeros(4, BATCH)
            filled[mask] = rows
            filled.square().sum().backward()
            optimizer.step()
    # In the forward pass, and for the gradient; what is chosen is copied to the device.
    assert [sync.kind for sync in recording.trace.syncs] == ["mask"] * num_syncs
    assert len(recording.trace.copies) == num_copies


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def names(trace: StepTrace, phase: Phase | None = None) -> list[str]:
    return [op.name.split(".")[1] for op in trace.ops if phase is None or op.phase is phase]


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop]
)
def test_optimizer_takes_lists_and_reads_nothing_back(make) -> None:
    trace = train(mlp(), lambda parameters: make(parameters, lr=0.01))
    updates = [op for op in trace.ops if op.phase is Phase.OPTIMIZER]
    on_device = [op for op in updates if not op.is_on_host]
    assert on_device
    assert all("_foreach_" in op.name for op in on_device)
    # Lists of all four parameters, one or several a call.
    assert all(len(op.inputs) % 4 == 0 for op in on_device)
    assert trace.syncs == ()
    assert trace.faults == ()


def test_adam_is_a_few_operators_however_many_parameters_there_are() -> None:
    def update(depth: int) -> list[str]:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(4, 4), nn.ReLU())]
        trace = train(nn.Sequential(*layers, nn.Linear(4, 1)))
        updates = [op for op in trace.ops if op.phase is Phase.OPTIMIZER and not op.is_on_host]
        return [op.name.split(".")[1] for op in updates]

    # Both moments, the root of the second, its correction and epsilon, and the update itself.
    assert update(1) == [
        "_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_div_",
        "_foreach_add_", "_foreach_addcdiv_",
    ]  # fmt: skip
    assert update(10) == update(1)


def test_clipping_belongs_to_the_update_and_reads_nothing_back() -> None:
    trace = train(mlp(), between=lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0))
    clipping = names(trace, Phase.OPTIMIZER)
    assert "_foreach_norm" in clipping
    assert "_foreach_norm" not in names(trace, Phase.FORWARD)
    assert trace.syncs == ()


def test_phases_follow_each_other() -> None:
    trace = train(mlp())
    phases = [op.phase for op in trace.ops]
    order = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert sorted(phases, key=order.index) == phases
    # Linear, ReLU, Linear, square, mean.
    assert [n for n in names(trace, Phase.FORWARD) if n not in ("t", "view", "detach")][:5] == [
        "addmm", "relu", "addmm", "pow", "mean",
    ]  # fmt: skip
    assert {"mm", "threshold_backward"} <= set(names(trace, Phase.BACKWARD))
    assert not {"addmm", "relu"} & set(names(trace, Phase.BACKWARD))


class TwoLines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.inner = nn.Sequential(nn.Sigmoid(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.line = next_line()
        x = self.first(x)
        return self.inner(x).tanh()


def test_backward_carries_line_and_module_of_the_forward_operator() -> None:
    model = TwoLines()
    trace = train(model)
    backward = [op for op in trace.ops if op.phase is Phase.BACKWARD]
    found = {
        op.name.split(".")[1]: (op.location.line, op.module)
        for op in backward
        if op.location is not None and op.location.file == __file__
    }
    assert found["sigmoid_backward"] == (model.line + 1, "TwoLines.inner.0")
    assert found["tanh_backward"] == (model.line + 1, "TwoLines")
    products = [(op.location.line, op.module) for op in backward if op.name == "aten.mm.default"]
    # Of the last layer weight and input, of the first the weight alone.
    assert sorted(products) == [
        (model.line, "TwoLines.first"),
        (model.line + 1, "TwoLines.inner.1"),
        (model.line + 1, "TwoLines.inner.1"),
    ]


def test_forward_carries_line_and_module() -> None:
    model = TwoLines()
    trace = train(model)
    forward = [
        (op.name.split(".")[1], op.location.line, op.module)
        for op in trace.ops
        if op.phase is Phase.FORWARD and op.name.split(".")[1] in ("addmm", "sigmoid", "tanh")
    ]
    assert forward == [
        ("addmm", model.line, "TwoLines.first"),
        ("sigmoid", model.line + 1, "TwoLines.inner.0"),
        ("addmm", model.line + 1, "TwoLines.inner.1"),
        ("tanh", model.line + 1, "TwoLines"),
    ]


def test_peak_memory_of_a_tiny_step() -> None:
    # Blocks of 512 bytes: weight and bias, their gradients, two moments each of Adam and the
    # batch are there all along.
    trace = train(nn.Linear(4, 1), num_steps=4)
    persistent = 512 * (2 + 2 + 4 + 1)
    # Output, square, mean and gradients come and go, and lists of the update: a few blocks each.
    assert persistent <= trace.peak_memory_bytes <= persistent + 512 * 8


def test_peak_memory_grows_by_what_the_forward_pass_keeps() -> None:
    def peak(width: int) -> int:
        with record_steps() as recording:
            weight = torch.ones(1, device="cuda", requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.1)
            x = torch.ones(width, device="cuda")
            for _ in range(3):
                optimizer.zero_grad()
                # Three results, each kept for the backward pass of the next.
                (x * weight).exp().sin().sum().backward()
                optimizer.step()
        return recording.trace.peak_memory_bytes

    # x, x * weight, exp, and in between sin or its gradient: four to six tensors.
    growth = (peak(1 << 17) - peak(1 << 16)) / (4 << 16)
    assert 4 <= growth <= 6
    assert growth == int(growth)


def test_parameters_are_counted() -> None:
    assert train(mlp()).num_parameters == 4 * 16 + 16 + 16 + 1


def test_step_is_a_round_of_a_gan() -> None:
    with record_steps() as recording:
        networks = [nn.Linear(4, 4).cuda(), nn.Linear(4, 1).cuda()]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in networks]
        x = torch.randn(BATCH, 4, device="cuda")
        for _ in range(3):
            for number in (1, 0):
                optimizers[number].zero_grad()
                networks[1](networks[0](x)).mean().backward()
                optimizers[number].step()
    trace = recording.trace
    assert names(trace).count("mean") == 2
    assert trace.num_parameters == 20 + 5


def test_data_of_a_loader_is_work_of_the_host() -> None:
    class SlowSet(TensorDataset):
        def __getitem__(self, index):
            time.sleep(0.001)
            return super().__getitem__(index)

    with record_steps() as recording:
        model = nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(SlowSet(torch.randn(5 * BATCH, 4)), batch_size=BATCH):
            optimizer.zero_grad()
            model(x.cuda()).mean().backward()
            optimizer.step()
    trace = recording.trace
    assert trace.batch_size == BATCH
    assert trace.h2d_bytes == BATCH * 4 * 4
    data = [e for e in trace.events if isinstance(e, HostWork) and e.kind == "data"]
    assert len(data) == 1
    assert data[0].duration_ns >= 8_000_000
    assert not [e for e in trace.events if isinstance(e, Op) and e.phase is Phase.DATA]
    loader = recording.run.loader
    assert loader is not None
    assert (loader.batch_size, loader.batches_per_step, loader.num_samples) == (BATCH, 1, 40)


def test_typical_step_is_neither_the_first_nor_the_one_that_logs() -> None:
    steps: list[int] = []

    def log_now_and_then(model: nn.Module) -> None:
        steps.append(1)
        if len(steps) % 4 == 0:
            next(model.parameters()).sum().item()

    trace = train(mlp(), num_steps=8, between=log_now_and_then)
    assert trace.syncs == ()
    assert trace.caveats == ()


def test_reading_in_each_step_is_kept() -> None:
    trace = train(mlp(), between=lambda model: model[0].bias.sum().item())
    assert [(sync.kind, sync.num_bytes) for sync in trace.syncs] == [("item", 4)]
    assert trace.d2h_bytes == 4


def test_first_step_is_not_recorded() -> None:
    """It sets up the optimizer's state, and what precedes it is not a step."""
    with pytest.raises(BreakevenError, match="no training step was recorded") as caught:
        train(mlp(), num_steps=1)
    assert "at least twice" in (caught.value.hint or "")
    assert not [op for op in train(mlp(), num_steps=2).ops if "zeros_like" in op.name]


def test_compile_is_said_to_be_ignored() -> None:
    trace = train(torch.nn.Sequential(nn.Linear(4, 1)), between=lambda m: torch.compile(m))
    assert [caveat.code for caveat in trace.caveats] == ["compile-ignored"]
    assert trace.settings.is_compiled


def test_block_without_a_step_has_no_trace() -> None:
    with record_steps() as recording:
        torch.zeros(3, device="cuda")
    with pytest.raises(BreakevenError, match="no training step"):
        _ = recording.trace


def test_parameters_of_lazy_modules_get_their_memory_on_the_device() -> None:
    with record_steps() as recording:
        model = nn.Sequential(nn.LazyLinear(8)).cuda()
        model(torch.randn(2, 5).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 5).cuda()).sum().backward()
            optimizer.step()
    assert recording.trace.faults == ()
    assert recording.trace.num_parameters == 5 * 8 + 8


def test_parameters_of_two_optimizers_count_once() -> None:
    model = nn.Linear(4, 2).cpu()
    with record_steps() as recording:
        optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 0.2)]
        for _ in range(3):
            model(torch.randn(3, 4)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert recording.trace.num_parameters == 4 * 2 + 2


def script_ns(between: Callable[[nn.Module], object]) -> int:
    """Return what is recorded as the script's own work."""
    events = train(nn.Linear(4, 3), between=between, num_steps=6).events
    return sum(e.duration_ns for e in events if isinstance(e, HostWork) and e.kind == "script")


@pytest.mark.timing
def test_what_the_recorder_takes_for_reading_tensors_is_no_work_of_the_script() -> None:
    took_ns: list[int] = []

    def reads(model: nn.Module) -> None:
        started_ns = own_time_ns()
        for _ in range(300):
            for weight in model.parameters():
                assert weight.grad is not None
                assert weight.device == weight.to("cuda").device
                assert weight.is_cuda
        took_ns.append(own_time_ns() - started_ns)

    def computes(_: nn.Module) -> None:
        started_ns = own_time_ns()
        while own_time_ns() - started_ns < 5_000_000:
            pass

    # Of what is read, torch alone would take a tenth.
    assert script_ns(reads) < min(took_ns) / 3
    assert script_ns(computes) > 4_000_000


def test_a_function_that_loops_is_left_once_its_steps_suffice() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    left: list[str] = []

    def train_for_ever() -> None:
        try:
            while True:
                optimizer.zero_grad()
                model(torch.randn(BATCH, 4)).square().mean().backward()
                optimizer.step()
        finally:
            left.append("left")

    assert time_step(train_for_ever, budget_s=0.01).measurement.samples_ns
    assert trace_step(train_for_ever).trace.ops
    # It never uses a GPU, so it is recorded again as if it did.
    assert left == ["left"] * 3


def test_a_step_with_several_optimizers_is_never_cut() -> None:
    model = nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(3)]
    ends: list[int] = []

    def step() -> None:
        model(torch.randn(BATCH, 4)).square().mean().backward()
        ends.append(0)
        for optimizer in optimizers:
            optimizer.step()
        ends[-1] += 1

    time_step(step, budget_s=0.01)
    trace_step(step)
    assert set(ends) == {1}


def test_a_loop_is_left_while_its_training_is_kept() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = model.weight.detach().clone()

    def train_for_ever() -> None:
        while True:
            optimizer.zero_grad()
            model(torch.randn(BATCH, 4)).square().mean().backward()
            optimizer.step()

    with kept_training(train_for_ever):
        assert not torch.equal(model.weight, before)
    assert torch.equal(model.weight, before)
    assert not optimizer.state

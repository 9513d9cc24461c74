"""What is recorded of a run besides its events, and where each event comes from."""

from __future__ import annotations

import gc
import linecache
import os
import sys
import time
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset
from torch.utils.data import random_split as split

from breakeven.capture import Target, TargetKind, record_steps, trace_step
from breakeven.capture.record.loader_facts import held_bytes
from breakeven.capture.record.recorder import StepRecorder
from breakeven.capture.sessions import run_facts
from breakeven.capture.sessions.run_facts import source_texts, subnormal_fraction
from breakeven.trace import Call, HostWork, Location, ModelCall, Op, Phase, StepTrace
from factories.fake_steps import copies, next_line, pretending, syncs


def _lines(recorder: StepRecorder, stack: int) -> list[int]:
    own = [place for place in recorder.origins.stacks[stack] if place.file == __file__]
    return [place.line for place in own]


def test_load_of_other_processes_is_part_of_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breakeven.measure.OtherLoad.fraction", lambda _: 0.4)
    weight = nn.Parameter(torch.ones(4))

    def step() -> None:
        weight.square().sum().backward()
        torch.optim.SGD([weight]).step()

    assert trace_step(step).trace.facts.load_fraction == 0.4


def test_stack_names_the_lines_that_lead_to_an_event_outermost_first() -> None:
    def read(x: torch.Tensor) -> float:
        return x.sum().item()

    with pretending() as recorder:
        x = torch.ones(4, device="cuda")
        line = next_line()
        read(x)
    (sync,) = syncs(recorder)
    inner = read.__code__.co_firstlineno + 1
    assert _lines(recorder, sync.stack)[-2:] == [line, inner]
    assert recorder.origins.stacks[sync.stack][-1] == sync.location
    assert sync.location.function == "read"


def test_backward_operators_have_the_stack_of_their_forward_operator() -> None:
    with record_steps() as recording:
        weight = nn.Parameter(torch.ones(4, 4, device="cuda"))
        optimizer = torch.optim.SGD([weight])
        for _ in range(2):
            line = next_line()
            loss = (weight @ weight).exp().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    trace = recording.trace
    backward = [op for op in trace.ops if op.phase is Phase.BACKWARD and "mm" in op.name]
    assert backward
    for op in backward:
        assert trace.stack_of(op)[-1] == op.location
        assert op.location.line == line


def test_step_keeps_the_stacks_of_its_events_alone() -> None:
    def step(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> None:
        weight.square().sum().backward()
        optimizer.step()

    with record_steps() as recording:
        torch.ones(3, device="cuda").exp()
        weight = nn.Parameter(torch.ones(4, device="cuda"))
        optimizer = torch.optim.SGD([weight])
        for _ in range(3):
            step(optimizer, weight)
    trace = recording.trace
    used = {event.stack for event in trace.events} - {-1}
    assert used == set(range(len(trace.stacks)))
    assert len(trace.stacks) == 2  # both lines of the step
    for event in trace.events:
        assert event.location is None or trace.stack_of(event)[-1] == event.location


@pytest.mark.parametrize(
    ("read", "via"),
    [
        (lambda x: torch.distributions.Normal(x, x + 1), "torch.distributions.distribution"),
        (
            lambda x: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1).cuda()(
                x.view(2, 1, 4), x.view(2, 1, 4), tgt_mask=torch.zeros(2, 2, device="cuda")
            ),
            "torch.nn.modules.transformer",
        ),
        (
            lambda x: nn.utils.clip_grad_norm_([_with_grad(x)], 1.0, error_if_nonfinite=True),
            "torch.nn.utils.clip_grad",
        ),
        (lambda x: x.sum().item(), ""),
        (lambda x: torch.unique(x), ""),
        (lambda x: nn.functional.one_hot(x.long()), ""),
        (lambda x: print(x), ""),
        (lambda x: float(x[0]), ""),
    ],
    ids=["normal", "transformer", "clip", "item", "unique", "one_hot", "print", "float"],
)
def test_sync_names_the_library_that_waits(read, via: str, capsys) -> None:
    with pretending() as recorder:
        x = torch.rand(8, device="cuda") + 1
        recorder.start_step()
        read(x)
    assert {sync.via for sync in syncs(recorder)} == {via}
    assert {sync.location.file for sync in syncs(recorder)} == {__file__}


def _with_grad(x: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(x)
    parameter.grad = x
    return parameter


def test_sync_and_copy_name_the_memory_that_they_read() -> None:
    with pretending() as recorder:
        host = torch.rand(8, dtype=torch.float64)
        x = host.cuda()
        total = x.sum()
        total.item()
    (copy,), (sync,) = copies(recorder), syncs(recorder)
    assert copy.dtype == "float64"
    assert copy.storage == recorder.devices.number_of(host)
    assert sync.storage == recorder.devices.number_of(total)


def test_selecting_by_a_mask_reads_the_mask() -> None:
    with pretending() as recorder:
        x = torch.rand(8).cuda()
        mask = x > 0.5
        x[mask]
    (sync,) = syncs(recorder)
    assert sync.storage == recorder.devices.number_of(mask)


def test_deep_recursion_keeps_a_stack_of_bounded_length() -> None:
    def descend(depth: int) -> float:
        return x.sum().item() if depth == 0 else descend(depth - 1)

    with pretending() as recorder:
        x = torch.ones(4, device="cuda")
        descend(300)
    (sync,) = syncs(recorder)
    stack = recorder.origins.stacks[sync.stack]
    assert len(stack) == 64
    assert set(stack) == {sync.location}
    assert isinstance(sync.location, Location)


class Rooted(Dataset):
    """Holds its samples, and computes with them."""

    def __init__(self, num_samples: int) -> None:
        self.values = torch.rand(num_samples, 3)
        self.labels = [np.zeros(2), np.zeros(2)]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index].sqrt()


class Held(Rooted):
    """Holds its samples, and only looks them up."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.as_tensor(self.values[index]), 3


def _train(
    steps: Callable[[nn.Linear, torch.optim.Optimizer], object], model: nn.Module | None = None
) -> StepTrace:
    """Record whatever ``steps`` does with a small model and its optimizer."""
    with record_steps() as recording:
        model = (model or nn.Linear(3, 1)).cuda()
        steps(model, torch.optim.SGD(model.parameters(), lr=0.01))
    return recording.trace


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x.cuda()).sum().backward()
    optimizer.step()


def _epochs(make: Callable[[], DataLoader], num_epochs: int) -> StepTrace:
    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        loader = make()
        for _ in range(num_epochs):
            for batch in loader:
                _update(model, optimizer, batch[0] if isinstance(batch, list) else batch)

    return _train(steps)


def test_loader_is_known_as_the_script_asked_for_it() -> None:
    def make() -> DataLoader:
        return DataLoader(
            Rooted(12), batch_size=4, num_workers=2, persistent_workers=True, pin_memory=True
        )

    (loader,) = _epochs(make, 3).facts.loaders
    assert loader.location.line == make.__code__.co_firstlineno + 1
    assert loader.location.file == __file__
    assert (loader.batch_size, loader.num_samples, loader.num_epochs) == (4, 12, 3)
    assert (loader.num_workers, loader.persistent_workers, loader.pin_memory) == (2, True, True)
    assert loader.dataset == "Rooted"
    source = Path(__file__).read_text().splitlines()
    assert source[loader.dataset_location.line - 1].startswith("class Rooted(")
    assert loader.data_bytes == 12 * 3 * 4 + 2 * 16
    assert loader.batch_bytes == 4 * 3 * 4
    assert loader.fetch_cpu_ns > 0
    assert loader.fetch_ns > 0


class Shard(DataLoader):
    """A trainer's copy of a loader."""


def test_a_trainers_copy_of_a_loader_has_the_workers_that_were_asked_for() -> None:
    def make() -> DataLoader:
        own = DataLoader(Rooted(12), batch_size=4, num_workers=2, persistent_workers=True)
        return Shard(own.dataset, batch_size=own.batch_size, num_workers=own.num_workers)

    (loader,) = _epochs(make, 2).facts.loaders
    assert (loader.num_workers, loader.persistent_workers) == (2, True)


def test_librarys_copy_of_a_loader_is_where_the_script_makes_its_own() -> None:
    text = "def copy(loader):\n    return kind(loader.dataset, batch_size=loader.batch_size)\n"
    library: dict[str, Any] = {"kind": DataLoader}
    exec(compile(text, str(Path(torch.__file__).parent / "made_up.py"), "exec"), library)

    def make() -> DataLoader:
        data = Rooted(12)
        other = DataLoader(data, batch_size=2)
        own = DataLoader(data, batch_size=4)
        copied = library["copy"](own)
        return copied if other.dataset is copied.dataset else other

    (loader,) = _epochs(make, 2).facts.loaders
    assert loader.location.line == make.__code__.co_firstlineno + 3


@pytest.mark.parametrize(
    ("dataset", "is_indexed"),
    [
        (lambda: TensorDataset(torch.rand(8, 3)), True),
        (lambda: split(TensorDataset(torch.rand(16, 3)), [8, 8])[0], True),
        (lambda: list(zip(torch.rand(8, 3), range(8), strict=True)), True),
        (lambda: Held(8), True),
        (lambda: Rooted(8), False),
        (lambda: [[0.0, 1.0, 2.0]] * 8, False),
    ],
    ids=["tensors", "subset", "list", "own", "computes", "numbers"],
)
def test_data_set_that_only_looks_samples_up_is_told(dataset, is_indexed: bool) -> None:
    def collate(samples: list) -> torch.Tensor:
        first = [sample[0] if isinstance(sample, tuple) else sample for sample in samples]
        return torch.stack([torch.as_tensor(one) for one in first])

    trace = _epochs(lambda: DataLoader(dataset(), batch_size=4, collate_fn=collate), 1)
    (loader,) = trace.facts.loaders
    assert loader.is_indexed is is_indexed
    assert loader.num_samples == 8
    assert not loader.has_batched_fetch


def test_loader_of_a_class_of_ones_own_is_at_the_line_that_makes_it() -> None:
    class Own(DataLoader):
        def __init__(self, dataset: Dataset, batch_size: int) -> None:
            super().__init__(dataset, batch_size)

    def make() -> DataLoader:
        return Own(Held(8), batch_size=4)

    (loader,) = _epochs(make, 1).facts.loaders
    assert loader.location.line == make.__code__.co_firstlineno + 1


def test_loaders_made_anew_at_one_line_are_one() -> None:
    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            for batch in DataLoader(Rooted(8), batch_size=4):
                _update(model, optimizer, batch)

    (loader,) = _train(steps).facts.loaders
    assert loader.num_epochs == 3


def test_data_set_on_the_device_is_fetched_within_the_step() -> None:
    def make() -> DataLoader:
        return DataLoader(TensorDataset(torch.rand(12, 3, device="cuda")), batch_size=4)

    trace = _epochs(make, 1)
    (loader,) = trace.facts.loaders
    assert (loader.fetch_ns, loader.fetch_cpu_ns, loader.is_indexed) == (0, 0, True)
    assert any(op.phase is Phase.DATA and not op.is_on_host for op in trace.ops)


def test_loaders_of_training_and_validation_at_one_line_are_two() -> None:
    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        train, validate = (DataLoader(Held(8 * size), batch_size=size) for size in (4, 2))
        for (batch, _), (other, _) in zip(train, validate, strict=True):
            _update(model, optimizer, batch)
            model(other.cuda())

    loaders = _train(steps).facts.loaders
    assert {loader.batch_size for loader in loaders} == {2, 4}


def test_subset_holds_what_its_source_holds() -> None:
    first, second = split(TensorDataset(torch.rand(16, 3)), [8, 8])
    assert held_bytes(first) == held_bytes(second) == 16 * 3 * 4
    assert held_bytes(first + second) == 16 * 3 * 4  # one memory behind both


def test_sampler_of_batches_fetches_them_in_one_call() -> None:
    data = TensorDataset(torch.rand(16, 3))
    sampler = BatchSampler(RandomSampler(data), 4, drop_last=False)
    trace = _epochs(lambda: DataLoader(data, sampler=sampler, batch_size=None), 1)
    (loader,) = trace.facts.loaders
    assert loader.has_batched_fetch
    assert loader.batch_size == 0


def test_optimizer_is_known_by_the_line_that_makes_it() -> None:
    class Own(torch.optim.SGD):
        def __init__(self, parameters) -> None:
            super().__init__(parameters, lr=0.1, foreach=False)

    with record_steps() as recording:
        model = nn.Linear(3, 1).cuda()
        line = next_line()
        one = Own(model.parameters())
        other = torch.optim.AdamW([nn.Parameter(torch.ones(2, device="cuda"))], fused=True)
        for _ in range(2):
            other.param_groups[0]["params"][0].grad = torch.ones(2, device="cuda")
            other.step()
            _update(model, one, torch.ones(4, 3))
    adam, own = recording.trace.facts.optimizers
    assert (adam.name, adam.fused, adam.foreach, adam.num_tensors) == ("AdamW", True, None, 1)
    assert (own.name, own.fused, own.foreach, own.num_tensors) == ("Own", None, False, 2)
    assert (own.location.line, adam.location.line) == (line, line + 1)
    assert (own.is_from_torch, adam.is_from_torch) == (False, True)
    assert recording.trace.facts.num_parameter_tensors == 3


def _call(trace: StepTrace, name: str) -> Call:
    (found,) = [call for call in trace.facts.calls if call.name == name]
    return found


@pytest.mark.parametrize(
    ("act", "name", "argument"),
    [
        (lambda m, o: gc.collect(), "gc.collect", ""),
        (lambda m, o: torch.set_num_threads(1), "torch.set_num_threads", "1"),
        (lambda m, o: torch.autocast("cuda"), "torch.autocast", "cuda, float16"),
        (
            lambda m, o: torch.compile(m, mode="max-autotune"),
            "torch.compile", "Linear, mode=max-autotune",
        ),
        (lambda m, o: torch.compile(o.step), "torch.compile", "SGD.step"),
        (lambda m, o: nn.DataParallel(m, [0]), "torch.nn.DataParallel", "Linear, [0]"),
        (
            lambda m, o: torch.autograd.set_detect_anomaly(False),
            "torch.autograd.set_detect_anomaly", "False",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value else None,
)  # fmt: skip
def test_call_is_noted_at_its_line_and_let_through(act, name: str, argument: str) -> None:
    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(4):
            _update(model, optimizer, torch.ones(4, 3))
            act(model, optimizer)

    call = _call(_train(steps), name)
    assert (call.count, call.step_count, call.argument) == (4, 3, argument)
    assert call.location.file == __file__
    first = act.__code__.co_firstlineno
    assert first <= call.location.line <= first + 1


def test_call_before_the_first_step_is_of_no_step() -> None:
    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        torch.set_default_dtype(torch.float32)
        for _ in range(3):
            _update(model, optimizer, torch.ones(4, 3))

    trace = _train(steps)
    call = _call(trace, "torch.set_default_dtype")
    assert (call.count, call.step_count, call.argument) == (1, 0, "float32")
    assert trace.facts.num_steps == 3


def _host_work(trace: StepTrace) -> list[HostWork]:
    """Return the host's work without pauses, which a busy machine adds anywhere."""
    work = [event for event in trace.events if isinstance(event, HostWork)]
    return [event for event in work if event.kind != "script"]


@pytest.mark.parametrize(("num_samples", "is_work"), [(16, True), (3, False)])
def test_short_pauses_are_work_where_a_line_has_many_of_them(
    num_samples: int, is_work: bool
) -> None:
    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(8):
            rows: list[torch.Tensor] = []
            for _ in range(num_samples):
                time.sleep(0.0002)  # a file is read
                rows.append(torch.ones(3).cuda())
            _update(model, optimizer, torch.stack(rows))

    pauses = _pauses_at(_train(steps), steps.__code__.co_firstlineno + 5)
    # On a busy machine a pause may be a long one, which counts wherever it is.
    short = [duration_ns for duration_ns in pauses if duration_ns < 500_000]
    assert len(pauses) >= num_samples - 1 if is_work else not short


def test_short_pauses_before_operators_of_all_kinds_are_no_work_of_one_line() -> None:
    kinds = (
        torch.neg, torch.abs, torch.sin, torch.cos, torch.exp, torch.tanh, torch.sign, torch.ceil,
        torch.floor, torch.round, torch.square, torch.sigmoid,
    )  # fmt: skip

    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(8):
            x = torch.ones(2, 3).cuda()
            for kind in kinds:
                time.sleep(0.0002)  # as between the operators of a framework's step
                x = kind(x)
            _update(model, optimizer, x)

    pauses = _pauses_at(_train(steps), steps.__code__.co_firstlineno + 5)
    assert all(duration_ns >= 500_000 for duration_ns in pauses)


def _pauses_at(trace: StepTrace, line: int) -> list[int]:
    return [
        event.duration_ns
        for event in trace.events
        if isinstance(event, HostWork) and event.location and event.location.line == line
    ]


def _ops_inside(trace: StepTrace, call: ModelCall) -> list[Op]:
    inside = trace.events[call.first_event : call.first_event + call.num_events]
    return [event for event in inside if isinstance(event, Op)]


def test_saving_is_work_of_the_host_and_no_gap(tmp_path: Path) -> None:
    class Slow:
        def __reduce__(self):
            time.sleep(0.02)
            return (int, ())

    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(4):
            _update(model, optimizer, torch.ones(4, 3))
            torch.save([model.state_dict(), Slow()], tmp_path / "model.pt")
            gc.collect()

    trace = _train(steps)
    work = _host_work(trace)
    assert [event.kind for event in work] == ["save", "gc"]
    assert work[0].duration_ns > 20_000_000
    assert trace.stack_of(work[0])[-1] == work[0].location
    assert work[0].location.line == steps.__code__.co_firstlineno + 3
    assert torch.load(tmp_path / "model.pt", map_location="cpu", weights_only=False)[1] == 0
    assert trace.syncs == ()


def test_logging_of_histograms_is_work_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    class SummaryWriter:
        def add_histogram(self, tag: str, values: torch.Tensor) -> float:
            return values.cpu().sum().item()

    module = types.ModuleType("tensorboardX.writer")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(4):
            _update(model, optimizer, torch.ones(4, 3))
            SummaryWriter().add_histogram("weights", model.weight.detach())

    trace = _train(steps)
    assert [event.kind for event in _host_work(trace)] == ["log"]
    assert trace.syncs == ()
    assert _call(trace, "SummaryWriter.add_histogram").step_count == 3


def test_patched_functions_are_put_back() -> None:
    before = (
        torch.save,
        gc.collect,
        torch.compile,
        torch.autocast.__init__,
    )
    with record_steps():
        assert torch.save is not before[0]
    assert before == (
        torch.save,
        gc.collect,
        torch.compile,
        torch.autocast.__init__,
    )


def test_calls_of_a_model_are_told_from_each_other() -> None:
    """A validation pass without a backward pass, and a time that is dropped before it."""

    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        x = torch.ones(4, 3, device="cuda")
        for number in range(4):
            if number == 3:
                time.sleep(0.2)  # is not typical, and leaves the step
            model(input=x).sum().backward()
            model.eval()
            with torch.no_grad():
                model(x[:2])
            model.train()
            model(x[:1])
            optimizer.step()

    trace = _train(steps)
    trained, validated, unused = trace.facts.model_calls
    assert [call.num_samples for call in trace.facts.model_calls] == [4, 2, 1]
    assert (trained.is_training, trained.has_grad, trained.is_used_in_backward) == (True,) * 3
    assert (validated.is_training, validated.has_grad) == (False, False)
    assert (unused.has_grad, unused.is_used_in_backward) == (True, False)
    pauses = [event.duration_ns for event in trace.events if isinstance(event, HostWork)]
    assert sum(pauses) < 200_000_000
    for call in trace.facts.model_calls:
        inside = _ops_inside(trace, call)
        assert [event.name for event in inside] == ["aten.t.default", "aten.addmm.default"]
        assert inside[1].inputs[1].shape == (call.num_samples, 3)
        assert trace.stacks[call.stack][-1] == call.location == inside[0].location


def test_calls_are_placed_in_a_step_of_two_optimizers() -> None:
    with record_steps() as recording:
        models = [nn.Linear(3, 1).cuda(), nn.Linear(3, 1).cuda()]
        optimizers = [torch.optim.SGD(model.parameters()) for model in models]
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                _update(model, optimizer, torch.ones(4, 3))
    trace = recording.trace
    assert len(trace.facts.model_calls) == 2
    for call in trace.facts.model_calls:
        inside = _ops_inside(trace, call)
        assert all(event.module == "Linear" for event in inside)
        assert len(inside) == 2
        assert call.is_used_in_backward


def test_batches_of_other_lengths_are_counted_as_shapes() -> None:
    def steps(sizes: list[int]) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
        def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            for size in sizes:
                _update(model, optimizer, torch.ones(2, 3, size, size))

        return run

    def trace(sizes: list[int]) -> StepTrace:
        return _train(steps(sizes), nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()))

    vary, fixed = trace([8, 9, 10, 8, 9]).facts, trace([8, 8, 8, 8]).facts
    assert (vary.num_shapes, vary.num_convolution_shapes) == (3, 3)
    assert vary.shapes_vary_at.line == _update.__code__.co_firstlineno + 2
    assert (fixed.num_shapes, fixed.num_convolution_shapes) == (1, 1)
    assert fixed.shapes_vary_at is None


class _Graph(nn.Module):
    """A layer over a sparse adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, adjacency: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(adjacency, self.layer(torch.ones(8, 4).cuda()))


def test_how_much_a_sparse_tensor_stores_is_no_shape_of_its_own() -> None:
    def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for num_edges in (3, 5, 4, 6):
            places = torch.arange(num_edges).expand(2, -1)
            adjacency = torch.sparse_coo_tensor(
                places, torch.ones(num_edges), (8, 8), check_invariants=True
            )
            _update(model, optimizer, adjacency)

    trace = _train(steps, _Graph())
    assert trace.facts.num_shapes == 1
    (copied,) = {copy.num_bytes for copy in trace.copies if copy.num_bytes != 8 * 4 * 4}
    # Six values and their places, not 8 x 8.
    assert copied == 6 * (4 + 2 * 8)


@pytest.mark.parametrize("is_on", [True, False])
def test_anomaly_detection_is_seen_where_the_backward_pass_runs(is_on: bool) -> None:
    def steps(model: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            with torch.autograd.set_detect_anomaly(is_on):
                _update(model, optimizer, torch.ones(4, 3))

    trace = _train(steps)
    assert trace.facts.is_anomaly_checked is is_on
    readers = {"torch.autograd.anomaly_mode"} if is_on else set()
    assert {sync.via for sync in trace.syncs} == readers


def test_kept_graphs_show_in_the_live_memory() -> None:
    def steps(is_kept: bool) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
        def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            kept = []
            for _ in range(5):
                loss = model(torch.ones(4, 3, device="cuda")).exp().sum()
                loss.backward()
                optimizer.step()
                kept.append(loss if is_kept else loss.item())

        return run

    kept, released = (_train(steps(is_kept)).facts.live_bytes for is_kept in (True, False))
    assert len(kept) == 5
    growth = [later - earlier for earlier, later in pairwise(kept[1:])]
    assert min(growth) >= 512
    assert len(set(released[1:])) == 1


def test_subnormal_values_are_counted_with_the_gradients() -> None:
    parameter = nn.Parameter(torch.tensor([1e-40, 1.0, 0.0, -1e-41]))
    assert subnormal_fraction([parameter]) == 0.5
    parameter.grad = torch.ones(4)
    assert subnormal_fraction([parameter]) == 0.25
    assert subnormal_fraction([nn.Parameter(torch.ones(2, dtype=torch.complex64))]) == 0.0


def test_machine_and_process_are_known() -> None:
    def step() -> None:
        _update(model, optimizer, torch.ones(4, 3))

    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    run = trace_step(step)
    facts = run.trace.facts
    assert facts.num_threads == torch.get_num_threads()
    assert facts.num_cores >= 1
    assert facts.default_dtype == "float32"
    assert facts.has_cuda_build == (torch.version.cuda is not None)
    (source,) = [text for text in run.sources if text.path == __file__]
    assert source.text == Path(__file__).read_text()
    # Made before the recording: known by the line of its first update.
    assert facts.optimizers[0].location.line == _update.__code__.co_firstlineno + 3


def _texts_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the texts of a run that has imported the file."""
    module = types.ModuleType("imported")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "imported", module)
    # The tests that this process has imported are files of the user's as well.
    monkeypatch.setattr(run_facts, "_MAX_OTHER_BYTES", 1 << 40)
    target = Target(kind=TargetKind.FUNCTION, raw_path=b"", label="step")
    return {source.path: source.text for source in source_texts(target, StepTrace(events=()))}


def test_sources_are_read_in_their_own_encoding_or_shown_with_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "imported.py"
    path.write_bytes("# coding: latin-1\nname = 'é'\n".encode("latin-1"))
    assert _texts_of(path, monkeypatch)[str(path)].endswith("name = 'é'\n")
    path.write_bytes(b"name = '\xe9'\n")  # says nothing, and is no UTF-8
    assert _texts_of(path, monkeypatch)[str(path)] == "name = '\ufffd'\n"
    path.write_bytes(b"x = 1\n" * 200_000)
    assert str(path) not in _texts_of(path, monkeypatch)
    path.unlink()
    assert str(path) not in _texts_of(path, monkeypatch)


def test_source_of_a_name_that_is_no_unicode_comes_by_the_name_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.py"
    try:
        Path(os.fsdecode(name)).write_text("x = 1\n")
    except OSError:
        pytest.skip("the file system takes Unicode alone")
    texts = _texts_of(Path(os.fsdecode(name)), monkeypatch)
    assert texts[f"{tmp_path}/caf\\xe9.py"] == "x = 1\n"


def test_cell_of_a_notebook_is_a_source() -> None:
    name = "/made-up/ipykernel_1/2.py"
    text = "def step():\n    (w * 2).sum().backward()\n    optimizer.step()\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    weight = nn.Parameter(torch.ones(2))
    names = {"w": weight, "optimizer": torch.optim.SGD([weight])}
    exec(compile(text, name, "exec"), names)
    run = trace_step(names["step"])
    assert run.trace.ops[0].location.file == name
    assert {source.path: source.text for source in run.sources}[name] == text

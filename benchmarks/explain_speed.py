"""How long a step takes to explain, by its number of events: made-up steps, nothing is run.

Run ``python benchmarks/explain_speed.py`` in an environment with breakeven. It prints events,
seconds and microseconds per event of three kinds of step, and takes about three minutes. Numbers
of events may follow, as in ``python benchmarks/explain_speed.py 1000 3000``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.report import ExplainReport, record
from breakeven.simulate import build_program
from breakeven.studies.comparison import compare_devices
from breakeven.studies.explanation import explained
from breakeven.timing import Source
from breakeven.trace import (
    Copy,
    Event,
    Location,
    Op,
    Phase,
    SourceText,
    StepTrace,
    Sync,
    TensorSpec,
)
from breakeven.verdict import DeviceKind, DeviceResult, host_summary

# The last is that of a gated cell that is written out over 1,700 time steps.
NUMS_EVENTS = (1_000, 3_000, 10_000, 30_000, 71_000)
DEVICES = tuple(map(find_device, ("RTX 4090", "T4")))
FILE = "train.py"
SOURCE = """\
for x in batches:
    x = x.cuda()
    for i in range(len(x)):
        row = x[i]
        if row.item() > 0:
            total = total + row
    for t in range(num_steps):
        h = h * weight
        h = torch.tanh(h)
    loss = h.mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
_STACKS = tuple((Location(file=FILE, line=line),) for line in range(1, SOURCE.count("\n") + 1))
_WIDTH = 64


def reads(num_events: int) -> StepTrace:
    """Return a step that reads one row of its batch after another, as trees are cut to size."""
    read = Sync(kind="item", num_bytes=4, storage=1, **_at(5))
    events = [_op("aten.select.int", 4, (1,), 1), read]
    return _step([event for _ in range(num_events // 2) for event in events])


def operators(num_events: int) -> StepTrace:
    """Return a step of a recurrence that is written out, each step with memory of its own."""
    return _step(_recurrence(num_events // 4, first_storage=10))


def evaluations(num_events: int) -> StepTrace:
    """Return a step that evaluates the loss many times, as L-BFGS does, with a read for each."""
    events: list[Event] = []
    for number in range(num_events // 42):
        events += _recurrence(10, first_storage=10 + 40 * number)
        events += [
            _op("aten.mean.default", 10, (9,), 9),
            Sync(kind="item", num_bytes=4, storage=9, **_at(10)),
        ]
    return _step(events)


def _recurrence(length: int, *, first_storage: int) -> list[Event]:
    forward: list[Event] = []
    backward: list[Event] = []
    for number in range(length):
        old, new = first_storage + 2 * number, first_storage + 2 * number + 1
        forward += [
            _op("aten.mul.Tensor", 8, (old, 2), new),
            _op("aten.tanh.default", 9, (new,), old + 2),
        ]
        backward += [
            _op("aten.tanh_backward.default", 9, (3, old + 2), 3, Phase.BACKWARD),
            _op("aten.mul.Tensor", 8, (3, 2), 3, Phase.BACKWARD),
        ]
    return forward + backward[::-1]


def _step(middle: Sequence[Event]) -> StepTrace:
    first = Copy(source="cpu", destination="cuda:0", num_bytes=4 * _WIDTH, storage=1, **_at(2))
    update = _op("aten._foreach_add_.List", 12, (2, 3), 2, Phase.OPTIMIZER)
    last = Sync(kind="item", num_bytes=4, storage=9, **_at(13))
    return StepTrace(
        events=(first, *middle, update, last), batch_size=32, num_parameters=_WIDTH,
        peak_memory_bytes=1_000_000, stacks=_STACKS,
    )  # fmt: skip


def _op(
    name: str, line: int, read: tuple[int, ...], written: int, phase: Phase = Phase.FORWARD
) -> Op:
    tensors = [
        TensorSpec(shape=(_WIDTH,), dtype="float32", device="cuda:0", storage=storage)
        for storage in (*read, written)
    ]
    read_tensors, (output,) = tuple(tensors[:-1]), tensors[-1:]
    return Op(name=name, inputs=read_tensors, outputs=(output,), phase=phase, **_at(line))


def _at(line: int) -> dict[str, Any]:
    return {"location": _STACKS[line - 1][0], "stack": line - 1}


def explain_step(trace: StepTrace) -> ExplainReport:
    """Explain a made-up step: findings, timelines, attribution and plan, as of a recorded one."""
    host = reference_host()
    recording = record(trace, host, sources=(SourceText(path=FILE, text=SOURCE),))
    measured = DeviceResult(
        device="made-up CPU", kind=DeviceKind.CPU, source=Source.MEASURED, precision="fp32",
        step_ns=1e9, low_ns=0.9e9, high_ns=1.1e9, bound=None, peak_memory_bytes=None, fits=None,
        num_samples=5,
    )  # fmt: skip
    step = compare_devices(build_program(trace), DEVICES, host, (measured,))
    summary = host_summary(host, num_threads=2, torch_version="2", python_version="3")
    return explained(step, DEVICES[0], target=FILE, host=summary, recording=recording)


KINDS: tuple[Callable[[int], StepTrace], ...] = (reads, operators, evaluations)


def main() -> None:
    """Time steps of each kind."""
    nums_events = tuple(map(int, sys.argv[1:])) or NUMS_EVENTS
    print(f"{'step':12} {'events':>8} {'seconds':>8} {'µs per event':>12}")
    for kind in KINDS:
        for num_events in nums_events:
            trace = kind(num_events)
            started_s = time.perf_counter()
            explain_step(trace)
            seconds = time.perf_counter() - started_s
            events = len(trace.events)
            print(f"{kind.__name__:12} {events:8,} {seconds:8.2f} {1e6 * seconds / events:12.0f}")


if __name__ == "__main__":
    main()

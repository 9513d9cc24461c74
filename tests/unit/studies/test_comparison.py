"""How often a step is lowered and predicted, which takes most of the time of an explanation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from breakeven import capture
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.report import record, to_json
from breakeven.simulate import Program, build_program, predict_steps
from breakeven.studies import check_step, explain_run
from breakeven.studies.comparison import Comparison, compare_devices, predict_captured
from breakeven.trace import Event, Op, StepTrace, Sync, TensorSpec
from factories.reports import cpu_wins
from factories.runs import device_op, plain_run, traced_run

DEVICES = ("t4", "l4")


class Counted:
    """Counts calls by the step, and by the devices where there are any."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        # Kept, so that no other step gets the identity of one that is gone.
        self._steps: list[StepTrace] = []
        self.calls: Counter[tuple[int, tuple[str, ...]]] = Counter()

    def __call__(self, steps: Any, devices: Any = (), *more: Any, **options: Any) -> Any:
        for step in [steps] if isinstance(steps, StepTrace | Program) else steps:
            trace = step.trace if isinstance(step, Program) else step
            self._steps.append(trace)
            self.calls[id(trace), tuple(device.id for device in devices)] += 1
        return self._function(steps, *([devices] if devices else []), *more, **options)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counted]:
    """Count in every module that has one of the functions."""
    found = {"predict": Counted(predict_steps), "lower": Counted(build_program)}
    originals = {predict_steps: found["predict"], build_program: found["lower"]}
    for module in [each for name, each in sys.modules.items() if name.startswith("breakeven.")]:
        for name in ("predict_steps", "build_program"):
            function = vars(module).get(name)
            if function in originals:
                monkeypatch.setattr(module, name, originals[function])
    return found


def test_a_check_lowers_its_step_once_and_predicts_it_eager_and_captured(
    counted: dict[str, Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "time_step", lambda *_, **__: plain_run())
    monkeypatch.setattr(capture, "trace_step", lambda _: traced_run())
    weight = torch.ones((), requires_grad=True)
    report = check_step(lambda: weight.sum().backward(), devices=DEVICES, host="reference")
    assert len(report.results) == 3
    # As it is, again as a point of its curve, and as one CUDA graph.
    assert [*counted["predict"].calls.values()][:2] == [2, 1]
    assert {devices for _, devices in counted["predict"].calls} == {DEVICES}
    # Each other size of the curve is a step of its own.
    first, *others = counted["lower"].calls.values()
    assert (first, {*others}) == (2, {1})


def test_an_explanation_predicts_and_lowers_each_step_once(
    counted: dict[str, Counted], tmp_path: Path
) -> None:
    recording = record(traced_run().trace, reference_host())
    path = tmp_path / "run.json"
    path.write_bytes(to_json(structs.replace(cpu_wins(), recording=recording), with_recording=True))
    report = explain_run(path, devices=DEVICES)
    assert len(report.plan) >= 1
    assert set(counted["predict"].calls.values()) == {1}
    assert set(counted["lower"].calls.values()) == {1}
    assert {devices for _, devices in counted["predict"].calls} == {DEVICES}


def compared(*events: Event, devices: tuple[str, ...] = ("t4", "rtx-4090", "m2")) -> Comparison:
    events = events or (device_op(),) * 41
    specs = tuple(map(find_device, devices))
    measured = (cpu_wins().results[2],)
    return compare_devices(
        build_program(StepTrace(events=events)), specs, reference_host(), measured
    )


def test_the_fastest_gpu_replays_a_step_that_the_host_decides() -> None:
    step = compared()
    captured = predict_captured(step, None)
    assert captured is not None
    assert captured.result is not None
    assert (captured.result.device, captured.result.setting) == ("RTX 4090", "CUDA graph")
    assert captured.result.step_ns < 0.5 * step.best.estimate.value_ns
    assert captured.because == ""


def test_a_read_within_the_step_is_the_reason() -> None:
    read = Sync(kind="item", num_bytes=4)
    step = compared(*(device_op(),) * 40, read, device_op())
    captured = predict_captured(step, None)
    assert captured is not None
    assert "(1× per step)" in captured.because


def test_a_step_that_the_gpu_decides_has_no_graph() -> None:
    spec = TensorSpec(shape=(4_096, 4_096), dtype="float32", device="cuda:0")
    product = Op(name="aten.mm.default", inputs=(spec, spec), outputs=(spec,))
    assert predict_captured(compared(*(product,) * 9), None) is None


def test_gpus_without_graphs_have_none() -> None:
    assert predict_captured(compared(devices=("m2",)), None) is None

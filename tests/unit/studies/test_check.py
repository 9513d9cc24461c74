from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from msgspec.structs import replace

from breakeven import capture, measure
from breakeven.calibrate.here import host_called, with_kinds
from breakeven.capture import Gap, OtherWork
from breakeven.cost import reference_host
from breakeven.device import FOLDER_VARIABLE
from breakeven.errors import BreakevenError, Caveat, UnknownDeviceError, UsageError
from breakeven.report import CheckReport
from breakeven.simulate import CpuRates
from breakeven.studies import check_step, check_target, explain_target
from breakeven.studies import study as module
from breakeven.timing import EMULATED_ON_CPU, Estimate, Source
from breakeven.trace import Location
from breakeven.units import NS_PER_MS
from breakeven.verdict import NoCrossover
from factories.runs import (
    Answer,
    ProgressLog,
    ScriptedLauncher,
    device_op,
    failure,
    loader_use,
    plain_run,
    traced_run,
)

PARAMETER = torch.ones(8, requires_grad=True)
OPTIMIZER = torch.optim.SGD([PARAMETER], lr=0.1)


def step() -> None:
    OPTIMIZER.zero_grad()
    PARAMETER.square().sum().backward()
    OPTIMIZER.step()


@pytest.mark.slow
def test_function_is_measured_here_and_predicted_elsewhere() -> None:
    report = check_step(step, devices=["t4", "T4", "l4"], host="reference", budget_s=0.01)
    assert report.target == "step"
    assert [(result.device, result.source) for result in report.results[1:]] == [
        ("T4", Source.PREDICTED),
        ("L4", Source.PREDICTED),
    ]
    assert report.results[0].source is Source.MEASURED
    assert report.results[0].num_samples > 0
    # A parameter without a batch cannot be scaled.
    assert isinstance(report.crossover, NoCrossover)
    assert "cannot be scaled" in report.crossover.none_because


def test_what_was_measured_of_a_kind_of_machine_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {"date": "2026-03-01", "said": "T4: 9 ms", "target": "a.py"}
    (tmp_path / "hosts").mkdir()
    kept = json.dumps([told | {"factor": 4.8, "log_sigma": 0.2}])
    (tmp_path / "hosts" / "cloud.json").write_text(kept)
    monkeypatch.setattr(capture, "time_step", lambda *_, **__: plain_run())
    monkeypatch.setattr(capture, "trace_step", lambda _: traced_run())
    usual = check_step(step, devices=["t4"], host="cloud").results[-1]
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    found = check_step(step, devices=["t4"], host="cloud").results[-1]
    assert found.step_ns > usual.step_ns
    assert "as measured by you (T4: 9 ms, a.py, 2026-03-01)" in found.fed_by


def test_unknown_names_are_refused_before_the_function_is_called() -> None:
    def never() -> None:
        raise AssertionError

    with pytest.raises(UnknownDeviceError):
        check_step(never, devices=["no such device"])
    with pytest.raises(BreakevenError, match=f"there is no host 'x{reference_host().id}'"):
        check_step(never, host=f"x{reference_host().id}")


def test_the_value_of_a_step_is_no_function() -> None:
    with pytest.raises(UsageError, match="step is a Tensor, not a function"):
        check_step(torch.zeros(()))  # type: ignore[arg-type]


CORE = CpuRates(num_cores=1, flop_per_s=1e11, bytes_per_s=2e10)


def checked_step(
    monkeypatch: pytest.MonkeyPatch,
    *devices: str,
    precision: str = "fp32",
    caveats: tuple[Caveat, ...] = (),
) -> CheckReport:
    run = replace(plain_run(), precision=precision, caveats=caveats)
    monkeypatch.setattr(capture, "time_step", lambda *_, **__: run)
    monkeypatch.setattr(capture, "trace_step", lambda _: traced_run())
    monkeypatch.setattr(measure, "measure_cpu_rates", lambda: CORE)
    return check_step(step, devices=devices, host="reference")


def test_cpus_are_predicted_beside_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked_step(monkeypatch, "T4", "i9-10940X", "4 cores of EPYC 7763")

    assert [one.device for one in report.absent_cpus] == [
        "Core i9-10940X (14 cores)",
        "EPYC 7763 (4 cores)",
    ]
    for result in report.absent_cpus:
        assert result.source is Source.PREDICTED
        assert result.low_ns < result.step_ns < result.high_ns
        assert [caveat.code for caveat in result.caveats] == ["absent-cpu"]
    assert [one.device for one in report.results] == ["Made-up CPU (2 threads)", "T4"]


def test_the_same_cores_take_about_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    (few,) = checked_step(monkeypatch, "T4", "2 cores of i9-10940X").absent_cpus
    (many,) = checked_step(monkeypatch, "T4", "i9-10940X").absent_cpus

    # A step of one operator on 32,000 numbers, most of which is Python.
    assert few.step_ns >= many.step_ns
    assert abs(math.log(few.step_ns / 1_000_000)) < math.log(10)


def test_precisions_without_rates_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked_step(monkeypatch, "T4", "i9-10940X", precision="bf16")

    assert report.absent_cpus == ()
    (caveat,) = (one for one in report.caveats if one.code == "absent-cpu-not-predicted")
    assert "bf16" in caveat.message


def test_a_step_of_which_layers_are_emulated_here_says_nothing_of_other_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulated = Caveat(code=EMULATED_ON_CPU, message="bf16 is emulated")
    report = checked_step(monkeypatch, "T4", "i9-10940X", caveats=(emulated,))

    assert report.absent_cpus == ()
    (caveat,) = (one for one in report.caveats if one.code == "absent-cpu-not-predicted")
    assert "a 16-bit format" in caveat.message


def test_a_cpu_of_which_too_little_is_known_is_refused_before_anything_runs() -> None:
    with pytest.raises(BreakevenError, match="cannot predict a step for the CPU EPYC 7313"):
        check_step(lambda: pytest.fail("ran"), devices=["T4", "EPYC 7313"])


OLD_TORCH = Caveat(code="old-torch", message="this torch is old")


class ReadyLauncher(ScriptedLauncher):
    """A launcher on a machine with torch and, where it has a name, a GPU."""

    def __init__(self, *answers: Answer, gpu: str = "") -> None:
        super().__init__(answers)
        self.num_entered = 0
        self._ready = SimpleNamespace(gpu=gpu, torch_version="2.13.0", caveats=(OLD_TORCH,))

    def __enter__(self) -> Self:
        self.num_entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ready(self) -> SimpleNamespace:
        return self._ready


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    host = reference_host()
    monkeypatch.setattr(module, "find_hosts", lambda *_: (host, host))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def checked(script: str, launcher: ReadyLauncher, **options: Any) -> CheckReport:
    options = {"devices": ("t4",)} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Launcher", lambda _: launcher)
        return check_target(script, **options)


def test_a_target_is_recorded_then_timed_on_each_device_that_is_here(script: str) -> None:
    launcher = ReadyLauncher(traced_run(), plain_run(), plain_run(700_000), gpu="A GPU")
    report = checked(script, launcher)
    assert [result.source for result in report.results] == ["measured", "measured", "predicted"]
    assert [result.kind for result in report.results] == ["cpu", "gpu", "gpu"]
    assert [request.is_traced for request in launcher.requests] == [True, False, False]


def test_what_takes_long_between_steps_is_recorded(script: str) -> None:
    other = Estimate(value_ns=2e6, low_ns=1e6, high_ns=3e6, source=Source.MEASURED)
    gap = Gap(num_updates=40, time_ns=80e6, other=other)
    work = OtherWork(location=Location(file=script, line=7, function="evaluate"), share=1.0)
    plain = replace(plain_run(), other=other, other_work=(work,), gap=gap)
    launcher = ReadyLauncher(traced_run(), plain, traced_run())
    program = checked(script, launcher).program
    assert [request.records_after for request in launcher.requests] == [0, 0, 40]
    assert program is not None
    (part,), (on_gpu,) = program.parts, program.between
    assert (part.function, part.time_ns) == ("evaluate", 2e6)
    assert on_gpu.device == "T4"
    assert on_gpu.low_ns < on_gpu.time_ns < on_gpu.high_ns


def test_work_of_an_unknown_number_of_steps_is_named(script: str) -> None:
    work = OtherWork(location=Location(file=script, line=7, function="draw"), share=1.0)
    report = checked(script, ReadyLauncher(traced_run(), replace(plain_run(), other_work=(work,))))
    assert report.program is not None
    assert report.program.other_ns is None
    (found,) = [c for c in report.caveats if c.code == "between-not-counted"]
    assert found.message.startswith("train.py:7 (draw) runs in each pass of a loop")


def test_check_and_explain_agree(script: str) -> None:
    launcher, log = ReadyLauncher(traced_run(), plain_run()), ProgressLog()
    check = checked(script, launcher, devices=("t4", "l4"), progress=log)
    assert (launcher.num_entered, log.has_ended) == (1, True)
    again = ReadyLauncher(traced_run(), plain_run())
    explanation = explain_target(script, devices=("t4", "l4"), tries_cpu=False, launcher=again)
    assert again.num_entered == 0  # whose launcher it is ends it
    assert explanation.results == check.results
    assert explanation.verdict == check.verdict
    assert explanation.program == check.program
    for report in (check, explanation):
        assert OLD_TORCH in report.caveats
        assert report.host.torch_version == "2.13.0"


@pytest.fixture
def in_clouds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let GPUs be in cloud machines, of which is kept what was measured."""
    host = reference_host()
    monkeypatch.setattr(
        module, "find_hosts", lambda *a: (with_kinds(host_called("cloud", host), host, a[2]), host)
    )
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))


@pytest.mark.usefixtures("in_clouds")
def test_a_speed_seen_elsewhere_counts_in_this_answer_and_in_later_ones(script: str) -> None:
    def said(*speeds: str) -> CheckReport:
        launcher = ReadyLauncher(traced_run(*(device_op(),) * 100), plain_run())
        return checked(script, launcher, devices=("t4", "a100"), measured=speeds)

    usual = said().results[1:]
    usual_ms = usual[0].step_ns / NS_PER_MS
    speed = f"T4: {1.5 * usual_ms:.4f} ms"
    for report in (said(speed), said()):
        for found, before in zip(report.results[1:], usual, strict=True):
            assert found.step_ns > 1.1 * before.step_ns
            assert f"the usual time as measured by you ({speed}, {script}, " in found.fed_by
    assert [c.code for c in said(speed).caveats].count("measured-speed") == 1
    # A kind that is said is that of this GPU alone.
    t4, a100 = said(f"colab {speed}").results[1:]
    assert t4.fed_by.startswith("container of a hosted notebook, taking")
    assert a100.fed_by.startswith("cloud virtual machine, taking")


@pytest.mark.usefixtures("in_clouds")
def test_an_epoch_has_as_many_steps_as_the_loader_tells(script: str) -> None:
    events, speed = (device_op(),) * 100, ("T4: 1 s/epoch",)
    loader = replace(loader_use(), batches_per_epoch=500)
    second = failure()  # the step has one batch size: nothing more is run
    launcher = ReadyLauncher(traced_run(*events, loader=loader), plain_run(loader=loader), second)
    report = checked(script, launcher, measured=speed)
    (told,) = [c for c in report.caveats if c.code == "measured-speed"]
    assert "that is 2 ms a step" in told.message
    launcher = ReadyLauncher(traced_run(*events), plain_run())
    with pytest.raises(UsageError, match="the steps per epoch are unknown"):
        checked(script, launcher, measured=speed)


def test_a_speed_that_is_none_is_refused_before_any_run(script: str) -> None:
    with pytest.raises(UsageError, match="'340' is no number above 0 with a unit"):
        checked(script, ReadyLauncher(), measured=("T4: 340",))


def test_breakeven_under_torchrun_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="torchrun started breakeven") as refused:
        check_target(str(tmp_path / "train.py"), devices=["T4"])
    assert "WORLD_SIZE=N" in str(refused.value.hint)

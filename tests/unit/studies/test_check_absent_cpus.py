"""A check that names CPUs which are not here."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from breakeven import capture, measure
from breakeven.device import default_devices
from breakeven.errors import BreakevenError, Caveat
from breakeven.simulate import CpuRates
from breakeven.studies import check_step
from breakeven.timing import EMULATED_ON_CPU, Source
from breakeven.verdict import CheckReport
from factories.runs import plain_run, traced_run

CORE = CpuRates(num_cores=1, flop_per_s=1e11, bytes_per_s=2e10)


def checked(
    monkeypatch: pytest.MonkeyPatch,
    *devices: str,
    precision: str = "fp32",
    caveats: tuple[Caveat, ...] = (),
) -> CheckReport:
    run = replace(plain_run(), precision=precision, caveats=caveats)
    monkeypatch.setattr(capture, "time_step", lambda *_, **__: run)
    monkeypatch.setattr(capture, "trace_step", lambda _: traced_run())
    monkeypatch.setattr(measure, "measure_cpu_rates", lambda: CORE)
    return check_step(lambda: None, devices=devices, host="reference")


def test_cpus_are_predicted_beside_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(monkeypatch, "T4", "i9-10940X", "4 cores of EPYC 7763")

    assert [one.device for one in report.absent_cpus] == [
        "Core i9-10940X (14 cores)",
        "EPYC 7763 (4 cores)",
    ]
    for result in report.absent_cpus:
        assert result.source is Source.PREDICTED
        assert result.low_ns < result.step_ns < result.high_ns
        assert [caveat.code for caveat in result.caveats] == ["absent-cpu"]
    assert [one.device for one in report.results] == ["Made-up CPU (2 threads)", "T4"]


def test_the_verdict_is_the_same_with_and_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [gpu.name for gpu in default_devices()]
    with_cpu, without = checked(monkeypatch, "EPYC 9654"), checked(monkeypatch)

    assert [one.device for one in with_cpu.results[1:]] == names
    assert with_cpu.verdict.device == without.verdict.device
    assert with_cpu.verdict.over == without.verdict.over
    assert without.absent_cpus == ()


def test_the_same_cores_take_about_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    (few,) = checked(monkeypatch, "T4", "2 cores of i9-10940X").absent_cpus
    (many,) = checked(monkeypatch, "T4", "i9-10940X").absent_cpus

    # A step of one operator on 32,000 numbers, most of which is Python.
    assert few.step_ns >= many.step_ns
    assert abs(math.log(few.step_ns / 1_000_000)) < math.log(10)


def test_precisions_without_rates_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(monkeypatch, "T4", "i9-10940X", precision="bf16")

    assert report.absent_cpus == ()
    (caveat,) = (one for one in report.caveats if one.code == "absent-cpu-not-predicted")
    assert "bf16" in caveat.message


def test_a_step_of_which_layers_are_emulated_here_says_nothing_of_other_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulated = Caveat(code=EMULATED_ON_CPU, message="bf16 is emulated")
    report = checked(monkeypatch, "T4", "i9-10940X", caveats=(emulated,))

    assert report.absent_cpus == ()
    (caveat,) = (one for one in report.caveats if one.code == "absent-cpu-not-predicted")
    assert "a 16-bit format" in caveat.message


def test_a_cpu_of_which_too_little_is_known_is_refused_before_anything_runs() -> None:
    with pytest.raises(BreakevenError, match="no step can be predicted for the CPU EPYC 7313"):
        check_step(lambda: pytest.fail("ran"), devices=["T4", "EPYC 7313"])

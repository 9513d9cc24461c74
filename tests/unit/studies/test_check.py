from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from breakeven import capture
from breakeven.cost import reference_host
from breakeven.device import FOLDER_VARIABLE
from breakeven.errors import BreakevenError, UnknownDeviceError, UsageError
from breakeven.studies import check_step
from breakeven.timing import Measurement, Source
from breakeven.verdict import NoCrossover
from factories.runs import plain_run, traced_run

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
    assert isinstance(report.crossover, NoCrossover)
    assert "check_step" in report.crossover.none_because  # no command line is involved


def test_a_busy_machine_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Measurement(samples_ns=(24_000_000,) * 9, waited_ns=(20_000_000,) * 9)
    runs = [replace(plain_run(), measurement=busy), plain_run(70_000)]
    monkeypatch.setattr(capture, "time_step", lambda *_, **__: runs.pop(0))
    monkeypatch.setattr(capture, "trace_step", lambda _: traced_run())
    report = check_step(step, devices=["t4"], host="reference")
    assert report.results[0].step_ns == 70_000
    assert report.results[0].caveats == ()
    assert not runs


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

"""What a finding about the CPU predicts for its fix, against the mended script measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.capture import Launcher, find_target
from breakeven.progress import SilentProgress
from breakeven.simulate import Side
from breakeven.studies import Runner, explain_target

pytestmark = [pytest.mark.slow, pytest.mark.timing]

SCRIPT = str(Path(__file__).parent / "scripts" / "denormals.py")


@pytest.mark.usefixtures("slow_subnormals")
def test_flushing_denormals_gains_what_was_predicted() -> None:
    with Launcher() as launcher:
        report = explain_target(SCRIPT, devices=("T4",), host="reference", launcher=launcher)
        target = find_target(SCRIPT, ("--fixed",), is_module=False)
        mended = Runner(launcher, target, 60.0, SilentProgress()).time()

    (finding,) = (each for each in report.findings if each.cause == "DENORMALS")
    as_is_ns = report.results[0].step_ns
    gained = 1 - mended.measurement.estimate.value_ns / as_is_ns
    print(
        f"predicted {finding.gain_fraction:.2f} ({finding.gain_low_fraction:.2f}-"
        f"{finding.gain_high_fraction:.2f}), measured {gained:.2f}"
    )
    assert finding.side is Side.CPU
    assert gained > 0
    # Both are measured in processes of their own, on a machine that others use too.
    assert finding.gain_fraction == pytest.approx(gained, abs=0.25)

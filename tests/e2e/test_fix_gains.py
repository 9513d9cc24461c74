"""What a finding predicts for its fix, against the mended script recorded again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.advise import RuleInput, Sources, diagnose
from breakeven.capture import Launcher, RunRequest, TracedRun, find_target
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import predict_steps
from breakeven.trace import Event, HostWork
from factories.sampled import sampled

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "scripts" / "fixes.py"
# Each function without arguments is a fault, named like its cause.
CAUSES = [name.upper() for name in re.findall(r"^def (\w+)\(\):", SCRIPT.read_text(), re.MULTILINE)]

# One of each kind of edit: a read, a copy, an optimizer, a loop, a format, a layer, other work.
SAMPLE = ("SYNC_ITEM", "H2D_CREATE", "ZERO_GRAD", "TIME_LOOP", "FP64", "CONV_BIAS", "EVAL_OFTEN")


def recorded(launcher: Launcher, *arguments: str) -> TracedRun:
    target = find_target(str(SCRIPT), arguments, is_module=False)
    answer = launcher.run(RunRequest(target=target, is_traced=True, time_limit_s=120))
    assert isinstance(answer, TracedRun), answer
    # Pauses of a busy machine look like work of the script; none of these scripts does any.
    events = tuple(event for event in answer.trace.events if not is_pause(event))
    return replace(answer, trace=replace(answer.trace, events=events))


def is_pause(event: Event) -> bool:
    return isinstance(event, HostWork) and event.kind == "script"


@pytest.mark.parametrize("cause", sampled(CAUSES, *SAMPLE))
def test_mended_script_takes_what_the_finding_predicted(launcher: Launcher, cause: str) -> None:
    faulty = recorded(launcher, cause)
    mended = recorded(launcher, cause, "--fixed")
    device, host = find_device("A100 SXM4 80GB"), reference_host()

    diagnosed = diagnose(
        RuleInput.of(faulty.trace, device, host, sources=Sources.of(faulty.sources))
    )
    found = [one.finding for one in diagnosed if one.finding.cause == cause]
    (before,) = predict_steps(faulty.trace, (device,), host)
    (after,) = predict_steps(mended.trace, (device,), host)
    rest = diagnose(RuleInput.of(mended.trace, device, host, sources=Sources.of(mended.sources)))

    assert found, [one.finding.cause for one in diagnosed]
    best = max(found, key=lambda finding: finding.gain_fraction)
    assert best.fixed_ns is not None
    assert best.fixed_low_ns is not None
    assert best.fixed_high_ns is not None
    print(
        f"{cause}: {before.estimate.value_ns / 1e3:.1f} us, predicted {best.fixed_ns / 1e3:.1f} "
        f"({best.fixed_low_ns / 1e3:.1f}-{best.fixed_high_ns / 1e3:.1f}), "
        f"mended {after.estimate.value_ns / 1e3:.1f}"
    )
    assert best.fixed_low_ns <= after.estimate.value_ns <= best.fixed_high_ns
    assert cause not in {one.finding.cause for one in rest}

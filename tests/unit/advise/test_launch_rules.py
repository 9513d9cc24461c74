"""What the fix of LAUNCH001 gains: the step as torch.compile would make it."""

from __future__ import annotations

import pytest

from breakeven.advise import diagnose
from breakeven.trace import Call, Event, RunFacts
from factories.cases import made_up_case
from factories.steps import model_call, op


def gain(*events: Event, **facts: object) -> float | None:
    case = made_up_case(*events, facts=RunFacts(**facts))  # pyright: ignore[reportArgumentType]
    found = [one.finding for one in diagnose(case) if one.finding.code == "LAUNCH001"]
    return found[0].gain_fraction if found else None


def test_the_model_is_replayed_and_the_rest_issued() -> None:
    """Of ten operators eight are the model's: 10,000 ns to issue become 2,000."""
    call = model_call(has_grad=False, is_used_in_backward=False, num_events=8)
    events = [op(100, host_ns=1000) for _ in range(10)]

    assert gain(*events, model_calls=(call,)) == pytest.approx(0.8, abs=0.03)
    assert gain(*events) == pytest.approx(0.9, abs=0.03)


def test_a_script_that_replays_graphs_already_is_not_told_to() -> None:
    events = [op(100, host_ns=1000) for _ in range(10)]
    call = Call(name="torch.compile", location=None, count=1, argument="Net, mode=reduce-overhead")

    assert gain(*events, calls=(call,)) is None

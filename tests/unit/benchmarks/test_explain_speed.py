"""What it takes to explain a step grows with its number of events, and no faster."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from types import ModuleType

import pytest

from factories.loaded_scripts import load_script

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "explain_speed.py"
FEW, MANY = 300, 1200


@pytest.fixture(scope="module")
def script() -> ModuleType:
    script = load_script(BENCHMARK, "explain_speed")
    script.explain_step(script.operators(100))  # what is read from files once is not counted
    return script


@pytest.mark.parametrize("kind", ["reads", "operators", "evaluations"])
def test_work_per_event_does_not_grow(script: ModuleType, kind: str) -> None:
    few, many = (calls_per_event(script, kind, num_events) for num_events in (FEW, MANY))

    assert many < 1.3 * few


def calls_per_event(script: ModuleType, kind: str, num_events: int) -> float:
    """Return how often functions are called and generators resumed to explain a step."""
    trace = getattr(script, kind)(num_events)
    profile = cProfile.Profile()
    profile.runcall(script.explain_step, trace)
    return pstats.Stats(profile).total_calls / len(trace.events)

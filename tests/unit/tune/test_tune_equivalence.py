"""How many runs with moved weights the gate makes before it says no."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import pytest

from breakeven.capture import FailureKind, Launcher, NumbersRun, RunFailure, RunRequest, find_target
from breakeven.trace import Configuration
from breakeven.tune.equivalence import EquivalenceCheck
from breakeven.verdict import Numerics
from factories.numbers import numbers_of, step_of

CANDIDATE = Configuration(flushes_denormals=True)
WEIGHT = [3.0, -4.0]
# A hundredth is far beyond what another order of additions makes of float32.
CANDIDATE_FACTOR = 1.01
REQUEST = RunRequest(
    target=find_target(__file__, (), is_module=False), is_traced=False, time_limit_s=60
)
FAILURE = RunFailure(kind=FailureKind.EXIT, message="1", num_steps=1)


@dataclass
class MadeUpRecordings:
    """Stands for the launcher: scales the gradient by what the request asks for.

    Args:
        moved: By seed, what a run with moved weights scales it by; None where it fails.
    """

    moved: tuple[float | None, ...] = ()
    folder: Path | None = None
    seeds: list[int] = field(default_factory=list[int])

    def record_numbers(self, request: RunRequest) -> NumbersRun | RunFailure:
        factor: float | None = 1.0
        if request.weight_noise_roundoffs:
            self.seeds.append(request.weight_noise_seed)
            factor = self.moved[request.weight_noise_seed]
        elif request.configuration == CANDIDATE:
            factor = CANDIDATE_FACTOR
        if factor is None:
            return FAILURE
        step = step_of(0.5, {"weight": [factor * value for value in WEIGHT]})
        Path(request.raw_numbers_path.decode()).write_bytes(
            msgspec.msgpack.encode(numbers_of(step, step))
        )
        return NumbersRun(num_steps=2)


def why_not(
    recordings: MadeUpRecordings, numerics: Numerics = Numerics.REORDERED, *, has_time: bool = True
) -> str | None:
    launcher = cast("Launcher", recordings)
    with EquivalenceCheck(launcher, REQUEST, has_time=lambda _: has_time) as gate:
        return gate.check(CANDIDATE, numerics)


@pytest.mark.parametrize(
    ("moved", "seeds"),
    [
        pytest.param((1.02,), [0], id="the first run moves as much"),
        pytest.param((1.0001, 1.0, 0.98), [0, 1, 2], id="only the third does"),
    ],
)
def test_a_change_passes_where_rounding_grows_as_much(
    moved: tuple[float, ...], seeds: list[int]
) -> None:
    recordings = MadeUpRecordings(moved)
    assert why_not(recordings) is None
    assert recordings.seeds == seeds


def test_three_runs_that_hardly_move_are_enough_to_say_no() -> None:
    recordings = MadeUpRecordings((1.0001, 1.0001, 1.0001, 1.02))
    assert "weight" in (why_not(recordings) or "")
    assert recordings.seeds == [0, 1, 2]


def test_a_moved_run_that_fails_is_the_last() -> None:
    recordings = MadeUpRecordings((1.0001, None, 1.02))
    assert why_not(recordings) is not None
    assert recordings.seeds == [0, 1]


def test_without_time_one_moved_run_decides() -> None:
    recordings = MadeUpRecordings((1.0001, 1.02))
    assert why_not(recordings, has_time=False) is not None
    assert recordings.seeds == [0]


def test_to_the_bit_nothing_is_put_down_to_rounding() -> None:
    recordings = MadeUpRecordings()
    assert why_not(recordings, Numerics.EXACT) is not None
    assert recordings.seeds == []


def test_runs_with_moved_weights_serve_all_candidates() -> None:
    recordings = MadeUpRecordings((1.02,))
    with EquivalenceCheck(cast("Launcher", recordings), REQUEST) as gate:
        assert gate.check(CANDIDATE, Numerics.REORDERED) is None
        assert gate.check(CANDIDATE, Numerics.REORDERED) is None
    assert recordings.seeds == [0]

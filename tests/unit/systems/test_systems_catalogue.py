"""Which systems there are, and when a figure agrees with a published one."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

from breakeven.errors import BreakevenError, UsageError
from breakeven.report import ClaimOutcome
from breakeven.systems import SYSTEMS, find_systems, run_system
from breakeven.systems import script_path as path_of
from breakeven.systems.catalogue import FACTS, judge, ratio_of
from factories.systems import estimate


def test_the_six_have_what_runs_them_and_their_scripts() -> None:
    assert [entry.name for entry in SYSTEMS] == [
        "neural-ode", "disc-mlp", "rnn-stream", "shi2016", "device-rules", "weight-update"
    ]  # fmt: skip
    for entry in SYSTEMS:
        module = importlib.import_module(f"breakeven.systems.{entry.name.replace('-', '_')}")
        assert callable(module.run)
        assert all(path_of(script).is_file() for script in entry.scripts)


def test_names_are_found_once_in_their_order() -> None:
    found = find_systems(["shi2016", "disc-mlp", "shi2016"])
    assert [entry.name for entry in found] == ["shi2016", "disc-mlp"]


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no system 'disk-mlp'") as raised:
        find_systems(["disk-mlp"])
    assert "did you mean disc-mlp?" in str(raised.value.hint)


def test_an_unknown_host_is_told_before_anything_runs() -> None:
    with pytest.raises(BreakevenError, match="no-such-cpu"):
        run_system(find_systems(["disc-mlp"])[0], host="no-such-cpu")


_BEYOND = "Within the published range, but its interval exceeds it. "
_INTO = "Outside the published range, but its interval overlaps it. "


@pytest.mark.parametrize(
    ("value", "low", "high", "outcome", "remark"),
    [
        (2.0, 1.5, 3.0, ClaimOutcome.AGREES, ""),  # the ends belong to the band
        (2.0, 1.4, 2.5, ClaimOutcome.AGREES, _BEYOND),
        (2.0, 1.6, 3.1, ClaimOutcome.AGREES, _BEYOND),
        (2.0, 1.6, None, ClaimOutcome.AGREES, _BEYOND),  # the upper end is unknown
        (1.5, 1.4, 1.6, ClaimOutcome.AGREES, _BEYOND),
        (3.9, 2.9, 5.0, ClaimOutcome.OPEN, _INTO),
        (1.2, 1.0, 1.6, ClaimOutcome.OPEN, _INTO),
        (1.2, 1.0, None, ClaimOutcome.OPEN, _INTO),
        (3.9, 3.1, 5.0, ClaimOutcome.DISAGREES, ""),
        (1.2, 1.0, 1.4, ClaimOutcome.DISAGREES, ""),
        (4.0, 3.5, None, ClaimOutcome.DISAGREES, ""),
    ],
)
def test_a_figure_agrees_in_the_band_and_is_open_if_its_interval_reaches_in(
    value: float, low: float, high: float | None, outcome: ClaimOutcome, remark: str
) -> None:
    assert judge(value, low, high, (1.5, 3.0)) == (outcome, remark)


# What was published, and the least and the most that agrees with it. Say why in the change that
# widens a band here.
PINNED = {
    "disc-mlp": (FACTS["disc-mlp"]["parameters"], 3e5, 3e6),
    "weight-update": (64.03 / 32.57, 1.5, 3.0),
    "neural-ode": (math.inf, 10.0, math.inf),  # "orders of magnitude"
    "device-rules": (math.inf, 5.0, math.inf),  # "far slower"
}


def test_no_band_is_wider_than_it_was_fixed_and_each_holds_what_was_published() -> None:
    bands: dict[str, Any] = {name: f["band"] for name, f in FACTS.items() if "band" in f}
    assert bands.keys() == PINNED.keys()
    for name, (figure, low, high) in PINNED.items():
        assert low <= bands[name][0] <= figure <= bands[name][1] <= high, name
    assert FACTS["rnn-stream"]["factor"] <= 1.5
    assert FACTS["rnn-stream"]["speeds"] == [[100, 650.0, 340.0], [10_000, 15.0, 145.0]]


def test_independent_errors_add_in_squares() -> None:
    ratio = ratio_of(estimate(6.0, spread=math.exp(0.3)), estimate(2.0, spread=math.exp(0.4)))
    assert ratio == pytest.approx((3.0, 3.0 / math.exp(0.5), 3.0 * math.exp(0.5)))
    assert str(ratio_of(estimate(6.0, spread=2), estimate(2.0, spread=1))) == "3× (1.5–6×)"

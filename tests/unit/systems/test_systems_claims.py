"""Whether a figure counts as agreeing, and how uncertain a ratio is."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from breakeven.systems import published
from breakeven.systems.catalogue import judge, ratio_of
from breakeven.systems.published import (
    DISC_MLP_CROSSOVER_PARAMETERS,
    RNN_STREAM_SPEEDS,
    WEIGHT_UPDATE_SPEEDUP,
    Band,
)
from breakeven.verdict import ClaimOutcome
from factories.systems import estimate

BAND = Band(low=1.5, high=3.0)


@pytest.mark.parametrize(
    ("value", "low", "high", "outcome"),
    [
        (2.0, 1.0, 4.0, ClaimOutcome.AGREES),
        (1.5, 1.4, 1.6, ClaimOutcome.AGREES),  # the ends belong to the band
        (3.9, 2.9, 5.0, ClaimOutcome.OPEN),
        (1.2, 1.0, 1.6, ClaimOutcome.OPEN),
        (1.2, 1.0, None, ClaimOutcome.OPEN),  # the upper end is unknown
        (3.9, 3.1, 5.0, ClaimOutcome.DISAGREES),
        (1.2, 1.0, 1.4, ClaimOutcome.DISAGREES),
        (4.0, 3.5, None, ClaimOutcome.DISAGREES),
    ],
)
def test_a_figure_agrees_in_the_band_and_is_open_where_its_interval_reaches_in(
    value: float, low: float, high: float | None, outcome: ClaimOutcome
) -> None:
    assert judge(value, low, high, BAND).outcome is outcome


@pytest.mark.parametrize(
    ("value", "low", "high", "remark"),
    [
        (2.0, 1.5, 3.0, ""),
        (2.0, 1.4, 2.5, "Within the band, but its interval reaches beyond it. "),
        (2.0, 1.6, 3.1, "Within the band, but its interval reaches beyond it. "),
        (2.0, 1.6, None, "Within the band, but its interval reaches beyond it. "),
        (3.9, 2.9, 5.0, "Outside of the band, but its interval reaches into it. "),
        (3.9, 3.1, 5.0, ""),
    ],
)
def test_an_interval_that_says_more_than_its_figure_is_remarked_on(
    value: float, low: float, high: float | None, remark: str
) -> None:
    assert judge(value, low, high, BAND).remark == remark


# What was published, and the least and the most that agrees with it. Whoever widens a band says why
# in the change that raises its figure here.
_BY_COLAB = {speed.batch_size: speed.ratio for speed in RNN_STREAM_SPEEDS}
PINNED = {
    "DISC_MLP_BAND": (DISC_MLP_CROSSOVER_PARAMETERS, 3e5, 3e6),
    "RNN_STREAM_BANDS 100": (_BY_COLAB[100], 0.348, 0.785),
    "RNN_STREAM_BANDS 10000": (_BY_COLAB[10_000], 6.44, 14.5),
    "WEIGHT_UPDATE_BAND": (WEIGHT_UPDATE_SPEEDUP, 1.5, 3.0),
    "NEURAL_ODE_BAND": (math.inf, 10.0, math.inf),  # "orders of magnitude"
    "DEVICE_COPY_BAND": (math.inf, 5.0, math.inf),  # "far slower"
}


def bands() -> dict[str, Band]:
    """Return every band of the systems by its name, and key where there are several."""
    named: dict[str, Band] = {}
    for name, value in vars(published).items():
        if isinstance(value, Band):
            named[name] = value
        elif isinstance(value, dict):
            named |= {f"{name} {key}": b for key, b in value.items() if isinstance(b, Band)}
    return named


def test_no_band_is_wider_than_it_was_fixed_and_each_holds_what_was_published() -> None:
    found = bands()
    assert found.keys() == PINNED.keys()
    for name, (figure, low, high) in PINNED.items():
        assert low <= found[name].low <= figure <= found[name].high <= high, name


def test_every_band_stands_beside_the_published_figures() -> None:
    folder = Path(published.__file__).parent
    makers = {path.name for path in folder.glob("*.py") if re.search(r"\bBand\(", path.read_text())}
    assert makers == {"published.py"}


def test_independent_errors_add_in_squares() -> None:
    ratio = ratio_of(estimate(6.0, spread=math.exp(0.3)), estimate(2.0, spread=math.exp(0.4)))
    assert ratio.value == pytest.approx(3.0)
    assert ratio.low == pytest.approx(3.0 / math.exp(0.5))
    assert ratio.high == pytest.approx(3.0 * math.exp(0.5))


def test_a_ratio_is_shown_with_its_interval() -> None:
    assert str(ratio_of(estimate(6.0, spread=2), estimate(2.0, spread=1))) == "3× (1.5–6×)"

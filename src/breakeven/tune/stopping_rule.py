"""When enough runs were made to say whether a rival is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from breakeven.settings import Candidate
from breakeven.timing import BUSY_FRACTION, Speedup
from breakeven.tune.paired_runs import Rival

# Less than this is not worth a setting that somebody must know of; the confirmation asks for it.
WORTHWHILE = 1.02
# What a rival must be faster by to be taken along to the confirmation: several small gains may
# add up to a worthwhile one.
_FASTER = 1.005
# One pair says nothing that one outlier of the machine would not say as well.
_FEWEST_PAIRS = 2
# More pairs narrow the interval slowly, and each costs two runs.
_MOST_PAIRS = 6
# Two that differ by no more than this factor are as fast; where a tie is to be won, after so many
# pairs.
_TIE = 1.02
_PAIRS_OF_TIE = 3
# On a loaded machine the interval is wider.
_MOST_PAIRS_LOADED = 8
# A rival is given up when the upper end of its one-sided 80 % interval is not worthwhile: to give
# up a good one costs speed, never correctness, and most rivals are not faster.
_GIVING_UP_CONFIDENCE = 0.60


class Decision(Enum):
    """What is known of a rival."""

    FASTER = "faster"
    NOT_FASTER = "not faster"
    UNDECIDED = "undecided"


def searched_speedup(rival: Rival) -> Speedup:
    """Return the speedup with an interval that may be looked at after each pair."""
    return rival.speedup(num_looks=_MOST_PAIRS_LOADED)


def is_hopeless(rival: Rival, needed: float = WORTHWHILE) -> bool:
    """Return whether a rival does not look as fast as ``needed`` any more."""
    return rival.speedup(_GIVING_UP_CONFIDENCE).high < needed


def is_promising(rival: Rival) -> bool:
    """Return whether a rival is faster so far, by what it takes to be worthwhile."""
    return rival.num_pairs > 0 and rival.speedup().value >= WORTHWHILE


def decide(rival: Rival, *, wins_ties: bool = False) -> Decision:
    """Return whether the runs so far show that a rival is faster than its base, or is not.

    Faster needs an interval above 1 that holds for all looks together. Not faster is what does
    not look worthwhile any more, and what stays undecided after the last pair.

    Args:
        rival: What has run so far.
        wins_ties: It need only be as fast.
    """
    speedup = searched_speedup(rival)
    if rival.num_pairs >= _FEWEST_PAIRS and speedup.low > _FASTER:
        return Decision.FASTER
    if wins_ties and rival.num_pairs >= _PAIRS_OF_TIE and speedup.value * _TIE > 1.0:
        return Decision.FASTER
    needed = 1.0 / _TIE if wins_ties and rival.num_pairs < _PAIRS_OF_TIE else WORTHWHILE
    if is_hopeless(rival, needed):
        return Decision.NOT_FASTER
    is_loaded = rival.load_fraction >= BUSY_FRACTION
    most = _MOST_PAIRS_LOADED if is_loaded else _MOST_PAIRS
    return Decision.NOT_FASTER if rival.num_pairs >= most else Decision.UNDECIDED


def fastest_first(
    family: Sequence[Candidate], faster: Sequence[Candidate], rivals: Mapping[str, Rival]
) -> list[Candidate]:
    """Return candidates by speed; of all as fast as the fastest, those listed first lead.

    Args:
        family: In the order that wins ties: the simpler first.
        faster: Those of them to return.
        rivals: How fast each is, by its name.
    """
    speeds = {each.name: searched_speedup(rivals[each.name]).value for each in faster}
    best = max(speeds.values(), default=1.0)
    listed = [each for each in family if each.name in speeds]
    return sorted(listed, key=lambda each: -min(speeds[each.name], best / _TIE))

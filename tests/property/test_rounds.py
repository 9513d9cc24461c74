from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.timing import find_round_ends


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        ([], ()),
        ([0], (0,)),
        ([0, 0, 0], (0, 1, 2)),
        # A GAN: discriminator, then generator.
        ([0, 1, 0, 1, 0, 1], (1, 3, 5)),
        # Cut off after a discriminator: the incomplete round has no end.
        ([0, 1, 0, 1, 0], (1, 3)),
        ([0, 1, 0], (1,)),
        # Five critic updates for one of the generator.
        ([0, 0, 0, 0, 0, 1] * 2, (5, 11)),
        ([0, 0, 0, 0, 0, 1, 0, 0], (5,)),
        # The generator comes first in each round, and is still the one that is called least.
        ([0, 1, 1, 1, 0, 1, 1, 1], (0, 4)),
        # Three networks, each once a round.
        ([0, 1, 2, 0, 1, 2, 0], (2, 5)),
        # Networks that are trained one after another, with an optimizer made anew each time,
        ([0] * 5 + [1] * 4 + [2], tuple(range(10))),
        # and with one that each keeps.
        (([0] * 5 + [1] * 7 + [2] * 4) * 2 + [0], tuple(range(33))),
        # Two may be a critic and a generator.
        ([0] * 5 + [1] * 5 + [0], (5, 6, 7, 8, 9)),
        # No optimizer of the step is numbered: a function that is a step itself.
        ([-1, -1], (0, 1)),
    ],
)
def test_rounds_of_known_loops(calls: list[int], ends: tuple[int, ...]) -> None:
    assert find_round_ends(calls) == ends


ROUND = st.permutations(range(4)).flatmap(
    lambda order: st.integers(1, 4).map(lambda count: order[:count])
)


@given(order=ROUND, num_rounds=st.integers(1, 20), data=st.data())
def test_every_round_of_equals_ends_with_its_last_optimizer(
    order: list[int], num_rounds: int, data: st.DataObject
) -> None:
    rest = data.draw(st.integers(0, len(order) - 1), label="calls of the round that is cut off")
    calls = order * num_rounds + order[:rest]
    expected = [len(order) * (number + 1) - 1 for number in range(num_rounds)]
    assert find_round_ends(calls) == tuple(expected)


@given(
    updates=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    num_rounds=st.integers(2, 20),
    data=st.data(),
)
def test_complete_rounds_hold_every_optimizer(
    updates: list[int], num_rounds: int, data: st.DataObject
) -> None:
    # Some critics with several updates each, then one update of the generator.
    one_round = [number for number, count in enumerate(updates) for _ in range(count)]
    one_round.append(len(updates))
    cut = data.draw(st.integers(0, len(one_round) - 1), label="calls of the round that is cut off")
    calls = one_round * num_rounds + one_round[:cut]
    ends = find_round_ends(calls)
    assert list(ends) == sorted(set(ends))
    assert len(ends) == num_rounds
    start = 0
    for end in ends:
        assert set(calls[start : end + 1]) == set(one_round)
        start = end + 1


@given(calls=st.lists(st.integers(0, 3), max_size=40))
def test_ends_are_the_calls_of_one_optimizer(calls: list[int]) -> None:
    ends = find_round_ends(calls)
    # Where each takes its turn, there are no rounds.
    assume(len(ends) < len(calls) or len(set(calls)) < 2)
    assert all(earlier < later for earlier, later in itertools.pairwise(ends))
    assert len({calls[end] for end in ends}) == bool(calls)
    if calls:
        assert len(ends) == calls.count(calls[ends[0]])
        # No optimizer is called less than that one, but for a round that was cut off.
        assert all(len(ends) <= calls.count(number) + 1 for number in calls)


def test_an_optimizer_made_anew_for_every_step_ends_it() -> None:
    assert find_round_ends(range(40)) == tuple(range(40))

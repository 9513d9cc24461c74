"""Which optimizer calls end a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

# No training updates more sets of weights in turn than this.
_MOST_OPTIMIZERS = 32


def find_round_ends(calls: Sequence[int]) -> tuple[int, ...]:
    """Return the positions in ``calls`` at which a training step ends.

    With one optimizer every call ends a step. With several (a GAN), a step is one round of all
    of them: it ends with the optimizer that is called least often, since five critic updates and
    one generator update make one round; among equals, with the one that comes last in a round.

    Args:
        calls: For every call of ``optimizer.step()``, in order, the number of its optimizer.
    """
    counts = Counter(calls)
    if not counts:
        return ()
    if len(counts) > _MOST_OPTIMIZERS and max(counts.values()) == 1:
        # A script that makes a new optimizer for every step has no rounds.
        return tuple(range(len(calls)))
    fewest = min(counts.values())
    # A round may be cut off at either end: a difference of one call is no difference.
    are_equal = max(counts.values()) <= fewest + 1
    rare = [number for number, count in counts.items() if are_equal or count == fewest]
    last = max(rare, key=calls.index)
    return tuple(position for position, number in enumerate(calls) if number == last)

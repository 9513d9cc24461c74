"""Which samples are steps: where a warm-up ends, and which optimizer calls end a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np


def find_warmup(samples_ns: Sequence[float]) -> int:
    """Return how many leading samples belong to the warm-up.

    The marginal standard error rule: drop the number of samples that makes the mean of the rest
    most certain. Samples are clipped at three times their median first, so that one outlier late
    in the run cannot pass for a warm-up that lasts until then; at most half are dropped.

    Args:
        samples_ns: Durations in the order in which they were taken.

    Source: K. P. White, "An effective truncation heuristic for bias reduction in simulation
    output", Simulation 69(6), 1997 (MSER).
    """
    count = len(samples_ns)
    if count < 2:
        return 0
    if count < 5:
        # Too few for a variance to say anything; the first step allocates and initialises.
        return 1
    values = np.array(samples_ns, dtype=float)  # a copy: it is clipped below
    ceiling = 3.0 * float(np.median(values[count // 2 :]))
    # The first half keeps its height, since a slow start is what is looked for.
    values[count // 2 :] = np.minimum(values[count // 2 :], ceiling)
    # Sums over all that is left, for each number dropped; of distances, which do not cancel.
    distances = values - np.median(values)
    num_left = np.arange(count, 0, -1)
    means = np.cumsum(distances[::-1])[::-1] / num_left
    squares = np.cumsum(distances[::-1] ** 2)[::-1] / num_left
    errors = np.maximum(squares - means**2, 0.0) / num_left
    return max(1, int(np.argmin(errors[: count // 2 + 1])))


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

"""In how many parts each statement of a step is done, so that threads can share it.

The parts are fixed when the code is generated: a sum is the same one for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from faststep.codegen.program import Loop, Program, Statement, count

# Costs are in numbers multiplied and added, of which some 50 take a nanosecond.
# A part takes 10 us: to hand it out, less than one; and who is late has little left to wait for.
_PART = 500_000
# Of all that can be shared in a step, 150 us: to wake a thread may take 50.
_LEAST_SHARED = 7_500_000
# What takes 100 us.
_LONG = 5_000_000
# For more threads than have been measured.
_MOST_PARTS = 32
# Parts of the samples: what each takes besides for a statement, and which share all of that may be,
# with writing and reading what is summed over parts.
_MOST_SAMPLE_PARTS, _STATEMENT, _MOST_EXTRA = 8, 1_000, 0.07
# What a loop does for each element: an operator; a value read or written, mostly in the second
# cache; an operator that calls a function, which is a polynomial.
_OPERATOR, _ACCESS, _FUNCTION = 0.2, 2.0, 6.0


def choose_parts(statements: Sequence[tuple[Statement, int]]) -> list[int]:
    """Return the number of parts of each statement; 1 where it is done as a whole.

    Args:
        statements: The step's, and in how many parts each can be done.
    """
    costs = [_cost(statement) for statement, _ in statements]
    wanted = [
        max(1, min(_MOST_PARTS, int(cost / _PART), most))
        for cost, (_, most) in zip(costs, statements, strict=True)
    ]
    shared = sum(cost for cost, parts in zip(costs, wanted, strict=True) if parts > 1)
    return wanted if shared >= _LEAST_SHARED else [1] * len(wanted)


def choose_sample_parts(half: Program, num_samples: int, lanes: int) -> int:
    """Return in how many parts of its samples a step is done; 0 where it is not divided.

    Args:
        half: What is done for half of the samples.
        num_samples: How many there are.
        lanes: Elements of float32 in a vector.
    """
    costs = [2 * _cost(statement) for statement in half.statements]
    total = sum(costs)
    if sum(cost for cost in costs if cost >= 2 * _PART) >= _LEAST_SHARED:
        return 0  # its statements are shared, by any number of threads
    sums = sum(count(view.shape) for view in half.kept)
    chosen, parts = 0, 2
    while (
        parts <= _MOST_SAMPLE_PARTS
        and num_samples % (parts * lanes) == 0
        and total / parts >= _PART
        and 2 * _ACCESS * parts * sums + (parts - 1) * len(half.statements) * _STATEMENT
        <= _MOST_EXTRA * total
    ):
        chosen, parts = parts, 2 * parts
    return chosen


def is_long(statements: Sequence[Statement]) -> bool:
    """Return whether waking a thread takes a small part of the time of statements."""
    return sum(map(_cost, statements)) >= _LONG


def _cost(statement: Statement) -> float:
    if not isinstance(statement, Loop):
        return statement.operations
    accesses = len(statement.reads()) + len(statement.writes())
    functions = sum("_" in element.expression for element in statement.elements)
    operators = len(statement.elements) - functions
    cost = _OPERATOR * operators + _ACCESS * accesses + _FUNCTION * functions
    return cost * count(statement.shape)

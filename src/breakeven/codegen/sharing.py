"""In how many parts each statement of a step is done, so that threads can share it.

The parts are fixed when the code is generated: a sum is the same one for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.codegen.program import Loop, Statement, count

# Costs are in numbers multiplied and added, of which some 50 take a nanosecond.
# A part takes 10 us: to hand it out, less than one; and who is late has little left to wait for.
_PART = 500_000
# Of all that can be shared in a step, 150 us: to wake a thread may take 50.
_LEAST_SHARED = 7_500_000
# For more threads than have been measured.
_MOST_PARTS = 32
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


def _cost(statement: Statement) -> float:
    if not isinstance(statement, Loop):
        return statement.operations
    accesses = len(statement.reads()) + len(statement.writes())
    functions = sum("_" in element.expression for element in statement.elements)
    operators = len(statement.elements) - functions
    cost = _OPERATOR * operators + _ACCESS * accesses + _FUNCTION * functions
    return cost * count(statement.shape)

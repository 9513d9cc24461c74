"""What the script makes of a time that it took."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from breakeven.doctor.timing_walk import Timed
from breakeven.source import LOOP_STATEMENTS, Source, dotted_name

# Dividing by these turns one unit into another.
_UNITS = frozenset({60, 3600, 1000, 1_000_000, 1_000_000_000})
_MEANS = frozenset({"mean", "fmean", "average"})
# So many names a value may pass through.
_MAX_NAMES = 4


def is_used(source: Source, difference: ast.AST) -> bool:
    """Return whether a time is shown, kept or computed with, rather than compared with a limit."""
    for use in _uses(source, difference, _MAX_NAMES):
        if not isinstance(use, (ast.Compare, ast.Assign, ast.AnnAssign)):
            return True
    return False


def is_mean(source: Source, timed: Timed) -> bool:
    """Return whether a mean over steps, the first included, is made of a time.

    Either a time of many steps is divided by their number (or the other way round), or the times
    of single steps are collected and their mean is taken.
    """
    is_started_in_loop = any(
        isinstance(above, LOOP_STATEMENTS) for above in source.parents(timed.start)
    )
    if timed.loops:
        return not is_started_in_loop and any(
            isinstance(use, ast.BinOp)
            for shown in {timed.difference, timed.shown}
            for use in _uses(source, shown, _MAX_NAMES)
        )
    if not is_started_in_loop or _is_guarded(source, timed.difference):
        return False
    return any(
        _is_averaged(source, keeper)
        for use in _uses(source, timed.difference, _MAX_NAMES)
        if (keeper := _keeper(use))
    )


def iterations(source: Source, loop: ast.AST) -> int | None:
    """Return how often a loop runs, where ``range`` and constants say so."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return None
    call = loop.iter
    if isinstance(call, ast.Call) and dotted_name(call.func).endswith(("tqdm", "trange")):
        call = call if dotted_name(call.func).endswith("trange") else next(iter(call.args), call)
    if not isinstance(call, ast.Call) or not dotted_name(call.func).endswith("range"):
        return None
    bounds = [_whole_number(source, given) for given in call.args]
    known = [bound for bound in bounds if bound is not None]
    if len(known) != len(bounds) or not known:
        return None
    return known[0] if len(known) == 1 else max(0, known[1] - known[0])


def _whole_number(source: Source, node: ast.AST) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if not isinstance(node, ast.Name):
        return None
    values = [
        assigned.value
        for assigned in source.nodes(ast.Assign)
        if isinstance(assigned, ast.Assign)
        and any(
            isinstance(target, ast.Name) and target.id == node.id for target in assigned.targets
        )
    ]
    return _whole_number(source, values[0]) if len(values) == 1 and _is_number(values[0]) else None


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


def _uses(source: Source, node: ast.AST, names_left: int) -> Iterator[ast.AST]:
    """Yield what a value ends in: a division, a comparison, a call, a statement."""
    inner, above = node, source.parent(node)
    while above is not None:
        if isinstance(above, ast.Compare):
            yield above
            return
        if isinstance(above, ast.BinOp) and isinstance(above.op, (ast.Div, ast.FloorDiv)):
            other = above.left if above.right is inner else above.right
            if not (isinstance(other, ast.Constant) and other.value in _UNITS):
                yield above
                return
        if isinstance(above, ast.Call) and _collects(above) is not None:
            yield above
            return
        if isinstance(above, ast.stmt):
            break
        inner, above = above, source.parent(above)
    if isinstance(above, (ast.Assign, ast.AnnAssign)):
        yield from _uses_of_names(source, above, names_left)
    elif above is not None:
        yield above


def _uses_of_names(
    source: Source, statement: ast.Assign | ast.AnnAssign, names_left: int
) -> Iterator[ast.AST]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        if not isinstance(target, ast.Name):
            # An attribute or an item outlives the function; it is kept for something.
            yield target
            if isinstance(target, ast.Attribute) and names_left:
                for load in _loads_of_attribute(source, target):
                    yield from _uses(source, load, names_left - 1)
        elif names_left:
            for load in _loads(source, target.id):
                yield from _uses(source, load, names_left - 1)


def _loads(source: Source, name: str) -> list[ast.AST]:
    return [
        node
        for node in source.nodes(ast.Name, ast.Attribute)
        if isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and dotted_name(node) == name
    ]


def _loads_of_attribute(source: Source, target: ast.Attribute) -> list[ast.AST]:
    """Return where an attribute is read, whatever the object is called there."""
    return [
        node
        for node in source.nodes(ast.Attribute)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and node.attr == target.attr
    ]


def _collects(call: ast.Call) -> str | None:
    """Return the name of the list that a call appends to."""
    name, _, method = dotted_name(call.func).rpartition(".")
    return name if method == "append" and name else None


def _keeper(use: ast.AST) -> str | None:
    """Return the list or sum that a use puts a time into."""
    if isinstance(use, ast.Call):
        return _collects(use)
    if isinstance(use, ast.AugAssign) and isinstance(use.op, ast.Add):
        return dotted_name(use.target)
    return None


def _is_averaged(source: Source, keeper: str) -> bool:
    """Return whether the mean of all that a list or sum holds is taken."""
    is_mean = False
    for load in _loads(source, keeper):
        above = source.parent(load)
        if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Slice):
            return False  # `times[5:]` leaves the first ones out
        if isinstance(above, ast.Attribute) and above.attr in {"pop", "remove", "clear"}:
            return False
        is_mean = is_mean or _is_in_mean(source, load)
    return is_mean


def _is_in_mean(source: Source, load: ast.AST) -> bool:
    for above in source.parents(load):
        if isinstance(above, ast.Call) and dotted_name(above.func).rpartition(".")[2] in _MEANS:
            return True
        if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div):
            divisor = above.right
            return not (isinstance(divisor, ast.Constant) and divisor.value in _UNITS)
        if isinstance(above, ast.stmt):
            return False
    return False


def _is_guarded(source: Source, node: ast.AST) -> bool:
    """Return whether a condition within the loop decides whether a time counts."""
    for above in source.parents(node):
        if isinstance(above, LOOP_STATEMENTS):
            return False
        if isinstance(above, (ast.If, ast.IfExp)):
            return True
    return False

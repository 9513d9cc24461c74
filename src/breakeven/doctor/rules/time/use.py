"""What the script makes of a time that it took."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from breakeven.doctor.rules.time.walk import Timed
from breakeven.source import LOOP_STATEMENTS, SourceFile, dotted_name, last_name, plain_name

# Dividing by these turns one unit into another.
_UNITS = frozenset({60, 3600, 1000, 1_000_000, 1_000_000_000})
_MEANS = frozenset({"mean", "fmean", "average"})
# So many names a value may pass through.
_MAX_NAMES = 4


def is_used(timed: Timed) -> bool:
    """Return whether a time is shown, kept or computed with, rather than compared with a limit."""
    return any(
        not isinstance(use, (ast.Compare, ast.Assign, ast.AnnAssign))
        for use in _uses(timed.end.source, timed.difference)
    )


def is_mean(timed: Timed) -> bool:
    """Return whether a mean over steps, the first included, is made of a time.

    Either a time of many steps is divided by their number (or the other way round), or the times
    of single steps are collected and their mean is taken.
    """
    source = timed.source
    if timed.loops:
        return not source.is_in_loop(timed.start.node) and any(
            isinstance(use, ast.BinOp)
            for shown in {timed.difference, timed.shown}
            for use in _uses(source, shown)
        )
    if not source.is_in_loop(timed.start.node) or _is_guarded(source, timed.difference):
        return False
    keepers = map(_keeper, _uses(source, timed.difference))
    return any(_is_averaged(source, keeper) for keeper in keepers if keeper)


def iterations(source: SourceFile, loop: ast.AST) -> int | None:
    """Return how often a loop runs, where ``range`` and constants say so."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return None
    call = loop.iter
    if isinstance(call, ast.Call) and dotted_name(call.func).endswith("tqdm"):
        call = next(iter(call.args), call)
    # `trange` ends so too.
    if not isinstance(call, ast.Call) or not dotted_name(call.func).endswith("range"):
        return None
    bounds = [_whole_number(source, given) for given in call.args]
    known = [bound for bound in bounds if bound is not None]
    if len(known) != len(bounds) or not known:
        return None
    return known[0] if len(known) == 1 else max(0, known[1] - known[0])


def _whole_number(source: SourceFile, node: ast.AST) -> int | None:
    if isinstance(node, ast.Name):
        values = [own.value for own in source.bindings if plain_name(own.target) == node.id]
        node = values[0] if len(values) == 1 else node
    is_known = isinstance(node, ast.Constant) and type(node.value) is int
    return node.value if is_known else None  # pyright: ignore


def _uses(source: SourceFile, node: ast.AST, names_left: int = _MAX_NAMES) -> Iterator[ast.AST]:
    """Yield what a value ends in: a division, a comparison, a call, a statement."""
    inner = node
    for above in source.parents(node):
        is_end = isinstance(above, ast.Compare) or _collects(above) is not None
        if isinstance(above, ast.BinOp) and isinstance(above.op, (ast.Div, ast.FloorDiv)):
            is_end = not _is_unit(above.left if above.right is inner else above.right)
        if isinstance(above, (ast.Assign, ast.AnnAssign)):
            targets = above.targets if isinstance(above, ast.Assign) else [above.target]
            yield from _uses_of_names(source, targets, names_left)
            return
        if is_end or isinstance(above, ast.stmt):
            yield above
            return
        inner = above


def _uses_of_names(
    source: SourceFile, targets: Sequence[ast.expr], names_left: int
) -> Iterator[ast.AST]:
    for target in targets:
        if not isinstance(target, ast.Name):
            # An attribute or an item outlives the function; it is kept for something.
            yield target
        if names_left:
            for load in _loads(source, target):
                yield from _uses(source, load, names_left - 1)


def _loads(source: SourceFile, target: ast.expr) -> Sequence[ast.AST]:
    """Return where a name is read; an attribute, whatever the object is called there."""
    if isinstance(target, ast.Name):
        return source.reads_of(target.id)
    if not isinstance(target, ast.Attribute):
        return ()
    same = (node for node in source.nodes(ast.Attribute) if node.attr == target.attr)
    return [node for node in same if isinstance(node.ctx, ast.Load)]


def _collects(node: ast.AST) -> str | None:
    """Return the name of the list that a call appends to."""
    if not isinstance(node, ast.Call):
        return None
    name, _, method = dotted_name(node.func).rpartition(".")
    return name if method == "append" and name else None


def _keeper(use: ast.AST) -> str | None:
    """Return the list or sum that a use puts a time into."""
    if isinstance(use, ast.AugAssign) and isinstance(use.op, ast.Add):
        return dotted_name(use.target)
    return _collects(use)


def _is_averaged(source: SourceFile, keeper: str) -> bool:
    """Return whether the mean of all that a list or sum holds is taken."""
    loads = source.reads_of(keeper)
    for above in map(source.parent, loads):
        if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Slice):
            return False  # `times[5:]` leaves the first ones out
        if isinstance(above, ast.Attribute) and above.attr in {"pop", "remove", "clear"}:
            return False
    return any(_is_in_mean(source, load) for load in loads)


def _is_in_mean(source: SourceFile, load: ast.AST) -> bool:
    for above in source.parents(load):
        if isinstance(above, ast.Call) and last_name(above.func) in _MEANS:
            return True
        if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div):
            return not _is_unit(above.right)
        if isinstance(above, ast.stmt):
            return False
    return False


def _is_unit(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in _UNITS


def _is_guarded(source: SourceFile, node: ast.AST) -> bool:
    """Return whether a condition within the loop decides whether a time counts."""
    kinds = (*LOOP_STATEMENTS, ast.If, ast.IfExp)
    first = next((above for above in source.parents(node) if isinstance(above, kinds)), None)
    return isinstance(first, (ast.If, ast.IfExp))

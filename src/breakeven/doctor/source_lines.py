"""The line that a setting or a layer comes from, by the run's calls and by the source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from breakeven.doctor.rule import Case
from breakeven.source import Source, Sources, dotted_name, keyword
from breakeven.trace import Call, Location, Op

# Dimensions of a layer, as written: those that are plain numbers, by position in its call.
_NUM_SIZES = 2


def recorded_calls(case: Case, *names: str) -> tuple[Call, ...]:
    """Return the run's noted calls whose dotted name ends with one of ``names``."""
    return tuple(
        call
        for call in case.facts.calls
        if any(call.name == name or call.name.endswith("." + name) for name in names)
    )


def called_at(case: Case, *names: str) -> Location | None:
    """Return the user's line that calls one of ``names``: as recorded, else by the source."""
    recorded = (call.location for call in recorded_calls(case, *names) if call.location)
    return next(recorded, None) or next(
        (source.location(call) for source, call in calls_in(case.sources, *names)), None
    )


def calls_in(sources: Sources, *names: str) -> Iterator[tuple[Source, ast.Call]]:
    """Yield the calls of one of ``names``, file by file."""
    for source in sources:
        for call in source.calls(*names):
            yield source, call


def assigned_at(
    sources: Sources, name: str, is_value: Callable[[ast.expr], bool]
) -> Location | None:
    """Return the line that assigns a value to an attribute such as ``cudnn.benchmark``.

    Args:
        sources: The user's files.
        name: Last parts of the dotted name.
        is_value: Whether the assigned value is the one that is looked for.
    """
    for source in sources:
        for node in source.nodes(ast.Assign):
            assert isinstance(node, ast.Assign)
            named = [dotted_name(target) for target in node.targets]
            if any(f".{target}".endswith(f".{name}") for target in named) and is_value(node.value):
                return source.location(node)
    return None


def line_of_layer(
    sources: Sources, op: Op, kinds: tuple[str, ...], sizes: tuple[int, ...] = ()
) -> Location | None:
    """Return the line that makes the layer of an operator, else the line that calls it.

    Args:
        sources: The user's files.
        op: An operator of the layer.
        kinds: As in ``layer_at``.
        sizes: As there.
    """
    made = layer_at(sources, op.module, kinds, sizes) if op.module else None
    return made[0].location(made[1]) if made else op.location


def layer_at(
    sources: Sources, module: str, kinds: tuple[str, ...], sizes: tuple[int, ...] = ()
) -> tuple[Source, ast.Call] | None:
    """Return the call that makes a layer; None where several could, and no name tells which.

    Args:
        sources: The user's files.
        module: Dotted path of the layer: ``Net.encoder.conv1``.
        kinds: Names of its class: ``Conv2d``.
        sizes: Its first arguments, as far as they are written as numbers: channels in and out.
    """
    fitting = [
        (source, call) for source, call in calls_in(sources, *kinds) if _has_sizes(call, sizes)
    ]
    attribute = next((part for part in reversed(module.split(".")) if not part.isdigit()), "")
    is_indexed = module.rpartition(".")[2].isdigit()
    named = [
        (source, call)
        for source, call in fitting
        if attribute and _is_made_for(source, call, attribute)
    ]
    candidates = named or fitting
    if len(candidates) == 1 or (named and not is_indexed):
        return candidates[0]
    if not is_indexed:
        return None
    at_index = [
        (source, call)
        for source, call in candidates
        if _index_of(source, call) == int(module.rpartition(".")[2])
    ]
    return at_index[0] if len(at_index) == 1 else None


def _has_sizes(call: ast.Call, sizes: tuple[int, ...]) -> bool:
    """Return whether the numbers in the call do not contradict ``sizes``."""
    for given, size in zip(call.args[:_NUM_SIZES], sizes, strict=False):
        value = given.value if isinstance(given, ast.Constant) else None
        if isinstance(value, int) and value != size:
            return False
    names = (("in_channels", "in_features"), ("out_channels", "out_features"))
    for alternatives, size in zip(names, sizes, strict=False):
        for name in alternatives:
            value = keyword(call, name)
            if isinstance(value, ast.Constant) and value.value != size:
                return False
    return True


def _is_made_for(source: Source, call: ast.Call, attribute: str) -> bool:
    """Return whether the call is part of what is assigned to ``self.attribute`` or a variable."""
    inside: ast.AST = call
    for parent in source.parents(call):
        if isinstance(parent, ast.Assign):
            return any(
                dotted_name(name).rpartition(".")[2] == attribute
                for target in parent.targets
                for name in _names_of(target, parent.value, inside)
            )
        if not isinstance(parent, ast.Tuple):
            inside = parent
        if isinstance(parent, ast.stmt):
            return False
    return False


def _names_of(target: ast.expr, value: ast.expr, inside: ast.AST) -> tuple[ast.expr, ...]:
    """Return what a part of the value is assigned to: ``self.a, self.b = one, other``."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return (target,)
    pairs = zip(target.elts, value.elts, strict=False)
    return tuple(name for name, part in pairs if part is inside)


def _index_of(source: Source, call: ast.Call) -> int | None:
    """Return the position of a layer among the arguments of ``Sequential`` or in a list."""
    parent = source.parent(call)
    siblings = (
        parent.args
        if isinstance(parent, ast.Call)
        else parent.elts
        if isinstance(parent, (ast.List, ast.Tuple))
        else []
    )
    return next((i for i, sibling in enumerate(siblings) if sibling is call), None)

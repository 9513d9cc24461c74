"""Finds the line of a setting or a layer, by the run's calls and by the source."""

from __future__ import annotations

import ast

from breakeven.advise.rule import RuleInput
from breakeven.source import SourceFile, Sources, is_named, keyword, last_name
from breakeven.trace import Call, Location, Op

# Literal dimensions of a layer, by position in its call.
_SIZES = (("in_channels", "in_features"), ("out_channels", "out_features"))


def recorded_calls(case: RuleInput, *names: str) -> tuple[Call, ...]:
    """Return the recorded calls whose dotted name ends with one of ``names``."""
    return tuple(call for call in case.facts.calls if is_named(call.name, *names))


def line_of_layer(
    sources: Sources, op: Op, kinds: tuple[str, ...], sizes: tuple[int, ...] = ()
) -> Location | None:
    """Return the line that makes the layer of an operator, or else the line that calls it.

    Args:
        sources: The user's files.
        op: An operator of the layer.
        kinds: See ``layer_at``.
        sizes: See ``layer_at``.
    """
    made = layer_at(sources, op.module, kinds, sizes) if op.module else None
    return made[0].location(made[1]) if made else op.location


def layer_at(
    sources: Sources, module: str, kinds: tuple[str, ...], sizes: tuple[int, ...] = ()
) -> tuple[SourceFile, ast.Call] | None:
    """Return the call that makes a layer; None if it is ambiguous or not found.

    Args:
        sources: The user's files.
        module: Dotted path of the layer: ``Net.encoder.conv1``.
        kinds: Names of its class: ``Conv2d``.
        sizes: Its input and output sizes, compared with literal arguments.
    """
    # Literals in the call must not contradict the sizes.
    fitting = [
        (source, call)
        for source, call in sources.calls(*kinds)
        if all(
            not isinstance(given, ast.Constant) or given.value in (size, None)
            for n, (size, names) in enumerate(zip(sizes, _SIZES, strict=False))
            for given in (*call.args[n : n + 1], *(keyword(call, name) for name in names))
        )
    ]
    attribute = next((part for part in reversed(module.split(".")) if not part.isdigit()), "")
    index = module.rpartition(".")[2]
    named = [one for one in fitting if attribute and _is_made_for(*one, attribute)]
    candidates = named or fitting
    if len(candidates) > 1 and index.isdigit():
        # The layer's position in ``Sequential`` or in a list.
        candidates = [
            (source, call)
            for source, call in candidates
            if isinstance(above := source.parent(call), ast.Call | ast.List | ast.Tuple)
            and call in (around := above.args if isinstance(above, ast.Call) else above.elts)
            and around.index(call) == int(index)
        ]
    elif named:
        candidates = candidates[:1]
    return candidates[0] if len(candidates) == 1 else None


def _is_made_for(source: SourceFile, call: ast.Call, attribute: str) -> bool:
    """Return whether the call is part of a value assigned to ``self.attribute`` or a variable."""
    for parent in source.parents(call):
        if isinstance(parent, ast.Assign):
            return any(last_name(target) == attribute for target in parent.targets)
        if isinstance(parent, ast.stmt):
            return False
    return False

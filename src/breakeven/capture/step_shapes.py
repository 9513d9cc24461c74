"""Whether steps that do the same do it with other shapes each time."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.trace import Event, Location, Op, Phase, RunFacts

_Shapes = tuple[tuple[int, ...], ...]


def compare_shapes(steps: Sequence[Sequence[Event]], chosen: Sequence[Event]) -> RunFacts:
    """Return how many shapes the steps had that run the operators of the typical one.

    Only operators of the device outside of the update are compared: the first update makes the
    optimizer's state, and shapes of parameters do not change.

    Args:
        steps: The events of each recorded step.
        chosen: Those of the typical one.
    """
    names = [op.name for op in _compared(chosen)]
    alike = [ops for ops in map(_compared, steps) if [op.name for op in ops] == names]
    return RunFacts(
        num_shapes=len({tuple(map(shapes_of, ops)) for ops in alike}),
        num_convolution_shapes=len(
            {tuple(shapes_of(op) for op in ops if _is_convolution(op)) for ops in alike}
        )
        if any(map(_is_convolution, _compared(chosen)))
        else 0,
        shapes_vary_at=_first_difference(alike),
    )


def _compared(events: Sequence[Event]) -> list[Op]:
    return [
        event
        for event in events
        if isinstance(event, Op)
        and not event.is_on_host
        and event.phase in (Phase.FORWARD, Phase.BACKWARD)
    ]


def shapes_of(op: Op) -> _Shapes:
    """Return the shapes of an operator's inputs, but for sparse ones.

    How many values they store differs from batch to batch, and nothing is compiled or chosen by it.
    """
    return tuple(spec.shape for spec in op.inputs if not spec.is_sparse)


def _is_convolution(op: Op) -> bool:
    return op.name.startswith("aten.convolution.")


def _first_difference(alike: Sequence[Sequence[Op]]) -> Location | None:
    """Return the line of the first operator whose shapes are not the same in all steps."""
    for ops in zip(*alike, strict=True):
        if len({shapes_of(op) for op in ops}) > 1:
            return ops[0].location
    return None

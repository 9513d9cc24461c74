"""What was recorded of a step, or of a part of one that ends with an update."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from breakeven.capture.answers import LoaderUse
from breakeven.capture.record.event_log import CalledModel
from breakeven.trace import Event, Location, Op, Phase, RunFacts


class Segment(msgspec.Struct):
    """What was recorded between two updates; joined, of a whole step."""

    optimizer: int
    events: list[Event]
    peak_bytes: int
    live_bytes: int
    loader: LoaderUse | None
    model_inputs: list[int]
    # With the position of the list of events that the call's own positions are of.
    model_calls: list[tuple[int, CalledModel]]
    reached: set[int]
    is_anomaly_checked: bool
    num_backwards: int
    # Recorded from its beginning.
    is_whole: bool

    @property
    def uses_device(self) -> bool:
        """Return whether anything at all happens on the device."""
        return any(isinstance(event, Op) and not event.is_on_host for event in self.events)

    @property
    def has_graph(self) -> bool:
        """Return whether a CUDA graph runs any of the step."""
        return any(isinstance(event, Op) and event.is_replayed for event in self.events)


def join(parts: list[Segment]) -> Segment:
    """Return the segments of one step as one."""
    events: list[Event] = []
    model_calls: list[tuple[int, CalledModel]] = []
    for part in parts:
        model_calls += [(len(events), call) for _, call in part.model_calls]
        events += part.events
    return Segment(
        optimizer=parts[-1].optimizer,
        events=events,
        peak_bytes=max(part.peak_bytes for part in parts),
        live_bytes=parts[-1].live_bytes,
        loader=_join_loaders([part.loader for part in parts if part.loader]),
        model_inputs=[size for part in parts for size in part.model_inputs],
        model_calls=model_calls,
        reached=set().union(*(part.reached for part in parts)),
        is_anomaly_checked=any(part.is_anomaly_checked for part in parts),
        num_backwards=sum(part.num_backwards for part in parts),
        is_whole=all(part.is_whole for part in parts),
    )


def _join_loaders(uses: list[LoaderUse]) -> LoaderUse | None:
    if not uses:
        return None
    return replace(
        uses[-1],
        batches_per_step=sum(use.batches_per_step for use in uses),
        wait_ns=sum(use.wait_ns for use in uses),
    )


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

"""What was recorded of a step, or of a part of one that ends with an update."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from breakeven.capture.model_calls import CalledModel
from breakeven.capture.protocol import LoaderUse
from breakeven.trace import Event, Op


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

"""Rules about what the host does besides issuing operators."""

from __future__ import annotations

from typing import ClassVar, final

from breakeven.doctor._rule import Case, Occurrence, by_line
from breakeven.simulate import Edit
from breakeven.trace import HostWork
from breakeven.units import format_duration

# Below this part of a step the host's other work is not worth moving.
_MIN_SHARE_FRACTION = 0.1


@final
class LoadingInProcess:
    """HOST001: the data loader works in the training process, and the GPU waits for it.

    What it does:
        Finds fetches from a ``DataLoader`` without worker processes that take a tenth of the step
        or more.

    Why it costs time:
        While the training process collects and transforms samples it issues nothing. The faster
        the GPU, the larger that part of the step.

    Evidence:
        Two to four times faster training with workers in public reports.

    Fix:
        ``DataLoader(..., num_workers=4, persistent_workers=True)``; for data that is in memory
        already, slice whole batches by a shuffled index instead of loading item by item.

    Known limits:
        The gain shown assumes that the loading is hidden altogether; workers need processors of
        their own for that.
    """

    code: ClassVar[str] = "HOST001"
    cause: ClassVar[str] = "LOADER_WORKERS0"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that fetches."""
        return _of_kind(
            case,
            "data",
            "loading the batch takes {duration} of the training process in every step",
            "DataLoader(num_workers=..., persistent_workers=True), or batches sliced from tensors",
        )


@final
class ScriptWork:
    """HOST002: the script computes something outside of torch in every step.

    What it does:
        Finds pauses between operators of half a millisecond or more that return in most steps:
        NumPy, pandas, simulators, plotting, logging.

    Why it costs time:
        A GPU takes none of it over, and waits.

    Evidence:
        GPUs at 5 to 50 % utilisation behind simulators in public reports.

    Fix:
        Do it for many samples at once, less often, in another process, or in torch on the GPU.

    Known limits:
        Python of torch itself may take that long in unusual places. The gain shown assumes that
        the work is gone altogether.
    """

    code: ClassVar[str] = "HOST002"
    cause: ClassVar[str] = "ENV_BOUND"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that computes."""
        return _of_kind(
            case,
            "script",
            "the script computes for {duration} outside of torch in every step",
            "do it for many samples at once, less often, in another process, or in torch",
        )


def _of_kind(case: Case, kind: str, title: str, fix: str) -> tuple[Occurrence, ...]:
    events = case.trace.events
    found = [
        index
        for index, event in enumerate(events)
        if isinstance(event, HostWork) and event.kind == kind and not event.num_workers
    ]
    occurrences: list[Occurrence] = []
    for location, own in by_line(case.trace, found):
        members = frozenset(own)
        duration_ns = sum(
            event.duration_ns
            for index, event in enumerate(events)
            if index in members and isinstance(event, HostWork)
        )
        if duration_ns < _MIN_SHARE_FRACTION * case.prediction.estimate.value_ns:
            continue
        occurrences.append(
            Occurrence(
                title=title.format(duration=format_duration(duration_ns, 2)),
                fix=fix,
                location=location,
                events=own,
                edit=Edit(replaced=dict.fromkeys(own, ())),
            )
        )
    return tuple(occurrences)

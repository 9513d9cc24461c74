"""What each ``DataLoader`` costs the step."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from breakeven.doctor.rule import Case, without
from breakeven.doctor.rules.load.fetching import (
    fetch_function,
    is_plain_indexing,
)
from breakeven.simulate import Edit
from breakeven.source import Source
from breakeven.trace import HostWork, LoaderFacts, Location
from breakeven.units import format_duration

# Below this part of a step loading is not worth a change.
_MIN_SHARE_FRACTION = 0.1

# What taking a batch from a worker costs the training process, at least.
# Source: measured with torch 2.13 on two shared x86-64 cores, batches of 10 KB and of 800 KB.
HANDOFF_NS = 500_000

# Workers that a GPU can count on; more is rare, and so are reports of more that helped.
MOST_WORKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What one loader costs the step.

    Args:
        loader: What is known of it; None where nothing is.
        events: Its fetches.
        location: Where it is made, or where the batch is taken.
        duration_ns: All fetches of a step, in one process.
        num_workers: Worker processes.
    """

    loader: LoaderFacts | None
    events: tuple[int, ...]
    location: Location | None
    duration_ns: float
    num_workers: int

    @property
    def sample_ns(self) -> float:
        """Return the time of one sample; 0 where the batch size is not known."""
        samples = self.loader.batch_size * len(self.events) if self.loader else 0
        return self.duration_ns / samples if samples else 0.0

    @property
    def cpu_ns(self) -> float:
        """Return the processor time of all fetches of a step; all of it where nothing tells."""
        if self.loader is None or not self.loader.fetch_cpu_ns:
            return self.duration_ns
        return min(self.duration_ns, float(self.loader.fetch_cpu_ns * len(self.events)))

    @property
    def cpu_fraction(self) -> float:
        """Return the part of the time in which the processor works rather than waits."""
        if self.loader is None or not self.loader.fetch_ns or not self.loader.fetch_cpu_ns:
            return 1.0
        return min(1.0, self.loader.fetch_cpu_ns / self.loader.fetch_ns)

    def without(self) -> Edit:
        """Return the step without the loading."""
        return without(self.events)


def loadings(case: Case) -> Iterator[Loading]:
    """Yield what each loader costs the step."""
    groups: dict[int, list[int]] = {}
    events = case.trace.events
    for index, event in enumerate(events):
        if isinstance(event, HostWork) and event.kind == "data":
            groups.setdefault(event.num_workers, []).append(index)
    for num_workers, members in groups.items():
        own = [event for index in members if isinstance(event := events[index], HostWork)]
        # The most used come first; a step takes its batch from one of them.
        loaders = (one for one in case.facts.loaders if one.num_workers == num_workers)
        loader = next(loaders, None)
        made_at = settings_location(case, loader) if loader is not None else None
        yield Loading(
            loader=loader,
            events=tuple(members),
            location=made_at or own[0].location,
            duration_ns=sum(event.duration_ns for event in own),
            num_workers=num_workers,
        )


def is_in_the_way(case: Case, one: Loading) -> bool:
    """Return whether the step would be a tenth shorter or more without the loading."""
    step_ns = case.step_ns
    if not one.num_workers:
        return one.duration_ns >= _MIN_SHARE_FRACTION * step_ns
    # The step that the loader sets is as long as its share of a batch.
    return hidden_ns(case, one) > 0 and one.duration_ns / one.num_workers >= 0.9 * step_ns


def hidden_ns(case: Case, one: Loading) -> float:
    """Return the part of the step that does not load."""
    if one.num_workers:
        return max(case.prediction.host_ns, case.prediction.device_busy_ns)
    return max(0.0, case.step_ns - one.duration_ns)


def fetch_evidence(one: Loading) -> str:
    """Return in words what fetching takes, and from which data set."""
    workers = f"{one.num_workers} workers" if one.num_workers else "no workers"
    if one.loader is None:
        return f"fetching takes {format_duration(one.duration_ns, 2)} with {workers}"
    sample = f", {format_duration(one.sample_ns, 2)} a sample" if one.sample_ns else ""
    return (
        f"{one.loader.dataset} with {workers}: fetching takes "
        f"{format_duration(one.duration_ns, 2)}{sample}"
    )


def settings_location(case: Case, loader: LoaderFacts) -> Location | None:
    """Return where the script sets the loader up, which may be a trainer's arguments."""
    source = case.sources.find(loader.location)
    if source is None or loader.location is None:
        return loader.location
    if source.call_at(loader.location.line, "DataLoader") is None:
        for call in source.calls("TrainingArguments"):
            return source.location(call)
    return loader.location


_Finder = Callable[[Source, ast.FunctionDef], Location | None]


def is_indexed_by_item(case: Case, one: Loading) -> bool:
    """Return whether samples in memory are indexed one by one."""
    loader = one.loader
    if loader is None or loader.has_batched_fetch or not loader.data_bytes:
        return False
    return is_indexed(case, loader)


def is_indexed(case: Case, loader: LoaderFacts) -> bool:
    """Return whether a data set does nothing but index what is in memory."""
    found = fetch_function(case, loader)
    return loader.is_indexed or (found is not None and is_plain_indexing(found[1]))


def line_in_data_set(
    case: Case, one: Loading, find: Callable[[Source, ast.FunctionDef], Location | None]
) -> Location | None:
    """Return a line of the data set's own source; the loader's where there is none."""
    found = fetch_function(case, one.loader) if one.loader is not None else None
    return (find(*found) if found is not None else None) or one.location

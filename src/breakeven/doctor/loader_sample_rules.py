"""Rules about the work behind one sample of a data set."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import ClassVar, final

from breakeven.doctor.loader_costs import (
    HANDOFF_NS,
    MOST_WORKERS,
    Loading,
    fetch_evidence,
    hidden_ns,
    is_in_the_way,
    loadings,
)
from breakeven.doctor.loader_source import fetch_function, heaviest_line, line_that_reads
from breakeven.doctor.rule import Case, Occurrence, Rule
from breakeven.doctor.source import Source
from breakeven.trace import Location
from breakeven.units import format_duration, format_percent

_Finder = Callable[[Source, ast.FunctionDef], Location | None]

# From here a sample is computed rather than fetched.
_HEAVY_SAMPLE_NS = 200_000
# A processor that is shared with others works for half of the time, and less in bad moments.
_WAITING_FRACTION = 0.25


@final
class HeavyTransform:
    """LOAD005: samples take more of the processor than the step takes.

    What it does:
        Finds data sets of which a sample takes 0.2 ms of a processor or more, and a batch more
        than the rest of the step, shared between the workers that there are.

    Why it costs time:
        The GPU waits for the next batch. Workers share the work, and each of them is a processor
        that has to be paid for, in every epoch anew.

    Evidence:
        Parsing whole batches raised the GPU's utilisation from 28 to 70 % in a public report.

    Fix:
        Do it once and keep the result, do it for whole batches, or do it on the GPU; the last is
        not always faster.

        ```python
        def __getitem__(self, i):
            return normalize(decode(self.files[i]))
        ```

        ```python
        def __init__(self, files):
            self.images = torch.stack([normalize(decode(file)) for file in files])

        def __getitem__(self, i):
            return self.images[i]
        ```

    Known limits:
        The line is the one that looks most expensive in the source of ``__getitem__``; lines are
        not timed. Streams without a length are left out. The gain shown assumes that the loading
        is gone altogether.
    """

    code: ClassVar[str] = "LOAD005"
    cause: ClassVar[str] = "TRANSFORM_CPU"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loader."""
        return tuple(
            Occurrence(
                title=f"preparing a sample takes {format_duration(_sample_cpu_ns(one), 2)} of a "
                "processor, and a batch more than the step",
                fix="prepare samples once and keep them, or whole batches at a time on the GPU",
                evidence=fetch_evidence(one),
                location=_line_in_data_set(case, one, heaviest_line),
                events=one.events,
                edit=one.without(),
            )
            for one in loadings(case)
            # A stream without a length makes its samples; there is nothing to keep of them.
            if (one.loader is None or one.loader.num_samples)
            and _sample_cpu_ns(one) >= _HEAVY_SAMPLE_NS
            and _bounds_the_step(case, one)
            and _line_in_data_set(case, one, line_that_reads) == one.location
        )


@final
class SlowReading:
    """LOAD006: the data loader waits for storage, or reads a file for each sample.

    What it does:
        Finds loading that takes a tenth of the step or more and that waits for three quarters of
        its time, or whose ``__getitem__`` opens or parses a file.

    Why it costs time:
        Disks and networks answer many small reads slowly, and opening and parsing a file costs
        more than the bytes that it yields.

    Evidence:
        12:53 to 0:48 minutes per epoch once the files were in the page cache, in a public report.

    Fix:
        Read everything once, into memory or into one file that can be mapped.

        ```python
        def __getitem__(self, i):
            return torch.from_numpy(np.load(self.files[i]))
        ```

        ```python
        def __init__(self, files):
            self.samples = torch.stack([torch.from_numpy(np.load(file)) for file in files])

        def __getitem__(self, i):
            return self.samples[i]
        ```

    Known limits:
        Files that this machine has in its page cache are read without waiting here and may not be
        elsewhere. The gain shown assumes that the loading is gone altogether.
    """

    code: ClassVar[str] = "LOAD006"
    cause: ClassVar[str] = "IO_SLOW"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loader."""
        found: list[Occurrence] = []
        for one in loadings(case):
            if one.duration_ns < 2 * HANDOFF_NS * len(one.events) or not is_in_the_way(case, one):
                continue
            location = _line_in_data_set(case, one, line_that_reads)
            waits = one.cpu_fraction < _WAITING_FRACTION
            # Waiting without a read in sight, in the training process: LOAD001 tells what to do.
            if location == one.location and not (waits and one.num_workers):
                continue
            found.append(
                Occurrence(
                    title="a batch waits for storage"
                    if waits
                    else f"each sample reads a file, {format_duration(one.sample_ns, 2)} each",
                    fix="read the files once, into memory or into one file that is mapped",
                    evidence=f"{fetch_evidence(one)}; the processor works for "
                    f"{format_percent(one.cpu_fraction)} of that",
                    location=location,
                    events=one.events,
                    edit=one.without(),
                )
            )
        return tuple(found)


def _sample_cpu_ns(one: Loading) -> float:
    return one.sample_ns * one.cpu_ns / one.duration_ns if one.duration_ns else 0.0


def _bounds_the_step(case: Case, one: Loading) -> bool:
    """Return whether the processors that load take longer than the rest of the step."""
    cores = min(MOST_WORKERS, case.facts.num_cores or MOST_WORKERS)
    return one.cpu_ns / min(max(1, one.num_workers), cores) > hidden_ns(case, one)


def _line_in_data_set(
    case: Case, one: Loading, find: Callable[[Source, ast.FunctionDef], Location | None]
) -> Location | None:
    """Return a line of the data set's own source; the loader's where there is none."""
    found = fetch_function(case, one.loader) if one.loader is not None else None
    return (find(*found) if found is not None else None) or one.location


SAMPLE_RULES: tuple[Rule, ...] = (HeavyTransform(), SlowReading())

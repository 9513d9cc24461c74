"""LOAD005: samples take more of the processor than the step takes.

What it does:
    Finds data sets of which a sample takes 0.2 ms of a processor or more, and a batch more
    than the rest of the step, shared between the workers that there are. Also reports any
    loader that limits the step on this GPU and that no other rule explains.

Why it costs time:
    The GPU waits for the next batch. Workers share the work, and each of them is a processor
    that has to be paid for, in every epoch anew.

Evidence:
    Parsing whole batches raised the GPU's utilisation from 28 to 70 % in a public report.

Fix:
    Do it once and keep the result, do it for whole batches, or do it on the GPU; the last is
    not always faster. Smaller samples and cheaper transforms help too, and so do more workers,
    up to the number of processors.

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

from __future__ import annotations

from breakeven.doctor.loading import MOST_WORKERS, Loading, heaviest_line, line_that_reads, loadings
from breakeven.doctor.rule import Case, Found, Occurrence, without
from breakeven.doctor.rules import load001, load002, load006
from breakeven.simulate import Bound
from breakeven.units import format_duration

CAUSE = "TRANSFORM_CPU"

# From here a sample is computed rather than fetched.
_HEAVY_SAMPLE_NS = 200_000


def detect(case: Case) -> Found:
    is_waiting = case.prediction.bound is Bound.HOST_DATA
    explained = _explained(case) if is_waiting else set[int]()
    for one in loadings(case):
        sample_ns = one.sample_ns * one.cpu_ns / one.duration_ns if one.duration_ns else 0.0
        is_heavy = sample_ns >= _HEAVY_SAMPLE_NS and _bounds_the_step(case, one)
        is_computed = one.line_in_data_set(line_that_reads) == one.location
        is_left = is_waiting and one.is_in_the_way and explained.isdisjoint(one.events)
        if not is_left and not (is_heavy and is_computed and not one.is_stream):
            continue
        batch = format_duration(one.duration_ns / max(1, one.num_workers), 2)
        sample = f": {format_duration(sample_ns, 2)} of a processor for each sample"
        yield Occurrence(
            title=f"the GPU waits for the loader, which takes {batch} for the data of a step"
            f"{sample if sample_ns else ''}",
            fix=_fix(case, one),
            evidence=one.evidence,
            location=one.line_in_data_set(heaviest_line),
            events=one.events,
            edit=without(one.events),
        )


def _explained(case: Case) -> set[int]:
    """Return the loading that other rules of the loader report."""
    others = (found for rule in (load001, load002, load006) for found in rule.detect(case))
    return {event for found in others for event in found.events}


def _fix(case: Case, one: Loading) -> str:
    keep = "" if one.is_stream else "prepare samples once and keep them, "
    fix = f"{keep}transform whole batches on the GPU, or make samples cheaper or smaller"
    most = min(MOST_WORKERS, case.facts.num_cores)
    return f"{fix}, or num_workers={most}" if 0 < one.num_workers < most else fix


def _bounds_the_step(case: Case, one: Loading) -> bool:
    """Return whether the processors that load take longer than the rest of the step."""
    cores = min(MOST_WORKERS, case.facts.num_cores or MOST_WORKERS)
    return one.cpu_ns / min(max(1, one.num_workers), cores) > one.hidden_ns

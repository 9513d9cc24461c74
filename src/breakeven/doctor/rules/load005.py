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

from __future__ import annotations

from breakeven.doctor.loading import MOST_WORKERS, Loading, heaviest_line, line_that_reads, loadings
from breakeven.doctor.rule import Case, Found, Occurrence, without
from breakeven.units import format_duration

CAUSE = "TRANSFORM_CPU"

# From here a sample is computed rather than fetched.
_HEAVY_SAMPLE_NS = 200_000


def detect(case: Case) -> Found:
    for one in loadings(case):
        sample_ns = one.sample_ns * one.cpu_ns / one.duration_ns if one.duration_ns else 0.0
        # A stream without a length makes its samples; there is nothing to keep of them.
        is_stream = one.loader is not None and not one.loader.num_samples
        if is_stream or sample_ns < _HEAVY_SAMPLE_NS or not _bounds_the_step(case, one):
            continue
        if one.line_in_data_set(line_that_reads) != one.location:
            continue
        yield Occurrence(
            title=f"preparing a sample takes {format_duration(sample_ns, 2)} of a "
            "processor, and a batch more than the step",
            fix="prepare samples once and keep them, or whole batches at a time on the GPU",
            evidence=one.evidence,
            location=one.line_in_data_set(heaviest_line),
            events=one.events,
            edit=without(one.events),
        )


def _bounds_the_step(case: Case, one: Loading) -> bool:
    """Return whether the processors that load take longer than the rest of the step."""
    cores = min(MOST_WORKERS, case.facts.num_cores or MOST_WORKERS)
    return one.cpu_ns / min(max(1, one.num_workers), cores) > one.hidden_ns

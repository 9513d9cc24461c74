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

from __future__ import annotations

from breakeven.doctor.loading import line_that_reads, loadings
from breakeven.doctor.rule import Case, Found, Occurrence, without
from breakeven.units import format_duration, format_percent

CAUSE = "IO_SLOW"

# A processor that is shared with others works for half of the time, and less in bad moments.
_WAITING_FRACTION = 0.25


def detect(case: Case) -> Found:
    for one in loadings(case):
        if one.is_short or not one.is_in_the_way:
            continue
        location = one.line_in_data_set(line_that_reads)
        waits = one.cpu_fraction < _WAITING_FRACTION
        # Waiting without a read in sight, in the training process: that is LOAD001.
        if location == one.location and not (waits and one.num_workers):
            continue
        yield Occurrence(
            title="a batch waits for storage"
            if waits
            else f"each sample reads a file, {format_duration(one.sample_ns, 2)} each",
            fix="read the files once, into memory or into one file that is mapped",
            evidence=f"{one.evidence}; the processor works for "
            f"{format_percent(one.cpu_fraction)} of that",
            location=location,
            events=one.events,
            edit=without(one.events),
        )

"""SYNC009: a tensor goes to the host and comes back changed, within the forward pass.

What it does:
    Finds reads of whole tensors in model or loss that are followed, before the backward pass,
    by a copy to the device of something younger: SciPy, NumPy, a Hungarian matcher or OpenCV
    in between.

Why it costs time:
    The host waits for the device, computes while the device idles, and waits again for the
    copy back.

Evidence:
    In public reports a loss block with some 200 such waits went from 434 to 13 ms when it was
    rewritten.

Fix:
    Do it in torch on the device; where that cannot be, for the whole batch with one copy each
    way.

    ```python
    smooth = np.stack([np.convolve(row, kernel, "same") for row in x.cpu().numpy()])
    smooth = torch.from_numpy(smooth).to(x.device)
    ```

    ```python
    smooth = F.conv1d(x[:, None], kernel[None, None], padding="same")[:, 0]
    ```

Known limits:
    The gain shown assumes that waits, copies and the host's work between them are gone; what
    the device computes instead is not counted. A read that a simulator is given is not reported.
"""

from __future__ import annotations

from breakeven.doctor.crossings import round_trips
from breakeven.doctor.rule import (
    Case,
    Found,
    Occurrence,
    num_copies,
    times_per_step,
    without,
)
from breakeven.doctor.waits import seen
from breakeven.trace import Op

CAUSE = "CPU_ROUNDTRIP"


def detect(case: Case) -> Found:
    on_host = {*case.works("script"), *(index for index, op in case.each(Op) if op.is_on_host)}
    for location, reads, copies in round_trips(case):
        between = on_host.intersection(range(min(reads), max(copies)))
        events = tuple(sorted({*reads, *copies, *between}))
        yield Occurrence(
            title="a tensor goes to the host and what comes of it back to the GPU "
            f"{times_per_step(len(reads))}",
            fix="do it in torch on the GPU, or for the whole batch with one copy each way",
            evidence=f"{seen(case, reads)}, then {num_copies(len(copies))} of younger memory to "
            "the GPU before the backward pass",
            location=location,
            events=events,
            edit=without(events),
        )

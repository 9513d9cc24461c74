"""SYNC001: the host reads a value from the device in every step.

What it does:
    Finds lines that turn one element of a device tensor into a Python number or text:
    ``loss.item()``, ``float(loss)``, ``print(loss)``, a progress bar that shows the loss, the
    check for errors of ``torch.linalg``.

Why it costs time:
    The host issues work ahead of the device. To know a value it must wait until the device has
    computed it; the launch queue runs empty, and the device then idles until the host has
    issued the next kernel.

Evidence:
    In public reports training loops gained between 4 % and a factor of 2 when such reads were
    removed. At most the smaller of host time and device time per step can be gained, since
    other waits may take over; the gain shown comes from simulating the step without the read.

Fix:
    Add up on the device and read every hundredth step.

    ```python
    running += loss.item()
    ```

    ```python
    running += loss.detach()
    if step % 100 == 0:
        print(running.item() / 100)
    ```

    If values steer slices, indices or branches, read all of them at once before the loop.

    ```python
    for i in range(len(x)):
        parts.append(x[i, first[i].item() : last[i].item()])
    ```

    ```python
    for row, start, end in zip(x, first.tolist(), last.tolist()):
        parts.append(row[start:end])
    ```

Known limits:
    Not reported are waits that have to stay: of ``GradScaler``, of an optimizer or another
    library for reasons of its own, and of a value that a simulator is given. A read that
    happens only every n-th step counts fully if the traced step is such a step.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waiting_at, waits_of
from breakeven.source import is_constant, keyword
from breakeven.trace import Sync

CAUSE = "SYNC_ITEM"


def detect(case: Case) -> Found:
    yield from _shown_by_lightning(case)
    found = set(waits_of(case, Wait.VALUE))
    checks = {index for index, sync in case.each(Sync) if index in found and sync.kind == "linalg"}
    yield from by_waiting_line(
        case,
        sorted(found - checks),
        title="the host reads a value from the GPU {often}",
        fix="keep the value on the GPU (total += loss.detach()) and read it every n-th step",
        is_by_use=True,
    )
    yield from by_waiting_line(
        case,
        sorted(checks),
        title="torch.linalg reads back {often} whether there was an error",
        fix="the variant that does not check: torch.linalg.cholesky_ex, inv_ex, solve_ex",
    )


def _shown_by_lightning(case: Case) -> Found:
    """Yield one occurrence for each line that has Lightning's progress bar show a value.

    Lightning reads the values in the order in which they are logged, from its own loop.
    """
    reads = waits_of(case, Wait.LOGGED)
    lines = [
        source.location(call)
        for source, call in case.sources.calls("self.log", "self.log_dict")
        if is_constant(keyword(call, "prog_bar"), True)
    ]
    for position, location in enumerate(lines):
        if events := tuple(reads[position :: len(lines)]):
            yield waiting_at(
                case,
                location,
                events,
                title="the progress bar of Lightning reads a value from the GPU {often}",
                fix="prog_bar=False, or TQDMProgressBar(refresh_rate=50)",
            )

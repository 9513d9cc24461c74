"""The calls by which a CUDA device's launches and syncs are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from breakeven.measure.rounds import Timed

# Far less than the 1,024 launches that a device's queue holds: the host never waits for it.
_QUEUED_CALLS = 200
_WAITED_CALLS = 10


def launch_calls(issue: Callable[[], object], wait: Callable[[], object]) -> Iterator[Timed]:
    """Yield what is timed on a device that is here.

    Args:
        issue: Enqueues one small kernel.
        wait: Waits for the device.
    """

    def issue_and_wait() -> None:
        issue()
        wait()

    yield Timed(code="cuda_queued", call=issue, calls=_QUEUED_CALLS)
    yield Timed(code="cuda_waited", call=issue_and_wait, calls=_WAITED_CALLS)
    yield Timed(code="cuda_sync", call=wait, calls=_WAITED_CALLS)


def small_kernel(device: str = "cuda") -> Callable[[], object]:
    """Return a call that enqueues a product of one element on ``device``."""
    one, other = torch.ones(1, device=device), torch.ones(1, device=device)
    return lambda: torch.mul(one, other)

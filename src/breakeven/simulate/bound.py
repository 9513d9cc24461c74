"""What limits a step."""

from __future__ import annotations

from enum import StrEnum


class Bound(StrEnum):
    """What a step's time goes down with: the resource whose removal shortens it the most.

    ``launch`` is the host's issuing of device operators, ``compute`` and ``memory`` are kernels by
    what limits them, ``transfer`` the copies between host and device, ``sync`` the host's waiting
    for values and explicit syncs. ``host-optimizer`` is what the CPU computes in the optimizer
    phase, ``host-data`` all else that the CPU does for the step: loading, the script's own Python
    and operators that stay on the host.
    """

    LAUNCH = "launch"
    COMPUTE = "compute"
    MEMORY = "memory"
    TRANSFER = "transfer"
    SYNC = "sync"
    HOST_DATA = "host-data"
    HOST_OPTIMIZER = "host-optimizer"

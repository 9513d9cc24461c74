"""How devices shared a step, as the note beside a timing says it."""

from __future__ import annotations

import re

from breakeven.errors import Caveat
from breakeven.simulate.multi_gpu import MultiGpuSetup
from breakeven.simulate.multi_gpu_table import Strategy

_STRATEGIES = (
    (
        re.compile(r"\bDDP\b|DistributedDataParallel|\bdistributed data parallel\b", re.I),
        Strategy.DDP,
    ),
    (re.compile(r"(?:^|[^a-z])DataParallel|\bdata parallel\b", re.I), Strategy.DATA_PARALLEL),
)
_NO_PEER_ACCESS = re.compile(r"P2P (?:disabled|off)|NCCL_P2P_DISABLE", re.I)
_BRIDGE = re.compile(r"NVLink bridge", re.I)


def strategy_of(note: str) -> Strategy | None:
    """Return the strategy that a note names; None where it names none."""
    return next((strategy for pattern, strategy in _STRATEGIES if pattern.search(note)), None)


def setup_of(note: str, num_devices: int) -> tuple[MultiGpuSetup, tuple[Caveat, ...]]:
    """Return the devices of a timing, and what had to be assumed of them.

    Args:
        note: What was written beside the timing: ``DDP``, ``nn.DataParallel``, and whether
            peer-to-peer access was off or cards were bridged.
        num_devices: At least 2.
    """
    strategy = strategy_of(note)
    caveats: tuple[Caveat, ...] = ()
    if strategy is None:
        strategy = Strategy.DDP
        caveats = (
            Caveat(
                code="assumed-strategy",
                message=f"Nothing says how the {num_devices} devices share the step; assumed DDP.",
            ),
        )
    setup = MultiGpuSetup(
        strategy=strategy,
        num_devices=num_devices,
        has_peer_access=False if _NO_PEER_ACCESS.search(note) else None,
        has_bridge=_BRIDGE.search(note) is not None,
    )
    return setup, caveats

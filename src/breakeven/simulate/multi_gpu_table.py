"""How several devices share a step: setup, costs fitted to measured steps, and their errors."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache

import msgspec

from breakeven.cost import read_shipped
from breakeven.errors import Caveat

MULTI_GPU_TABLE_VERSION = 1


class Strategy(StrEnum):
    """How several devices share a step, each with its part of the batch.

    ``data_parallel`` is ``nn.DataParallel``: one process, which copies the model to all devices in
    each step. ``ddp`` is ``nn.parallel.DistributedDataParallel``: a process per device, which
    exchange gradients.
    """

    DATA_PARALLEL = "data_parallel"
    DDP = "ddp"


class MultiGpuSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one machine that share a step.

    Args:
        strategy: How.
        num_devices: How many, at least 2.
        has_peer_access: Whether they may access each other's memory directly; None for what such
            boards usually do. False also where it was switched off (``NCCL_P2P_DISABLE``).
        has_bridge: Whether cards are bridged in pairs.
    """

    strategy: Strategy
    num_devices: int
    has_peer_access: bool | None = None
    has_bridge: bool = False


class DataParallelCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What ``nn.DataParallel`` adds. Host times in dispatches (``HostSpec.op_ns``).

    Args:
        step_dispatches: Each call of the model: threads, scatter and gather.
        replica_dispatches: Each replica.
        tensor_dispatches: Each parameter and buffer, packed for the broadcast.
        replica_tensor_dispatches: The same on each device: unpacked, and set on its module.
        issue_fraction: What each further replica adds to the issue of the forward pass, which all
            of them do in threads under one interpreter lock; with 1, one after another, and above
            it with what taking turns costs.
        slowest_fraction: How much longer the slowest of the devices computes than a lone one.
    """

    step_dispatches: float
    replica_dispatches: float
    tensor_dispatches: float
    replica_tensor_dispatches: float
    issue_fraction: float
    slowest_fraction: float


class DdpCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What ``DistributedDataParallel`` adds.

    Args:
        exposed_fraction: What the all-reduce adds to the backward pass beside which it runs, in
            multiples of its time alone: the last bucket, and what it takes from the kernels.
        local_ns_per_byte: Per byte of gradients, whatever the devices: packing, unpacking and
            waiting for each other.
    """

    exposed_fraction: float
    local_ns_per_byte: float


class HeldOutFactor(msgspec.Struct, frozen=True, kw_only=True):
    """Error of the factor from one device to several, on rows that the fit had not seen.

    Args:
        strategy: How the devices share the step.
        left_out: What was left out in turn: ``family`` (of models) or ``device``.
        num_groups: How many of them.
        num_rows: Rows predicted.
        median_error_fraction: Median of |predicted / measured - 1|.
        p90_error_fraction: 90th percentile of the same.
        log_sigma: Standard deviation of log(predicted / measured) that covers 90 %.
    """

    strategy: Strategy
    left_out: str
    num_groups: int
    num_rows: int
    median_error_fraction: float
    p90_error_fraction: float
    log_sigma: float


class MultiGpuTable(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of several devices.

    Args:
        version: Of this format.
        provenance: How the figures were made.
        data_parallel: Costs of ``nn.DataParallel``.
        ddp: Costs of ``DistributedDataParallel``.
        held_out: Errors of the factor; the largest of a strategy widens its intervals.
        calibrated_on: Fingerprints of the steps on several devices that were used.
    """

    version: int
    provenance: str
    data_parallel: DataParallelCosts
    ddp: DdpCosts
    held_out: tuple[HeldOutFactor, ...]
    calibrated_on: tuple[str, ...] = ()

    def log_sigma(self, strategy: Strategy) -> float:
        """Return the standard deviation of the logarithm of a strategy's factor."""
        return max(error.log_sigma for error in self.held_out if error.strategy is strategy)


@cache
def load_multi_gpu_table() -> MultiGpuTable:
    """Return the table that ships with the package."""
    package, name = "breakeven.simulate", "multi_gpu.json"
    return read_shipped(package, name, MultiGpuTable, MULTI_GPU_TABLE_VERSION)


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

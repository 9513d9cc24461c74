"""A machine: its GPU's datasheet and generation, and what its host spends to issue work."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from breakeven.device.host_kinds import HostKind

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Precision(StrEnum):
    """Arithmetic of a kernel: the dtype, and for fp32 whether tensor cores may round it to TF32."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, from its datasheet. Rates are dense (no structured sparsity).

    Args:
        id: Stable lower-case identifier: ``a100-sxm4-80gb``.
        name: What people call it: ``A100 SXM4 80GB``.
        vendor: ``nvidia``, ``amd``, ``apple`` or ``intel``.
        market: ``consumer``, ``workstation``, ``datacenter``, ``laptop`` or ``integrated``.
        architecture: ``Ampere``, ``CDNA2``, ``M1``, ``Xe-HPG``, ...
        chip: ``GA100``, where the vendor names it.
        num_sms: Streaming multiprocessors, compute units or GPU cores.
        clock_hz: Boost clock.
        peak_flop_per_s: Dense peak by precision; a fused multiply-add is 2 FLOP. A precision
            that the device lacks has no entry.
        memory_bytes: Capacity.
        memory_bytes_per_s: DRAM bandwidth.
        l2_bytes: Last-level cache on the device.
        link_bytes_per_s: Host link per direction: PCIe generation × lanes, NVLink-C2C, or the
            unified memory's own bandwidth.
        peer_bytes_per_s: NVLink or Infinity Fabric, sum of both directions; 0 where there is none.
        launch_generation: Which launch latencies apply: ``kepler`` … ``blackwell``, ``cdna``,
            ``apple``, ``xe``; the id of its `Generation`.
        release_year: Year of release.
        tdp_watts: Board power.
        aliases: Other names that people use.
        sources: Where the figures are from, one per line of the datasheet or its URL.
        notes: Peculiarities that a reader of a figure should know.
    """

    id: str
    name: str
    vendor: str
    market: str
    architecture: str
    num_sms: int
    clock_hz: float
    peak_flop_per_s: dict[Precision, float]
    memory_bytes: float
    memory_bytes_per_s: float
    l2_bytes: float
    link_bytes_per_s: float
    launch_generation: str
    release_year: int
    tdp_watts: float
    sources: tuple[str, ...]
    chip: str = ""
    peer_bytes_per_s: float = 0.0
    aliases: tuple[str, ...] = ()
    notes: str = ""

    def has_precision(self, precision: Precision) -> bool:
        """Return whether the datasheet gives a rate for ``precision``."""
        return precision in self.peak_flop_per_s


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What GPUs of one generation have in common. Times in nanoseconds.

    Args:
        id: Stable lower-case identifier: ``ampere``.
        vendor: As in `DeviceSpec`; the generations of a vendor descend from each other.
        launch_ns: Host time of one kernel launch, beyond the operator's dispatch.
        latency_ns: From the enqueuing of a kernel to its start on an idle device.
        gap_ns: Smallest time between the end of a kernel and the start of the next on a stream.
        sync_ns: Host time of a stream sync or a blocked read once the device is idle.
        floor_ns: Shortest time that any kernel occupies a device.
        log_sigma: Standard deviation of the logarithm of these times between hosts and drivers.
        sources: Where the figures are from.
        watts_per_flop_per_s: Board power that keeps the boost clock under fp32 load, per fp32
            FLOP/s; None where every board is taken to have enough.
        watts_per_matrix_flop_per_s: The same of fp16 on matrix units.
        board_clock_hz: Clock that boards run at while they need little of their power, those for
            data centers and GPUs within a processor apart, which keep to the clock of their
            datasheet; None where no board exceeds that.
        has_consumer_peer_access: Whether consumer cards access each other's memory over PCIe.
        fabric_boards: Parts of the ids of devices with a fabric that joins all of a machine.
    """

    id: str
    vendor: str
    launch_ns: _Positive
    latency_ns: _Positive
    gap_ns: _Positive
    sync_ns: _Positive
    floor_ns: _Positive
    log_sigma: _Positive
    sources: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    watts_per_flop_per_s: _Positive | None = None
    watts_per_matrix_flop_per_s: _Positive | None = None
    board_clock_hz: _Positive | None = None
    has_consumer_peer_access: bool = True
    fabric_boards: tuple[str, ...] = ()


# Id of the host that was measured on this machine, as opposed to one of a datasheet; and the choice
# by the market of each GPU.
HERE, AUTO = "here", "auto"


class DeviceWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a device's work was seen to take a host that has one, beyond all else that is known.

    Args:
        handoff_ns: A backward pass, beyond one of the CPU: a thread of its own runs that of a
            device; it is woken for it, and wakes the one that waits.
        convolution_factor: Calls of convolutions and batch norms, over what the other costs make
            of them.
        has_steps: Whether whole steps of its GPU told that: the kind of machine adds nothing.
    """

    handoff_ns: float = 0.0
    convolution_factor: float = 1.0
    has_steps: bool = False


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU that runs the training script, as the cost model sees it. Times in nanoseconds.

    Args:
        id: ``here``, or the name of an entry of the shared table.
        name: Processor, as the operating system calls it.
        op_ns: One operator of a device: argument parsing and dispatcher, no autograd, no launch.
        python_ns: Python around an operator of a forward pass: modules and their wrappers.
        view_python_ns: Python around a view of a forward pass. Code that reshapes much, such as
            a transformer's, runs much Python of its own.
        autograd_ns: What recording it for backward adds.
        backward_ns: One operator of the backward pass, run by the autograd engine.
        backward_call_ns: One call of ``backward()``, whatever it runs.
        foreach_ns: One ``_foreach`` call of an optimizer, without its tensors.
        foreach_tensor_ns: What each tensor adds to it.
        view_ns: An operator that only makes a view.
        device_ns: What an operator of a device takes beyond one of the CPU: the part of ``op_ns``,
            ``backward_ns`` and ``foreach_ns`` that is not there on the CPU; 0 where unknown.
        module_ns: A call of a module that does nothing; 0 where unknown.
        step_ns: Python of a step outside of its operators: gradients set to zero, the call of
            the optimizer; 0 where no step was measured.
        forward_factor: What the forward pass of a measured step takes the host, over what the other
            costs make it.
        backward_factor: The same of the backward pass.
        optimizer_factor: The same of the update.
        source: The calibration that gave the figures: machine, date, torch version; then, after a
            semicolon, the assumption.
        assumption: How a device's share of an operator is known, where that was not measured
            with the rest.
        log_sigma: Standard deviation of the logarithm of what the host spends on a step, predicted
            from these.
        load_fraction: Part of its processors that other processes used while it was measured.
        device_work: What else was seen of a device's work, on a host that has one.
    """

    id: str
    name: str
    op_ns: float
    python_ns: float
    view_python_ns: float
    autograd_ns: float
    backward_ns: float
    backward_call_ns: float
    foreach_ns: float
    foreach_tensor_ns: float
    view_ns: float
    source: str
    device_ns: float = 0.0
    module_ns: float = 0.0
    step_ns: float = 0.0
    forward_factor: float = 1.0
    backward_factor: float = 1.0
    optimizer_factor: float = 1.0
    log_sigma: float = 0.25
    load_fraction: float = 0.0
    # Unset and not empty: the digest of a recording that was made before has no such fields.
    assumption: str | UnsetType = UNSET
    device_work: DeviceWork | UnsetType = UNSET

    @property
    def is_measured(self) -> bool:
        """Return whether the figures were measured on this machine."""
        return self.id == HERE

    @property
    def seen_work(self) -> DeviceWork:
        """Return what else was seen of a device's work: nothing, on a host that has none."""
        return DeviceWork() if isinstance(self.device_work, UnsetType) else self.device_work

    def for_device(self, _device: DeviceSpec) -> HostSpec:
        """Return what feeds a GPU: this one, as it is."""
        return self

    def kind_for(self, _device: DeviceSpec) -> HostKind | None:
        """Return the kind of machine that feeds a GPU; None where it is not told."""
        return None


class FeedingHost(HostSpec, frozen=True, kw_only=True):
    """A host in a kind of machine, and what feeds data-center GPUs in its place.

    Args:
        kind: The kind, whose factor is still to be applied: see `for_device`; unset for a machine
            that was measured itself, and for a CPU that was named.
        data_center: What feeds data-center GPUs; unset for this one.
        others: What feeds single GPUs, by their ids, where that is neither.
    """

    kind: HostKind | UnsetType = UNSET
    data_center: FeedingHost | UnsetType = UNSET
    others: tuple[tuple[str, FeedingHost], ...] | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        host: HostSpec,
        kind: HostKind | UnsetType = UNSET,
        data_center: FeedingHost | UnsetType = UNSET,
    ) -> FeedingHost:
        """Return a host as one of a kind.

        Args:
            host: Its costs.
            kind: Of machine.
            data_center: What feeds data-center GPUs in its place.
        """
        return cls(**_costs(host), kind=kind, data_center=data_center)

    def each(self, change: Callable[[FeedingHost], FeedingHost]) -> FeedingHost:
        """Return this with each of its machines changed.

        Args:
            change: Returns another machine for one.
        """
        rented, others = self.data_center, self.others
        if isinstance(others, tuple):
            others = tuple((gpu, change(host)) for gpu, host in others)
        if isinstance(rented, FeedingHost):
            rented = change(rented)
        return replace(change(self), data_center=rented, others=others)

    def for_device(self, device: DeviceSpec) -> HostSpec:
        """Return what feeds a GPU, its work within steps as machines of its kind take it.

        Args:
            device: The GPU.
        """
        feeding = self._feeding(device)
        host, kind, work = HostSpec(**_costs(feeding)), feeding.kind, feeding.seen_work
        if not isinstance(kind, HostKind):
            return host
        return replace(
            host,
            forward_factor=host.forward_factor * kind.factor,
            backward_factor=host.backward_factor * kind.factor,
            optimizer_factor=host.optimizer_factor * kind.factor,
            log_sigma=math.hypot(host.log_sigma, kind.log_sigma),
            device_work=replace(work, handoff_ns=max(work.handoff_ns, kind.handoff_ns)),
        )

    def kind_for(self, device: DeviceSpec) -> HostKind | None:
        """Return the kind of machine that feeds a GPU; None where it is not told.

        Args:
            device: The GPU.
        """
        kind = self._feeding(device).kind
        return kind if isinstance(kind, HostKind) else None

    def _feeding(self, device: DeviceSpec) -> FeedingHost:
        """Return which of them feeds a GPU."""
        others = dict(self.others) if isinstance(self.others, tuple) else {}
        if device.id in others:
            return others[device.id]
        if isinstance(self.data_center, FeedingHost) and device.market == "datacenter":
            return self.data_center
        return self


def _costs(host: HostSpec) -> dict[str, Any]:
    """Return the fields that any host has."""
    return {name: getattr(host, name) for name in HostSpec.__struct_fields__}


class HostFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One time that was measured, per call.

    Args:
        code: Stable identifier: ``op``, ``view``, ``module``, ``cuda_queued``, ...
        title: What was called, for a person.
        median_ns: Median of the rounds, in nanoseconds.
        low_ns: Tenth percentile of the rounds.
        high_ns: Ninetieth percentile.
        used_for: Which costs of the host it gives; empty where it is only shown.
    """

    code: str
    title: str
    median_ns: float
    low_ns: float
    high_ns: float
    used_for: str = ""


class HostCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """A measured host.

    Args:
        host: Its costs, as the model uses them.
        figures: What they were computed from, and more.
        num_rounds: Rounds, each of which measured every figure once.
        device_name: The CUDA device on which launches were measured too; empty without one.
    """

    host: HostSpec
    figures: tuple[HostFigure, ...]
    num_rounds: int
    device_name: str = ""

    def figure(self, code: str) -> HostFigure:
        """Return the figure called ``code``.

        Raises:
            KeyError: It was not measured.
        """
        for figure in self.figures:
            if figure.code == code:
                return figure
        raise KeyError(code)

"""A machine: its GPU's datasheet and generation, and its host's cost of issuing work."""

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
        name: Its usual name: ``A100 SXM4 80GB``.
        vendor: ``nvidia``, ``amd``, ``apple`` or ``intel``.
        market: ``consumer``, ``workstation``, ``datacenter``, ``laptop`` or ``integrated``.
        architecture: ``Ampere``, ``CDNA2``, ``M1``, ``Xe-HPG``, ...
        chip: ``GA100``; empty if the vendor does not name it.
        num_sms: Streaming multiprocessors, compute units or GPU cores.
        clock_hz: Boost clock.
        peak_flop_per_s: Dense peak by precision; a fused multiply-add is 2 FLOP. A precision
            that the device lacks has no entry.
        memory_bytes: Capacity.
        memory_bytes_per_s: DRAM bandwidth.
        l2_bytes: Last-level cache on the device.
        link_bytes_per_s: Host link per direction: PCIe generation × lanes, NVLink-C2C, or the
            unified memory's own bandwidth.
        peer_bytes_per_s: NVLink or Infinity Fabric, sum of both directions; 0 without one.
        launch_generation: Generation whose launch latencies apply: ``kepler`` … ``blackwell``,
            ``cdna``, ``apple``, ``xe``; the id of its `Generation`.
        release_year: Year of release.
        tdp_watts: Board power.
        aliases: Other names in use.
        sources: Sources of the figures, one per line of the datasheet or its URL.
        notes: Peculiarities that affect the reading of a figure.
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
    """Common figures of the GPUs of one generation. Times in nanoseconds.

    Args:
        id: Stable lower-case identifier: ``ampere``.
        vendor: As in `DeviceSpec`; the generations of a vendor descend from each other.
        launch_ns: Host time of one kernel launch, beyond the operator's dispatch.
        latency_ns: From the enqueuing of a kernel to its start on an idle device.
        gap_ns: Smallest time between the end of a kernel and the start of the next on a stream.
        sync_ns: Host time of a stream sync or a blocked read once the device is idle.
        floor_ns: Shortest time that any kernel occupies a device.
        log_sigma: Standard deviation of the logarithm of these times between hosts and drivers.
        sources: Sources of the figures.
        watts_per_flop_per_s: Board power that sustains the boost clock under fp32 load, per fp32
            FLOP/s; None if every board is assumed to have enough.
        watts_per_matrix_flop_per_s: The same for fp16 on matrix units.
        board_clock_hz: Clock of boards under light load. It does not apply to data-center and
            integrated GPUs, which stay at their datasheet's clock; None if no board exceeds
            its datasheet.
        has_consumer_peer_access: Whether consumer cards access each other's memory over PCIe.
        fabric_boards: Substrings of the ids of devices whose fabric joins all GPUs of a machine.
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


# HERE is the id of the host measured on this machine. AUTO chooses a host by each GPU's market.
HERE, AUTO = "here", "auto"


class DeviceWork(msgspec.Struct, frozen=True, kw_only=True):
    """Extra host costs of a device's work, as measured on a host that has a device.

    Args:
        handoff_ns: Extra time of a backward pass over one on the CPU: the device's own autograd
            thread must wake up, and then wakes the waiting thread.
        convolution_factor: Host time of convolution and batch-norm calls, over the sum of the
            other costs.
        has_steps: Whether whole steps of its GPU gave these costs; the kind of machine then adds
            nothing.
    """

    handoff_ns: float = 0.0
    convolution_factor: float = 1.0
    has_steps: bool = False


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU that runs the training script, as the cost model sees it. Times in nanoseconds.

    Args:
        id: ``here``, or the name of an entry of the shared table.
        name: Processor, as the operating system names it.
        op_ns: One operator of a device: argument parsing and dispatcher, no autograd, no launch.
        python_ns: Python around an operator of a forward pass: modules and their wrappers.
        view_python_ns: Python around a view of a forward pass. Code with many reshapes, such as
            a transformer's, runs more Python of its own.
        autograd_ns: Extra time of recording an operator for backward.
        backward_ns: One operator of the backward pass, run by the autograd engine.
        backward_call_ns: One call of ``backward()``, independent of the operators that it runs.
        foreach_ns: One ``_foreach`` call of an optimizer, without its tensors.
        foreach_tensor_ns: Extra time of that call per tensor.
        view_ns: An operator that only makes a view.
        device_ns: Extra time of an operator on a device: the part of ``op_ns``, ``backward_ns``
            and ``foreach_ns`` that a CPU operator does not have; 0 if unknown.
        module_ns: A call of an empty module; 0 if unknown.
        step_ns: Python of a step outside of its operators: zeroing gradients, calling the
            optimizer; 0 if no step was measured.
        forward_factor: Measured host time of a step's forward pass, over the sum of the other
            costs.
        backward_factor: The same for the backward pass.
        optimizer_factor: The same for the update.
        source: The calibration that gave the figures: machine, date, torch version; then, after a
            semicolon, the assumption.
        assumption: Source of a device's share of an operator, if it was not measured with the
            rest.
        log_sigma: Standard deviation of the logarithm of a step's host time, predicted from
            these costs.
        load_fraction: Fraction of its processors that other processes used during the
            measurement.
        device_work: Extra costs of a device's work, on a host that has a device.
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
    # Keep unset, not empty: digests of earlier recordings lack these fields.
    assumption: str | UnsetType = UNSET
    device_work: DeviceWork | UnsetType = UNSET

    @property
    def is_measured(self) -> bool:
        """Return whether the figures were measured on this machine."""
        return self.id == HERE

    @property
    def seen_work(self) -> DeviceWork:
        """Return the extra costs of a device's work; the defaults on a host without a device."""
        return DeviceWork() if isinstance(self.device_work, UnsetType) else self.device_work

    def for_device(self, _device: DeviceSpec) -> HostSpec:
        """Return the host that feeds a GPU: this one, unchanged."""
        return self

    def kind_for(self, _device: DeviceSpec) -> HostKind | None:
        """Return the kind of machine that feeds a GPU; None if unspecified."""
        return None


class FeedingHost(HostSpec, frozen=True, kw_only=True):
    """A host in a kind of machine, and the hosts that replace it for some GPUs.

    Args:
        kind: The kind, whose factor `for_device` applies; unset for a machine that was measured
            and for a named CPU.
        data_center: Host of data-center GPUs; unset for this one.
        others: Hosts of single GPUs, by GPU id, if they are neither of the two.
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
        """Return a host with its kind of machine.

        Args:
            host: Its costs.
            kind: Its kind.
            data_center: Host of data-center GPUs.
        """
        return cls(**_costs(host), kind=kind, data_center=data_center)

    def each(self, change: Callable[[FeedingHost], FeedingHost]) -> FeedingHost:
        """Return this with ``change`` applied to each of its machines.

        Args:
            change: Maps a machine to its replacement.
        """
        rented, others = self.data_center, self.others
        if isinstance(others, tuple):
            others = tuple((gpu, change(host)) for gpu, host in others)
        if isinstance(rented, FeedingHost):
            rented = change(rented)
        return replace(change(self), data_center=rented, others=others)

    def for_device(self, device: DeviceSpec) -> HostSpec:
        """Return the host that feeds a GPU, with its kind's factor on the work within steps.

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
        """Return the kind of machine that feeds a GPU; None if unspecified.

        Args:
            device: The GPU.
        """
        kind = self._feeding(device).kind
        return kind if isinstance(kind, HostKind) else None

    def _feeding(self, device: DeviceSpec) -> FeedingHost:
        """Return the machine among these that feeds a GPU."""
        others = dict(self.others) if isinstance(self.others, tuple) else {}
        if device.id in others:
            return others[device.id]
        if isinstance(self.data_center, FeedingHost) and device.market == "datacenter":
            return self.data_center
        return self


def _costs(host: HostSpec) -> dict[str, Any]:
    """Return the fields of `HostSpec`."""
    return {name: getattr(host, name) for name in HostSpec.__struct_fields__}


class HostFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured time per call.

    Args:
        code: Stable identifier: ``op``, ``view``, ``module``, ``cuda_queued``, ...
        title: The called operation, for a person.
        median_ns: Median of the rounds, in nanoseconds.
        low_ns: Tenth percentile of the rounds.
        high_ns: Ninetieth percentile.
        used_for: Costs of the host that it gives; empty if it is only shown.
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
        figures: The times behind the costs, and others.
        num_rounds: Rounds, each of which measured every figure once.
        device_name: The CUDA device on which launches were also measured; empty without one.
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

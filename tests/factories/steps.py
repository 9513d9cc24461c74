"""Made-up steps and costs for the tests of the simulator and of rules.

The attributes of an operator contain its costs, so that a test can compute a timeline by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from breakeven.cost import CALL, FUSED, Family, HostPart, Kernel, KernelTimes, LaunchCosts, Lowering
from breakeven.device import DeviceSpec, HostSpec, Precision
from breakeven.errors import Caveat
from breakeven.trace import LoaderFacts, Location, ModelCall, Op, Phase, Settings, TensorSpec

HOST = HostSpec(
    id="made-up", name="Made-up host", op_ns=0, python_ns=0, view_python_ns=0, autograd_ns=0,
    backward_ns=0, backward_call_ns=0, foreach_ns=0, foreach_tensor_ns=0, view_ns=0,
    source="made up",
)  # fmt: skip


def made_up_device(name: str = "Made-up GPU", memory_bytes: float = 8e9) -> DeviceSpec:
    return DeviceSpec(
        id=name.lower().replace(" ", "-"), name=name, vendor="nvidia", market="datacenter",
        architecture="Ampere", num_sms=100, clock_hz=1e9,
        peak_flop_per_s={Precision.FP32: 1e12}, memory_bytes=memory_bytes,
        memory_bytes_per_s=1e12, l2_bytes=1e6, link_bytes_per_s=1e9,
        launch_generation="ampere", release_year=2020, tdp_watts=300, sources=("made up",),
    )  # fmt: skip


GPU = made_up_device()


def loader_facts(**changes: Any) -> LoaderFacts:
    """Return a loader of ten batches without workers or pinned memory."""
    values = {
        "location": None, "batch_size": 8, "num_samples": 80, "num_workers": 0,
        "pin_memory": False, "persistent_workers": False, "num_epochs": 1, "dataset": "Own",
    }  # fmt: skip
    return LoaderFacts(**values | changes)


def model_call(**changes: Any) -> ModelCall:
    """Return the call of a whole model at the first event, in training and used in backward."""
    values = {
        "model": "Net", "location": None, "stack": -1, "is_training": True, "has_grad": True,
        "is_used_in_backward": True, "first_event": 0, "num_events": 1,
    }  # fmt: skip
    return ModelCall(**values | changes)


def op(
    *kernel_ns: float,
    host_ns: float = 0,
    python_ns: float = 0,
    name: str = "aten.mul.Tensor",
    is_memory_bound: bool = False,
    is_latency_bound: bool = False,
    launches: int = 1,
    sigma: float = 0.0,
    phase: Phase = Phase.FORWARD,
    line: int | None = None,
    inputs: tuple[TensorSpec, ...] = (),
    outputs: tuple[TensorSpec, ...] = (),
    device: str = "cuda:0",
) -> Op:
    """Return an operator that runs these kernels and takes the host ``host_ns`` to issue.

    Python takes ``python_ns`` of the host's time, the dispatcher the rest.
    """
    return Op(
        name=name,
        inputs=inputs,
        outputs=outputs,
        attributes={
            "host_ns": host_ns,
            "python_ns": python_ns,
            "kernel_ns": list(kernel_ns),
            "limit": "memory" if is_memory_bound else "latency" if is_latency_bound else "",
            "launches": launches,
            "sigma": sigma,
        },
        phase=phase,
        location=at(line) if line is not None else None,
        host_ns=round(host_ns),
        device=device,
    )


def at(line: int) -> Location:
    return Location(file="train.py", line=line)


def tensor(*shape: int, storage: int = -1, device: str = "cpu", dtype: str = "float32"):
    return TensorSpec(shape=shape, dtype=dtype, device=device, storage=storage)


@dataclass(frozen=True, kw_only=True)
class MadeUpCosts:
    """A cost model that reads costs from the attributes of ``op``; a copied byte takes 1 ns.

    A generated kernel takes as long as its parts; entering a compiled graph takes no time. In a
    CUDA graph each launch takes ``replay_ns`` instead of ``floor_ns``.
    """

    launch_ns: float = 0.0
    latency_ns: float = 0.0
    gap_ns: float = 0.0
    sync_ns: float = 0.0
    graph_launch_ns: float = 0.0
    log_sigma: float = 0.0
    shared_sigma_fraction: float = 1.0
    copy_fixed_ns: float = 0.0
    read_ns: float = 0.0
    overlap_loss_fraction: float = 0.0
    floor_ns: float = 0.0
    replay_ns: float = 0.0

    def lower(self, op: Op, settings: Settings) -> Lowering:
        costs = op.attributes
        if op.name in (FUSED, CALL):
            limits = {"launches": 1, "limit": "", "sigma": 0.0}
            costs = {"kernel_ns": [costs["flop"]] if op.name == FUSED else [], **limits}
        return Lowering(
            kernels=tuple(
                Kernel(
                    family=Family.ELEMENTWISE,
                    flop=time_ns,
                    read_bytes=costs["sigma"],
                    write_bytes=0,
                    launches=costs["launches"],
                    variant=costs["limit"],
                )
                for time_ns in costs["kernel_ns"]
            ),
            caveat=Caveat(code="uncosted-op", message=op.name) if "odd" in op.name else None,
        )

    def kernel_times(self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> KernelTimes:
        def per_device(values: list[float]) -> np.ndarray:
            return np.repeat(np.array(values)[:, None], len(devices), axis=1)

        return KernelTimes(
            time_ns=per_device([kernel.flop for kernel in kernels]),
            log_sigma=per_device([kernel.read_bytes for kernel in kernels]),
            shared_log_sigma=per_device(
                [self.shared_sigma_fraction * kernel.read_bytes for kernel in kernels]
            ),
            is_memory_bound=per_device([k.variant == "memory" for k in kernels]).astype(bool),
            is_latency_bound=per_device([k.variant == "latency" for k in kernels]).astype(bool),
            floor_ns=per_device([k.launches * self.floor_ns for k in kernels]),
            replay_ns=per_device([k.launches * (self.gap_ns + self.replay_ns) for k in kernels]),
        )

    def calibration_date(self, device: DeviceSpec) -> str:
        return ""

    def launch_costs(self, device: DeviceSpec) -> LaunchCosts:
        return LaunchCosts(
            launch_ns=self.launch_ns,
            latency_ns=self.latency_ns,
            gap_ns=self.gap_ns,
            sync_ns=self.sync_ns,
            graph_launch_ns=self.graph_launch_ns,
            log_sigma=self.log_sigma,
            read_ns=self.read_ns,
        )

    def copy_ns(self, num_bytes: float, *, device: DeviceSpec, is_pinned: bool) -> float:
        return self.copy_fixed_ns + num_bytes

    def host_op_ns(self, op: Op, lowering: Lowering, host: HostSpec) -> float:
        return 0.0 if op.name in (FUSED, CALL) else op.attributes["host_ns"]

    def host_op_parts(
        self, op: Op, lowering: Lowering, host: HostSpec
    ) -> tuple[tuple[HostPart, float], ...]:
        host_ns = self.host_op_ns(op, lowering, host)
        python_ns = op.attributes.get("python_ns", 0.0)
        return ((HostPart.PYTHON, python_ns), (HostPart.DISPATCH_POINTWISE, host_ns - python_ns))

    def dispatch_ns(self, host: HostSpec) -> float:
        return host.op_ns

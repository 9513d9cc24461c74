"""Samples on a device, timed, and as the kernels that they are predicted to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import nn

from breakeven.calibrate.fit import TimedKernel
from breakeven.calibrate.gpu.samples import DTYPES, Sample
from breakeven.capture import FakeSession
from breakeven.cost import Family, Kernel, MeasuredSample, lower, steps_on
from breakeven.device import DeviceSpec, Precision
from breakeven.measure import DeviceTimer
from breakeven.trace import Op, Settings
from breakeven.workloads import products_in_tf32

# Of one sample, warm-up apart.
_BUDGET_S = 0.04
# Of one call: longer ones, as in fp64 on a GPU for games, would take the time of all others.
_MOST_S = 1.0


class DevicePlace:
    """Makes tensors on a device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype

    def tensor(self, *shape: int, needs_grad: bool = False) -> torch.Tensor:
        """Return a tensor of random numbers: products of zeros draw less power."""
        values = torch.randn(*shape, device=self._device, dtype=self._dtype)
        return values.requires_grad_(needs_grad)

    def indices(self, *shape: int, below: int) -> torch.Tensor:
        """Return a tensor of random whole numbers."""
        return torch.randint(below, shape, device=self._device)

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Return a module on the device."""
        return make().to(self._device, self._dtype)


class _FakePlace(DevicePlace):
    """Makes tensors without memory, which a session takes for a GPU's."""

    def __init__(self, session: FakeSession, dtype: torch.dtype) -> None:
        super().__init__(torch.device("cpu"), dtype)
        self._session = session

    def tensor(self, *shape: int, needs_grad: bool = False) -> torch.Tensor:
        values = super().tensor(*shape, needs_grad=needs_grad)
        self._session.place((values,))
        return values

    def indices(self, *shape: int, below: int) -> torch.Tensor:
        values = super().indices(*shape, below=below)
        self._session.place((values,))
        return values

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        module = super().module(make)
        self._session.place((*module.parameters(), *module.buffers()))
        return module


class SampleKernels:
    """Within, the kernels that samples are predicted to run; nothing is computed."""

    def __init__(self) -> None:
        self._session = FakeSession()

    def __enter__(self) -> Self:
        self._session.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._session.__exit__(*exception)

    def of(self, sample: Sample, precision: Precision) -> tuple[Kernel, ...]:
        """Return what a GPU runs for a sample."""
        is_tf32 = precision is Precision.TF32
        settings = Settings(allow_tf32_matmul=is_tf32, allow_tf32_convolution=is_tf32)
        call = sample.build(_FakePlace(self._session, DTYPES[precision]))
        return tuple(
            kernel
            for event in self._session.record(call).events
            if isinstance(event, Op) and not event.is_on_host
            for kernel in lower(event, settings).kernels
        )


def time_sample(sample: Sample, precision: Precision, timer: DeviceTimer) -> MeasuredSample:
    """Return how long a sample takes.

    Raises:
        RuntimeError: The device has not got the memory or the operator.
        BreakevenError: A call takes longer than a second.
    """
    with products_in_tf32(is_allowed=precision is Precision.TF32):
        call = sample.build(DevicePlace(timer.device, DTYPES[precision]))
        found = timer.time_call(call, budget_s=_BUDGET_S, most_s=_MOST_S)
    return MeasuredSample(
        name=sample.name,
        precision=precision,
        time_ns=found.time_ns,
        spread=round(found.spread, 3),
        num_calls=found.num_calls,
    )


def timed_kernel(
    sample: Sample, measured: MeasuredSample, kernels: Sequence[Kernel], device: DeviceSpec
) -> TimedKernel | None:
    """Return a measured sample as the fit takes it; None where it tells of no single kernel.

    Args:
        sample: What was called.
        measured: How long it took.
        kernels: What a GPU runs for it.
        device: Where.
    """
    kernel = _as_one([steps_on(one, device) for one in kernels if one.family is sample.family])
    if kernel is None:
        return None
    return TimedKernel(
        device=device,
        kernel=kernel,
        time_ns=measured.time_ns,
        source="measured here",
        others=tuple(other for other in kernels if other.family is not sample.family),
    )


def _as_one(kernels: list[Kernel]) -> Kernel | None:
    """Return kernels of one kind as one; None where there are none, or of different kinds."""
    if len(kernels) < 2:
        return kernels[0] if kernels else None
    first = kernels[0]
    is_recurrent = first.family is Family.RECURRENT
    if is_recurrent or len({(k.variant, k.precision) for k in kernels}) != 1:
        return None
    return Kernel(
        family=first.family,
        variant=first.variant,
        precision=first.precision,
        flop=sum(kernel.flop for kernel in kernels),
        read_bytes=sum(kernel.read_bytes for kernel in kernels),
        write_bytes=sum(kernel.write_bytes for kernel in kernels),
        launches=sum(kernel.launches for kernel in kernels),
    )

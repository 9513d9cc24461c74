"""The single kernels to time on a GPU, and their timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import nn

from breakeven.calibrate.fit import TimedKernel, summed
from breakeven.capture import FakeSession
from breakeven.cost import Family, Kernel, MeasuredSample, lower, steps_on
from breakeven.device import DeviceSpec, Precision
from breakeven.measure import DeviceTimer
from breakeven.trace import Op, Settings
from breakeven.workloads import products_in_tf32

DTYPES = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,
    Precision.FP16: torch.float16,
    Precision.BF16: torch.bfloat16,
}
# The order of the measurements: the most common training formats first.
PRECISIONS = (Precision.BF16, Precision.FP32, Precision.TF32, Precision.FP16)
# Kernels that only move bytes take equally long in both 16-bit formats, and TF32 moves fp32.
_STREAMED = (Precision.FP32, Precision.BF16)
# Divisor of sizes for tests of the whole path on a CPU.
TINY = 16
# Seconds for one sample, without warm-up.
_BUDGET_S = 0.04
# Limit on one call: a longer one would use up the time of the others.
_MOST_S = 1.0

Call = Callable[[], object]


class Place:
    """Makes the tensors of a sample on a device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype

    def tensor(self, *shape: int, needs_grad: bool = False) -> torch.Tensor:
        """Return a tensor of random numbers, since products of zeros draw less power."""
        values = torch.randn(*shape, device=self._device, dtype=self._dtype)
        return values.requires_grad_(needs_grad)

    def indices(self, *shape: int, below: int) -> torch.Tensor:
        """Return a tensor of random whole numbers."""
        return torch.randint(below, shape, device=self._device)

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Return a module with parameters of the sample's dtype."""
        return make().to(self._device, self._dtype)


class _FakePlace(Place):
    """Makes tensors without memory, which a session treats as a GPU's."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call to time.

    Args:
        name: A unique name, with the sizes.
        family: Family of the kernel to measure.
        build: Makes the tensors, and returns the call.
        is_quick: Whether it is on the short list.
        precisions: Precisions to measure.
    """

    name: str
    family: Family
    build: Callable[[Place], Call]
    is_quick: bool = False
    precisions: tuple[Precision, ...] = PRECISIONS


# Functions that make the calls, each from a place and sizes.


def _add(place: Place, *sizes: int) -> Call:
    x, y = place.tensor(*sizes), place.tensor(*sizes)
    return lambda: torch.add(x, y)


def _on_one_tensor(place: Place, *sizes: int, call: Callable[[torch.Tensor], object]) -> Call:
    x = place.tensor(*sizes)
    return lambda: call(x)


def _linear(place: Place, m: int, n: int, k: int) -> Call:
    x, weight, bias = place.tensor(m, k), place.tensor(n, k), place.tensor(n)
    return lambda: F.linear(x, weight, bias)


def _bmm(place: Place, b: int, m: int, n: int, k: int) -> Call:
    x, y = place.tensor(b, m, k), place.tensor(b, k, n)
    return lambda: torch.bmm(x, y)


def _convolve(
    place: Place, images: int, c_in: int, side: int, c_out: int, window: int, *,
    groups: int, mask: list[bool] | None,
) -> Call:  # fmt: skip
    aten: Any = torch.ops.aten
    x = place.tensor(images, c_in, side, side)
    weight = place.tensor(c_out, c_in // groups, window, window)
    shared = ([1, 1], [window // 2] * 2, [1, 1], False, [0, 0], groups)
    if mask is None:
        return lambda: aten.convolution(x, weight, None, *shared)
    gradient = place.tensor(images, c_out, side, side)
    return lambda: aten.convolution_backward(gradient, x, weight, None, *shared, mask)


def _attend(
    place: Place, b: int, h: int, s: int, d: int, *, is_causal: bool, is_backward: bool
) -> Call:
    qkv = tuple(place.tensor(b, h, s, d, needs_grad=is_backward) for _ in range(3))
    attend = partial(F.scaled_dot_product_attention, *qkv, is_causal=is_causal)
    return _backward_of(attend, qkv, place) if is_backward else attend


def _layer_norm(place: Place, *sizes: int, is_backward: bool) -> Call:
    x = place.tensor(*sizes, needs_grad=is_backward)
    weight, bias = (place.tensor(sizes[1], needs_grad=is_backward) for _ in range(2))
    norm = partial(F.layer_norm, x, (sizes[1],), weight, bias)
    return _backward_of(norm, (x, weight, bias), place) if is_backward else norm


def _batch_norm(place: Place, *sizes: int, is_backward: bool) -> Call:
    x = place.tensor(*sizes, needs_grad=is_backward)
    weight, bias = (place.tensor(sizes[1], needs_grad=is_backward) for _ in range(2))
    norm = partial(F.batch_norm, x, None, None, weight, bias, training=True)
    return _backward_of(norm, (x, weight, bias), place) if is_backward else norm


def _backward_of(
    call: Callable[[], torch.Tensor], inputs: tuple[torch.Tensor, ...], place: Place
) -> Call:
    result = call()
    gradient = place.tensor(*result.shape)
    return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)


def _recur(
    place: Place, inputs: int, hidden: int, layers: int, steps: int, batch: int, *, kind: str
) -> Call:
    net = place.module(lambda: getattr(nn, kind)(inputs, hidden, layers))
    x = place.tensor(steps, batch, inputs)
    return lambda: net(x)


def _embed(place: Place, num_rows: int, width: int) -> Call:
    table, rows = place.tensor(32_000, width), place.indices(num_rows, below=32_000)
    return lambda: F.embedding(rows, table)


_PRODUCTS_MNK = (
    (2048, 2048, 2048), (8192, 4096, 1024), (512, 512, 512), (4096, 4096, 4096), (128, 4096, 1024),
    (16384, 768, 3072), (1024, 1024, 1024), (64, 1024, 1024), (256, 256, 256), (32, 50257, 768),
    (16384, 64, 576), (4096, 512, 4608), (384, 384, 384), (2048, 512, 128), (8192, 8192, 8192),
)  # fmt: skip
_BATCHED_BMNK = (
    (96, 1024, 1024, 64), (384, 128, 128, 64), (96, 1024, 64, 1024), (12, 2048, 2048, 128),
    (16, 512, 512, 512), (64, 256, 256, 64),
)  # fmt: skip
# Images, input channels, side in pixels, output channels, window, groups.
_CONVOLUTIONS = (
    (64, 64, 56, 64, 3, 1), (64, 256, 14, 256, 3, 1), (64, 256, 56, 64, 1, 1),
    (64, 128, 28, 128, 3, 1), (64, 3, 224, 64, 7, 1), (64, 512, 7, 512, 3, 1),
    (64, 1024, 14, 256, 1, 1), (64, 96, 56, 96, 3, 96), (16, 64, 56, 64, 3, 1),
)  # fmt: skip
_PHASES = {"forward": None, "input": [True, False, False], "weight": [False, True, False]}
# Batch, heads, sequence, width of a head, whether causal.
_ATTENTION_BHSD = (
    (8, 12, 1024, 64, True), (32, 12, 128, 64, False), (2, 16, 4096, 128, True),
    (16, 12, 512, 64, False), (64, 8, 64, 64, True),
)  # fmt: skip
# Inputs, hidden units, layers, time steps, batch.
_RECURRENT_IHLTB = (
    (64, 64, 1, 50, 32), (256, 256, 1, 100, 64), (512, 512, 1, 50, 64), (1024, 1024, 1, 25, 64),
)  # fmt: skip


def all_samples(*, is_tiny: bool = False) -> tuple[Sample, ...]:
    """Return every sample, the most informative first.

    Args:
        is_tiny: Use sizes that a CPU computes instantly, for tests.
    """
    found: list[Sample] = []

    def cut(*sizes: int) -> tuple[int, ...]:
        return tuple(max(2, size // TINY) for size in sizes) if is_tiny else sizes

    def take(
        kind: str, family: Family, make: Callable[..., Call], sizes: tuple[int, ...], *,
        is_quick: bool, precisions: tuple[Precision, ...] = PRECISIONS,
    ) -> None:  # fmt: skip
        found.append(
            Sample(
                name=f"{kind} {'x'.join(map(str, sizes))}",
                family=family,
                build=lambda place: make(place, *sizes),
                is_quick=is_quick,
                precisions=precisions,
            )
        )

    def stream(
        kind: str, family: Family, make: Callable[..., Call], sizes: tuple[int, ...],
        is_quick: bool = True,
    ) -> None:  # fmt: skip
        take(kind, family, make, sizes, is_quick=is_quick, precisions=_STREAMED)

    gelu, softmax, total, pool = (
        partial(_on_one_tensor, call=call)
        for call in (
            F.gelu, lambda x: torch.softmax(x, -1), lambda x: x.sum(0),
            lambda x: F.max_pool2d(x, 3, 2, 1),
        )
    )  # fmt: skip
    for size, is_quick in ((2**26, True), (2**24, True), (2**22, False), (2**20, False)):
        sizes = cut(size // 1024, 1024)
        stream("add", Family.ELEMENTWISE, _add, sizes, is_quick)
        stream("gelu", Family.ELEMENTWISE, gelu, sizes, is_quick=False)
    for number, mnk in enumerate(_PRODUCTS_MNK):
        take("linear", Family.GEMM, _linear, cut(*mnk), is_quick=number < 5)
    for number, bmnk in enumerate(_BATCHED_BMNK):
        take("bmm", Family.BATCHED_GEMM, _bmm, cut(*bmnk), is_quick=number < 2)
    for number, (images, c_in, side, c_out, window, groups) in enumerate(_CONVOLUTIONS):
        images, side = cut(images, side)
        for phase, mask in _PHASES.items():
            if phase == "input" and c_in == 3:
                continue  # no step needs the gradient of its images
            kind = f"conv{'-depthwise' if groups > 1 else ''}-{phase}"
            make = partial(_convolve, groups=groups, mask=mask)
            sizes = (images, c_in, side, c_out, window)
            take(kind, Family.CONVOLUTION, make, sizes, is_quick=number < 2)
    for number, (*bhs, d, is_causal) in enumerate(_ATTENTION_BHSD):
        for is_backward in (False, True):
            take(
                f"attention{'-causal' if is_causal else ''}{'-backward' if is_backward else ''}",
                Family.ATTENTION,
                partial(_attend, is_causal=is_causal, is_backward=is_backward),
                (*cut(*bhs), d),
                is_quick=number < 2,
                precisions=(Precision.BF16, Precision.FP16, Precision.FP32),
            )
    norms = [("layer_norm", _layer_norm, cut(*sizes))
             for sizes in ((8192, 768), (32768, 256), (4096, 4096))]  # fmt: skip
    for images, width, side in ((64, 64, 56), (64, 256, 56), (64, 512, 7)):
        images, side = cut(images, side)
        norms.append(("batch_norm", _batch_norm, (images, width, side, side)))
    for kind, make, sizes in norms:
        for is_backward, end in ((False, ""), (True, "-backward")):
            norm = partial(make, is_backward=is_backward)
            stream(f"{kind}{end}", Family.NORMALIZATION, norm, sizes, is_quick=not is_backward)
    for inputs, hidden, layers, steps, batch in _RECURRENT_IHLTB:
        inputs, hidden, steps, batch = cut(inputs, hidden, steps, batch)
        for kind in ("LSTM", "GRU"):
            take(
                kind.lower(),
                Family.RECURRENT,
                partial(_recur, kind=kind),
                (inputs, hidden, layers, steps, batch),
                is_quick=kind == "LSTM",
                precisions=(Precision.FP32, Precision.BF16, Precision.FP16),
            )
    for rows, width in ((8192, 768), (65536, 128), (4096, 4096)):
        sizes = cut(rows, width)
        stream("softmax", Family.SOFTMAX, softmax, sizes)
        stream("sum", Family.REDUCTION, total, sizes)
        stream("embedding", Family.GATHER, _embed, sizes)
    for images, width, side in ((64, 64, 112), (64, 256, 28)):
        images, side = cut(images, side)
        stream("max_pool", Family.POOLING, pool, (images, width, side, side))
    return tuple(found)


def sample_kernels(
    sample: Sample, precision: Precision, session: FakeSession
) -> tuple[Kernel, ...]:
    """Return the kernels that a GPU is predicted to run for a sample, without computing it.

    Args:
        sample: The sample.
        precision: Its precision.
        session: An open session; it may serve many samples.
    """
    is_tf32 = precision is Precision.TF32
    settings = Settings(allow_tf32_matmul=is_tf32, allow_tf32_convolution=is_tf32)
    call = sample.build(_FakePlace(session, DTYPES[precision]))
    return tuple(
        kernel
        for event in session.record(call).events
        if isinstance(event, Op) and not event.is_on_host
        for kernel in lower(event, settings).kernels
    )


def time_sample(sample: Sample, precision: Precision, timer: DeviceTimer) -> MeasuredSample:
    """Time a sample.

    Raises:
        RuntimeError: If the device lacks the memory or the operator.
        BreakevenError: If a call takes longer than a second.
    """
    with products_in_tf32(is_allowed=precision is Precision.TF32):
        call = sample.build(Place(timer.device, DTYPES[precision]))
        found = timer.time_call(call, budget_s=_BUDGET_S, most_s=_MOST_S)
    return MeasuredSample(
        name=sample.name,
        precision=precision,
        time_ns=found.time_ns,
        spread=round(found.spread, 3),
        num_calls=found.num_calls,
    )


def timed_kernel(
    sample: Sample, time_ns: float, kernels: Sequence[Kernel], device: DeviceSpec
) -> TimedKernel | None:
    """Convert a measured sample for the fit; None if it does not measure a single kernel.

    Args:
        sample: The sample.
        time_ns: Its measured time.
        kernels: The kernels that a GPU runs for it.
        device: The GPU.
    """
    own = [steps_on(one, device) for one in kernels if one.family is sample.family]
    if not own:
        return None
    kernel = own[0]
    if len(own) > 1:  # merge them if they are alike
        is_recurrent = kernel.family is Family.RECURRENT
        if is_recurrent or len({(one.variant, one.precision) for one in own}) != 1:
            return None
        kernel = summed(own)
    return TimedKernel(
        device=device,
        kernel=kernel,
        time_ns=time_ns,
        source="measured here",
        others=tuple(other for other in kernels if other.family is not sample.family),
    )

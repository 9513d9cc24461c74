"""Single kernels that are timed on a GPU: which, and how long each takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import nn

from breakeven.calibrate.fit import TimedKernel
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
    Precision.FP64: torch.float64,
}
# The order in which they are measured: what most people train in first.
PRECISIONS = (Precision.BF16, Precision.FP32, Precision.TF32, Precision.FP16)

Call = Callable[[], object]


class Place(Protocol):
    """Makes the tensors of a sample: on a device, or as fakes without memory."""

    def tensor(self, *shape: int, needs_grad: bool = False) -> torch.Tensor:
        """Return a tensor of random numbers."""
        ...

    def indices(self, *shape: int, below: int) -> torch.Tensor:
        """Return a tensor of random whole numbers."""
        ...

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Return a module with parameters of the sample's dtype."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call that is timed.

    Args:
        name: Unique, with the sizes.
        family: Of the kernel that it is to tell of.
        build: Makes the tensors, and returns the call.
        is_quick: Whether the short list has it.
        precisions: In which it is measured.
    """

    name: str
    family: Family
    build: Callable[[Place], Call]
    is_quick: bool = False
    precisions: tuple[Precision, ...] = PRECISIONS

    @property
    def has_fp64(self) -> bool:
        """Return whether fp64 is measured on request: what is multiplied differs most there."""
        return self.family in (Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION)


# Sizes are divided by it where the whole path is tested on a CPU.
TINY = 16
# What only moves bytes is the same for the two formats of 16 bits, and TF32 is none of its own.
_STREAMED = (Precision.FP32, Precision.BF16)


def all_samples(*, is_tiny: bool = False) -> tuple[Sample, ...]:
    """Return every sample, the most telling first.

    Args:
        is_tiny: With sizes that a CPU computes in no time, for tests.
    """
    small = TINY if is_tiny else 1

    def cut(*sizes: int) -> tuple[int, ...]:
        return tuple(max(2, size // small) for size in sizes)

    families = (_streams, _products, _batched, _convolutions, _attention, _normalizations,
                _recurrent, _others)  # fmt: skip
    return tuple(sample for family in families for sample in family(cut))


Cut = Callable[..., tuple[int, ...]]


def _sized(name: str, sizes: tuple[int, ...]) -> str:
    return f"{name} {'x'.join(map(str, sizes))}"


def _streams(cut: Cut) -> Iterator[Sample]:
    for size, is_quick in ((2**26, True), (2**24, True), (2**22, False), (2**20, False)):
        sizes = cut(size // 1024, 1024)

        def add(place: Place, sizes: tuple[int, ...] = sizes) -> Call:
            x, y = place.tensor(*sizes), place.tensor(*sizes)
            return lambda: torch.add(x, y)

        def gelu(place: Place, sizes: tuple[int, ...] = sizes) -> Call:
            x = place.tensor(*sizes)
            return lambda: F.gelu(x)

        for name, build in (("add", add), ("gelu", gelu)):
            yield Sample(
                name=_sized(name, sizes),
                family=Family.ELEMENTWISE,
                build=build,
                is_quick=is_quick and name == "add",
                precisions=_STREAMED,
            )


_PRODUCTS_MNK = (
    (2048, 2048, 2048), (8192, 4096, 1024), (512, 512, 512), (4096, 4096, 4096), (128, 4096, 1024),
    (16384, 768, 3072), (1024, 1024, 1024), (64, 1024, 1024), (256, 256, 256), (32, 50257, 768),
    (16384, 64, 576), (4096, 512, 4608), (384, 384, 384), (2048, 512, 128), (8192, 8192, 8192),
)  # fmt: skip
_NUM_QUICK = 5


def _products(cut: Cut) -> Iterator[Sample]:
    for number, mnk in enumerate(_PRODUCTS_MNK):
        m, n, k = sizes = cut(*mnk)

        def linear(place: Place, m: int = m, n: int = n, k: int = k) -> Call:
            x, weight, bias = place.tensor(m, k), place.tensor(n, k), place.tensor(n)
            return lambda: F.linear(x, weight, bias)

        yield Sample(
            name=_sized("linear", sizes),
            family=Family.GEMM,
            build=linear,
            is_quick=number < _NUM_QUICK,
        )


_BATCHED_BMNK = (
    (96, 1024, 1024, 64), (384, 128, 128, 64), (96, 1024, 64, 1024), (12, 2048, 2048, 128),
    (16, 512, 512, 512), (64, 256, 256, 64),
)  # fmt: skip


def _batched(cut: Cut) -> Iterator[Sample]:
    for number, bmnk in enumerate(_BATCHED_BMNK):
        b, m, n, k = sizes = cut(*bmnk)

        def product(place: Place, b: int = b, m: int = m, n: int = n, k: int = k) -> Call:
            x, y = place.tensor(b, m, k), place.tensor(b, k, n)
            return lambda: torch.bmm(x, y)

        yield Sample(
            name=_sized("bmm", sizes),
            family=Family.BATCHED_GEMM,
            build=product,
            is_quick=number < 2,
        )


# Images, channels, pixels, channels of the result, window, groups.
_CONVOLUTIONS = (
    (64, 64, 56, 64, 3, 1), (64, 256, 14, 256, 3, 1), (64, 256, 56, 64, 1, 1),
    (64, 128, 28, 128, 3, 1), (64, 3, 224, 64, 7, 1), (64, 512, 7, 512, 3, 1),
    (64, 1024, 14, 256, 1, 1), (64, 96, 56, 96, 3, 96), (16, 64, 56, 64, 3, 1),
)  # fmt: skip
_PHASES = {"forward": None, "input": [True, False, False], "weight": [False, True, False]}


def _convolutions(cut: Cut) -> Iterator[Sample]:
    aten: Any = torch.ops.aten
    for number, sizes in enumerate(_CONVOLUTIONS):
        images, c_in, side, c_out, window, groups = sizes
        (images, side), is_first = cut(images, side), c_in == 3
        for phase, mask in _PHASES.items():
            if phase == "input" and is_first:
                continue  # no step needs the gradient of its images

            def convolve(
                place: Place,
                images: int = images, c_in: int = c_in, side: int = side, c_out: int = c_out,
                window: int = window, groups: int = groups, mask: list[bool] | None = mask,
            ) -> Call:  # fmt: skip
                x = place.tensor(images, c_in, side, side)
                weight = place.tensor(c_out, c_in // groups, window, window)
                shared = ([1, 1], [window // 2] * 2, [1, 1], False, [0, 0], groups)
                if mask is None:
                    return lambda: aten.convolution(x, weight, None, *shared)
                gradient = place.tensor(images, c_out, side, side)
                return lambda: aten.convolution_backward(gradient, x, weight, None, *shared, mask)

            shown = (images, c_in, side, c_out, window)
            kind = f"conv{'-depthwise' if groups > 1 else ''}-{phase}"
            yield Sample(
                name=_sized(kind, shown),
                family=Family.CONVOLUTION,
                build=convolve,
                is_quick=number < 2,
            )


# Batch, heads, sequence, width of a head, whether causal.
_ATTENTION_BHSD = (
    (8, 12, 1024, 64, True), (32, 12, 128, 64, False), (2, 16, 4096, 128, True),
    (16, 12, 512, 64, False), (64, 8, 64, 64, True),
)  # fmt: skip


def _attention(cut: Cut) -> Iterator[Sample]:
    for number, (*bhsd, is_causal) in enumerate(_ATTENTION_BHSD):
        b, h, s, d = sizes = (*cut(*bhsd[:3]), bhsd[3])
        for is_backward in (False, True):

            def attend(
                place: Place, b: int = b, h: int = h, s: int = s, d: int = d,
                is_causal: bool = is_causal, is_backward: bool = is_backward,
            ) -> Call:  # fmt: skip
                q, k, v = (place.tensor(b, h, s, d, needs_grad=is_backward) for _ in range(3))
                if not is_backward:
                    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
                result = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
                gradient = place.tensor(b, h, s, d)
                return lambda: torch.autograd.grad(result, (q, k, v), gradient, retain_graph=True)

            kind = f"attention{'-causal' if is_causal else ''}{'-backward' if is_backward else ''}"
            yield Sample(
                name=_sized(kind, sizes),
                family=Family.ATTENTION,
                build=attend,
                is_quick=number < 2,
                precisions=(Precision.BF16, Precision.FP16, Precision.FP32),
            )


def _normalizations(cut: Cut) -> Iterator[Sample]:
    for rows, width in ((8192, 768), (32768, 256), (4096, 4096)):
        sizes = cut(rows, width)
        for is_backward in (False, True):

            def layer_norm(
                place: Place, sizes: tuple[int, ...] = sizes, is_backward: bool = is_backward
            ) -> Call:
                x = place.tensor(*sizes, needs_grad=is_backward)
                weight, bias = (place.tensor(sizes[1], needs_grad=is_backward) for _ in range(2))
                return _maybe_backward(
                    lambda: F.layer_norm(x, (sizes[1],), weight, bias),
                    (x, weight, bias), place, is_backward=is_backward,
                )  # fmt: skip

            yield _streamed("layer_norm", sizes, Family.NORMALIZATION, layer_norm, is_backward)
    for images, channels, side in ((64, 64, 56), (64, 256, 56), (64, 512, 7)):
        (images, side), width = cut(images, side), channels
        sizes = (images, width, side, side)
        for is_backward in (False, True):

            def batch_norm(
                place: Place, sizes: tuple[int, ...] = sizes, is_backward: bool = is_backward
            ) -> Call:
                x = place.tensor(*sizes, needs_grad=is_backward)
                weight, bias = (place.tensor(sizes[1], needs_grad=is_backward) for _ in range(2))
                return _maybe_backward(
                    lambda: F.batch_norm(x, None, None, weight, bias, training=True),
                    (x, weight, bias), place, is_backward=is_backward,
                )  # fmt: skip

            yield _streamed("batch_norm", sizes, Family.NORMALIZATION, batch_norm, is_backward)


def _streamed(
    name: str,
    sizes: tuple[int, ...],
    family: Family,
    build: Callable[[Place], Call],
    is_backward: bool = False,
) -> Sample:
    return Sample(
        name=_sized(f"{name}-backward" if is_backward else name, sizes),
        family=family,
        build=build,
        is_quick=not is_backward,
        precisions=_STREAMED,
    )


def _maybe_backward(
    call: Callable[[], torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    place: Place,
    *,
    is_backward: bool,
) -> Call:
    """Return the call, or its backward pass alone."""
    if not is_backward:
        return call
    result = call()
    gradient = place.tensor(*result.shape)
    return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)


# Inputs, hidden units, layers, time steps, batch.
_RECURRENT_IHLTB = (
    (64, 64, 1, 50, 32), (256, 256, 1, 100, 64), (512, 512, 1, 50, 64), (1024, 1024, 1, 25, 64),
)  # fmt: skip


def _recurrent(cut: Cut) -> Iterator[Sample]:
    for inputs, hidden, layers, steps, batch in _RECURRENT_IHLTB:
        (inputs, hidden, steps, batch) = cut(inputs, hidden, steps, batch)
        for kind in ("LSTM", "GRU"):

            def recur(
                place: Place, kind: str = kind, inputs: int = inputs, hidden: int = hidden,
                layers: int = layers, steps: int = steps, batch: int = batch,
            ) -> Call:  # fmt: skip
                net = place.module(lambda: getattr(nn, kind)(inputs, hidden, layers))
                x = place.tensor(steps, batch, inputs)
                return lambda: net(x)

            yield Sample(
                name=_sized(kind.lower(), (inputs, hidden, layers, steps, batch)),
                family=Family.RECURRENT,
                build=recur,
                is_quick=kind == "LSTM",
                precisions=(Precision.FP32, Precision.BF16, Precision.FP16),
            )


def _others(cut: Cut) -> Iterator[Sample]:
    for rows, width in ((8192, 768), (65536, 128), (4096, 4096)):
        sizes = cut(rows, width)

        def softmax(place: Place, sizes: tuple[int, ...] = sizes) -> Call:
            x = place.tensor(*sizes)
            return lambda: torch.softmax(x, -1)

        def total(place: Place, sizes: tuple[int, ...] = sizes) -> Call:
            x = place.tensor(*sizes)
            return lambda: x.sum(0)

        def embed(place: Place, sizes: tuple[int, ...] = sizes) -> Call:
            table = place.tensor(32_000, sizes[1])
            rows = place.indices(sizes[0], below=32_000)
            return lambda: F.embedding(rows, table)

        yield _streamed("softmax", sizes, Family.SOFTMAX, softmax)
        yield _streamed("sum", sizes, Family.REDUCTION, total)
        yield _streamed("embedding", sizes, Family.GATHER, embed)
    for images, channels, side in ((64, 64, 112), (64, 256, 28)):
        (images, side), width = cut(images, side), channels
        sizes = (images, width, side, side)

        def pool(place: Place, sizes: tuple[int, ...] = sizes) -> Call:
            x = place.tensor(*sizes)
            return lambda: F.max_pool2d(x, 3, 2, 1)

        yield _streamed("max_pool", sizes, Family.POOLING, pool)


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

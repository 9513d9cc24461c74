"""Kernel times: what must hold for any kernel and device."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from breakeven.cost import Family, Kernel, kernel_times
from breakeven.device import DeviceSpec, Precision, load_catalogue

TILED = (Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.RECURRENT)

devices = st.sampled_from(load_catalogue())
factors = st.floats(1.0, 50.0)
sizes = st.integers(1, 5_000)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    family = draw(st.sampled_from(list(Family)))
    precision = draw(st.sampled_from(list(Precision)))
    if family not in TILED:
        return Kernel(
            family=family,
            flop=draw(st.floats(0, 1e12)),
            read_bytes=draw(st.floats(0, 1e10)),
            write_bytes=draw(st.floats(0, 1e10)),
            precision=precision,
            launches=draw(st.integers(1, 20)),
        )
    kernel = Kernel(
        family=family,
        precision=precision,
        flop=0.0,
        read_bytes=0.0,
        write_bytes=0.0,
        m=draw(sizes),
        n=draw(sizes),
        k=draw(sizes),
        batch=draw(st.integers(1, 64)),
    )
    return with_its_work(kernel)


def with_its_work(kernel: Kernel) -> Kernel:
    """Return a product with the arithmetic and the bytes of its sizes."""
    m, n, k, batch = kernel.m, kernel.n, kernel.k, kernel.batch
    return msgspec.structs.replace(
        kernel,
        flop=2.0 * m * n * k * batch,
        read_bytes=4.0 * batch * (m * k + k * n),
        write_bytes=4.0 * batch * m * n,
    )


def time_ns(kernel: Kernel, device: DeviceSpec) -> float:
    return float(kernel_times([kernel], [device]).time_ns[0, 0])


@given(kernels(), devices, factors)
def test_more_work_is_never_faster(kernel: Kernel, device: DeviceSpec, factor: float) -> None:
    before = time_ns(kernel, device)
    for field in ("flop", "read_bytes", "write_bytes"):
        more = msgspec.structs.replace(kernel, **{field: getattr(kernel, field) * factor})
        assert time_ns(more, device) >= before * (1 - 1e-9)


@given(kernels(), devices, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 3_000))
def test_a_larger_product_is_never_faster(
    kernel: Kernel, device: DeviceSpec, side: str, more: int
) -> None:
    if kernel.m == 0 or kernel.family is Family.CONVOLUTION or (side, kernel.batch) == ("batch", 1):
        # Channels of another alignment, and a single product, are computed in another way.
        return
    larger = with_its_work(msgspec.structs.replace(kernel, **{side: getattr(kernel, side) + more}))
    assert time_ns(larger, device) >= time_ns(kernel, device) * (1 - 1e-9)


@given(kernels(), devices, factors)
def test_more_bandwidth_or_peak_is_never_slower(
    kernel: Kernel, device: DeviceSpec, factor: float
) -> None:
    before = time_ns(kernel, device)
    peaks = {precision: rate * factor for precision, rate in device.peak_flop_per_s.items()}
    for better in (
        msgspec.structs.replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factor),
        msgspec.structs.replace(device, peak_flop_per_s=peaks),
    ):
        assert time_ns(kernel, better) <= before * (1 + 1e-9)


@given(kernels(), devices)
def test_never_faster_than_the_datasheet_nor_the_floor(kernel: Kernel, device: DeviceSpec) -> None:
    # No variant asks for Winograd here, the one case that may exceed the nominal peak.
    peak = max(device.peak_flop_per_s.values())
    assert time_ns(kernel, device) >= 1e9 * kernel.flop / peak * (1 - 1e-9)
    cold = kernel_times([kernel], [device], warm_fraction=0.0).time_ns[0, 0]
    assert cold >= 1e9 * kernel.num_bytes / device.memory_bytes_per_s
    empty = msgspec.structs.replace(kernel, flop=0.0, read_bytes=0.0, write_bytes=0.0)
    floor = time_ns(empty, device)
    assert floor > 0
    assert time_ns(kernel, device) >= floor


@given(st.lists(kernels(), min_size=1, max_size=8), st.lists(devices, min_size=1, max_size=4))
def test_together_as_one_by_one(some: list[Kernel], machines: list[DeviceSpec]) -> None:
    together = kernel_times(some, machines)
    for row, kernel in enumerate(some):
        for column, device in enumerate(machines):
            alone = kernel_times([kernel], [device])
            np.testing.assert_allclose(together.time_ns[row, column], alone.time_ns[0, 0])
            np.testing.assert_allclose(together.log_sigma[row, column], alone.log_sigma[0, 0])

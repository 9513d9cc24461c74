"""matvec: products so small that launching them is what takes time on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from breakeven.capture import run_script
from breakeven.cost import lower, shipped_costs
from breakeven.device import find_device
from breakeven.simulate import StepPrediction
from breakeven.store import machine_lock
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.catalogue import Findings, judged_claim, ratio_of, rows, table
from breakeven.systems.published import MATVEC_BAND, MATVEC_TIMES
from breakeven.timing import Estimate, Measurement
from breakeven.trace import Op, Phase, Settings, StepTrace, TensorSpec
from breakeven.units import format_digits, format_duration
from breakeven.verdict import Cell, Claim, ColumnKind, RowSource, SystemTable

_SCRIPT = "matvec.py"
_GPUS = {"K40": "K40", "T4": "T4", "A100 SXM4 80GB": "A100"}
"""Names in the catalogue, and what the columns are called."""
_TIME_LIMIT_S = 120.0


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the script: a product, timed.

    Args:
        num_rows: Of the matrix.
        num_columns: Of the matrix.
        num_threads: torch's threads.
        calls_ns: Time of a call, one figure for each block of calls.
    """

    num_rows: int
    num_columns: int
    num_threads: int
    calls_ns: tuple[float, ...]

    @property
    def estimate(self) -> Estimate:
        """Return the median with its interval."""
        return Measurement(samples_ns=tuple(map(round, self.calls_ns))).estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product on the CPU and on all GPUs.

    Args:
        calls: On the CPU, the fastest of the numbers of threads.
        predictions: A call in a loop, on each GPU.
        kernels_ns: Of that, what the kernel takes.
    """

    calls: Calls
    predictions: tuple[StepPrediction, ...]
    kernels_ns: tuple[float, ...]

    @property
    def size(self) -> str:
        """Return the size of the matrix, as text."""
        return f"{self.calls.num_rows:,} × {self.calls.num_columns:,}"


def run(bench: Bench) -> Findings:
    """Time products from 100 × 3 to 10,000 × 10,000 on this CPU, and predict them on GPUs."""
    products = [_product(bench, calls) for calls in _fastest(_time_calls(bench))]
    return Findings(
        host=bench.host_summary(),
        tables=(_call_table(products), _kernel_table(products)),
        claims=(floor_claim(products),),
    )


def _time_calls(bench: Bench) -> list[Calls]:
    threads = sorted({1, bench.host_summary().num_threads})
    with machine_lock():
        printed = run_script(
            script_path(_SCRIPT),
            ("--threads", *map(str, threads)),
            time_limit_s=bench.time_limit_s(_TIME_LIMIT_S),
        )
    return [msgspec.json.decode(line, type=Calls) for line in printed.splitlines()]


def _fastest(found: Sequence[Calls]) -> list[Calls]:
    """Return each product with the number of threads at which it is fastest, in order of size."""
    by_size: dict[tuple[int, int], Calls] = {}
    for calls in found:
        size = (calls.num_rows, calls.num_columns)
        if size not in by_size or calls.estimate.value_ns < by_size[size].estimate.value_ns:
            by_size[size] = calls
    return [by_size[size] for size in sorted(by_size)]


def _product(bench: Bench, calls: Calls) -> Product:
    op = _product_op(calls.num_rows, calls.num_columns)
    devices = [find_device(name) for name in _GPUS]
    kernels = lower(op, Settings()).kernels
    times_ns = shipped_costs().kernel_times(kernels, devices).time_ns
    return Product(
        calls=calls,
        predictions=bench.predict(StepTrace(events=(op,)), tuple(_GPUS)),
        kernels_ns=tuple(float(time_ns) for time_ns in np.sum(times_ns, axis=0)),
    )


def _product_op(num_rows: int, num_columns: int) -> Op:
    """Return the operator of ``matrix @ vector`` in a bare loop, without modules or autograd."""
    shapes = ((num_rows, num_columns), (num_columns,), (num_rows,))
    matrix, vector, result = (
        TensorSpec(shape=shape, dtype="float32", device="cuda:0", storage=storage)
        for storage, shape in enumerate(shapes)
    )
    return Op(name="aten.mv.default", inputs=(matrix, vector), outputs=(result,), phase=Phase.DATA)


def _call_table(products: Sequence[Product]) -> SystemTable:
    no_gpu = (None,) * len(_GPUS)
    published = (
        (f"{time.num_rows} × {time.num_columns}", time.cpu_ns, time.gpu_ns, *no_gpu)
        for time in MATVEC_TIMES
    )
    return table(
        "A call in a loop",
        {
            "matrix": ColumnKind.TEXT,
            **dict.fromkeys(("CPU", "a GPU", *_GPUS.values()), ColumnKind.TIME_NS),
        },
        (*rows(RowSource.PUBLISHED, published), *rows(RowSource.MEASURED, map(_cells, products))),
        note="CPU: measured here, by one or by all threads, whichever is faster. A100: SXM4 80GB. "
        "The published figures are of Julia, whose calls cost the host far less than PyTorch's, "
        "and its 56 µs on the CPU of BLAS with threads for too little work.",
    )


def _cells(product: Product) -> tuple[Cell, ...]:
    calls = product.calls
    times = (prediction.estimate for prediction in product.predictions)
    return (product.size, calls.estimate, None, *times)


def _kernel_table(products: Sequence[Product]) -> SystemTable:
    launch = ", ".join(
        f"{_GPUS[prediction.device.name]} {format_duration(prediction.host_ns)}"
        for prediction in products[0].predictions
    )
    return table(
        "Of that, what the kernel takes",
        {"matrix": ColumnKind.TEXT, **dict.fromkeys(_GPUS.values(), ColumnKind.TIME_NS)},
        rows(RowSource.PREDICTED, ((product.size, *product.kernels_ns) for product in products)),
        note=f"The host takes, for dispatch and launch of each call: {launch}. Below that a call "
        "cannot go, however small the work.",
    )


def floor_claim(products: Sequence[Product]) -> Claim:
    """Return whether a GPU's time hardly depends on the size of what is small.

    Args:
        products: In order of size; the first two are those that were published.
    """
    small, large = products[0].predictions, products[1].predictions
    ratios = {
        one.device.name: ratio_of(two.estimate, one.estimate)
        for one, two in zip(small, large, strict=True)
    }
    worst = max(ratios.values(), key=lambda ratio: ratio.value)
    by_cpu = products[1].calls.estimate.value_ns / products[0].calls.estimate.value_ns
    published = {(time.num_rows, time.num_columns): time for time in MATVEC_TIMES}
    first, second = published[(100, 3)], published[(100, 100)]
    return judged_claim(
        worst,
        MATVEC_BAND,
        claim="On a GPU, 100 × 100 takes as long as 100 × 3 (within a factor of "
        f"{format_digits(MATVEC_BAND.high)}), for both wait for the launch",
        published=f"{format_duration(first.gpu_ns, 4)} and {format_duration(second.gpu_ns, 4)}; "
        f"CPU {format_duration(first.cpu_ns)} and {format_duration(second.cpu_ns)}",
        ours=f"at most {worst} on {', '.join(ratios)}; this CPU {format_digits(by_cpu, 2)}×",
        because="Work begins to matter where the kernel takes longer than its "
        "dispatch and launch. The interval takes the errors of both predictions for independent, "
        "though they share a GPU and a host.",
    )

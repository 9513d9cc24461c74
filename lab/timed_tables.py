"""Read tables of timed operators as the kernels that `breakeven.cost.lower` makes of them.

Fit and prediction share one lowering, so that the fit absorbs an error in the counted FLOP or bytes
instead of counting it twice.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from breakeven.calibrate.fit import TimedKernel
from breakeven.cost import Family, Kernel, lower, step_by_step
from breakeven.device import DeviceSpec, Precision, find_device
from breakeven.trace import Op, Settings
from lab.table_ops import (
    Row,
    apple_ops,
    bmm_op,
    convolution_op,
    gemm_op,
    layer_op,
    linear_op,
    product_op,
    recurrent_op,
    square_convolution_op,
    vector_op,
)

# Device names in the tables that the catalogue lacks: other spellings, or machines.
_DEVICE_NAMES = {
    "V100 (DGX-1)": "V100 SXM2 16GB",
    "P100 (PCIe, DeepBench)": "P100 PCIe 16GB",
    "A100 80GB (te42kyfo a100_80)": "A100 SXM4 80GB",
    "A100 (80GB)": "A100 SXM4 80GB",
    "A100 40GB": "A100 SXM4 40GB",
    "A100 SXM": "A100 SXM4 80GB",
    "A100 PCIe": "A100 PCIe 80GB",
    "V100": "V100 SXM2 16GB",
    "AMD MI300X": "MI300X",
}

# A time on an idle GPU includes dispatch and launch, which the fastest rows of an operator show.
# Host work after the launch overlaps a long kernel, so subtract only this share. With it, the
# bandwidths of large additions agree with those of te42kyfo's streams (V100 0.89 of the datasheet,
# A100 0.89). Rows below the given multiple show the host rather than the kernel, and are left out.
_IDLE_CALL_PERCENTILE = 2.0
_EXPOSED_CALL_FRACTION = 0.7
_MIN_IDLE_CALLS = 3.0
# The transformer layers' operator with the shortest kernel: one or two thousand integers.
_IDLE_LAYER_OP = "arange"
# Calls in a C++ loop overlap with their kernels, unless these are shorter than a launch.
_MIN_LOOPED_NS = 20_000.0
# Larger tables repeat similar sizes: this many rows, evenly spread, suffice for the fit.
_MAX_ROWS = 1_000


def read_tables(directory: Path) -> tuple[TimedKernel, ...]:
    """Read the timed kernels of every table in ``directory`` that the fit uses.

    Args:
        directory: Contains ``ops_neusight_*.csv(.gz)``, ``ops_deepbench_*.csv``,
            ``apple_ops.csv.gz`` and ``achieved_peaks.csv``.

    Raises:
        FileNotFoundError: If a table is missing.
        UnknownDeviceError: If a table names a GPU that the catalogue lacks.
    """
    timed: list[TimedKernel] = []
    for name, build in _IDLE_TABLES:
        timed += _idle_kernels(_read(directory / name), build, source=f"neusight {name}")
    for name, build in _LOOPED_TABLES:
        timed += _looped_kernels(_read(directory / name), build, source=f"deepbench {name}")
    timed += _layer_kernels(_read(directory / "ops_neusight_transformer_trace.csv"))
    timed += read_recurrent(directory / "ops_deepbench_rnn.csv")
    timed += _apple_kernels(_read(directory / "apple_ops.csv.gz"))
    timed += _peak_kernels(_read(directory / "achieved_peaks.csv"))
    return tuple(timed)


def _read(path: Path) -> list[Row]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", newline="") as stream:
            return list(csv.DictReader(stream))
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def _device(name: str) -> DeviceSpec:
    return find_device(_DEVICE_NAMES.get(name, name))


def _idle_kernels(
    rows: Iterable[Row], build: Callable[[Row], Op], *, source: str
) -> Iterator[TimedKernel]:
    """Yield kernels of operators timed one at a time on an idle GPU."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["device"], row["op"]].append(row)
    for (name, _), group in groups.items():
        latency_ns = np.array([float(row["latency_ms"]) * 1e6 for row in group])
        idle_call_ns = float(np.percentile(latency_ns, _IDLE_CALL_PERCENTILE))
        usable = np.flatnonzero(latency_ns > _MIN_IDLE_CALLS * idle_call_ns)
        for index in _evenly_picked(usable):
            kernel = _single_kernel(build(group[index]), Settings(allow_tf32_convolution=False))
            yield TimedKernel(
                device=_device(name),
                kernel=kernel,
                time_ns=float(latency_ns[index]) - _EXPOSED_CALL_FRACTION * idle_call_ns,
                source=source,
            )


def _looped_kernels(
    rows: Iterable[Row], build: Callable[[Row], Op], *, source: str
) -> Iterator[TimedKernel]:
    """Yield kernels of library calls timed in a C++ loop."""
    settings = Settings(allow_tf32_convolution=False)
    for row in rows:
        time_ns = float(row["latency_ms"]) * 1e6
        if row["device"].startswith("CPU") or time_ns < _MIN_LOOPED_NS or _is_first_layer(row):
            continue
        # Set the format's share to 1, since the fit to these rows includes it.
        kernel = msgspec.structs.replace(_single_kernel(build(row), settings), matrix_share=1.0)
        yield TimedKernel(
            device=_device(row["device"]),
            kernel=kernel,
            time_ns=time_ns,
            source=f"{source}, {row['env']}",
        )


def _is_first_layer(row: Row) -> bool:
    """Return whether a row times the gradient of images, which no training step computes."""
    return row["phase"] == "bw_input" and int(row["Cin"]) <= 3


def _evenly_picked(indices: np.ndarray) -> Iterable[int]:
    """Return at most ``_MAX_ROWS`` of the indices, including the smallest and the largest."""
    if len(indices) <= _MAX_ROWS:
        return indices.tolist()
    picked = np.linspace(0, len(indices) - 1, _MAX_ROWS).round().astype(int)
    return indices[picked].tolist()


def _layer_kernels(rows: Sequence[Row]) -> Iterator[TimedKernel]:
    """Yield kernels of transformer layers, timed operator by operator on an idle GPU."""
    idle_call_ns = {
        name: min(float(row["fw_ms"]) * 1e6 for row in group)
        for name, group in _by_device(row for row in rows if row["op"] == _IDLE_LAYER_OP).items()
    }
    for row in rows:
        idle_ns = idle_call_ns[row["device"]]
        for column, is_backward in (("fw_ms", False), ("bw_ms", True)):
            time_ns = float(row[column]) * 1e6
            op = layer_op(row, is_backward=is_backward)
            if op is None or time_ns < _MIN_IDLE_CALLS * idle_ns:
                continue
            yield TimedKernel(
                device=_device(row["device"]),
                kernel=_single_kernel(op, Settings()),
                time_ns=time_ns - _EXPOSED_CALL_FRACTION * idle_ns,
                source="neusight ops_neusight_transformer_trace.csv",
            )


# Each call on Apple's chips was waited for; a call on ten thousand numbers takes this long. Rows
# below six of these show the call, which takes from 0.1 to 0.5 ms. MPS composes elementwise
# operators of several passes, or they are as short. Leave out reductions and scatters: no other
# table has them, so every GPU would get Apple's figures.
_APPLE_CALL_NS = 220_000.0
_APPLE_MIN_CALLS = 6.0
_APPLE_FAMILIES = (
    Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.GATHER, Family.SOFTMAX,
    Family.NORMALIZATION,
)  # fmt: skip
_APPLE_CHIP = re.compile(r"M\d(?: Pro| Max| Ultra)?")


def apple_chip(row: Row) -> str:
    """Return the chip of a row: ``M1 Max`` for ``M1 Max (64GB) mlx 0.2.0``."""
    found = _APPLE_CHIP.match(row["device"])
    assert found is not None, "the table has Apple's chips alone"
    return found[0]


def _apple_kernels(rows: Iterable[Row]) -> Iterator[TimedKernel]:
    """Yield kernels of operators timed on MPS with a wait after each."""
    for row in rows:
        time_ns = float(row["latency_ms"]) * 1e6
        if row["backend"] != "torch mps" or time_ns < _APPLE_MIN_CALLS * _APPLE_CALL_NS:
            continue
        kernels = [kernel for op in apple_ops(row) for kernel in lower(op, Settings()).kernels]
        (kernel, *others) = kernels
        if not others and kernel.family in _APPLE_FAMILIES and kernel.variant != "scatter":
            yield TimedKernel(
                device=find_device(apple_chip(row)),
                kernel=kernel,
                time_ns=time_ns - _APPLE_CALL_NS,
                source="mlx-benchmark apple_ops.csv.gz",
            )


def _by_device(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["device"]].append(row)
    return groups


def _single_kernel(op: Op, settings: Settings) -> Kernel:
    """Merge the kernels of ``op``; they must be alike, so that one efficiency fits."""
    lowering = lower(op, settings)
    kernels = lowering.kernels
    if len({(k.family, k.variant, k.precision) for k in kernels}) != 1 or lowering.caveat:
        raise ValueError(f"{op.name}: expected kernels of one kind, got {lowering}")
    if len(kernels) == 1:
        return kernels[0]
    return Kernel(
        family=kernels[0].family,
        variant=kernels[0].variant,
        precision=kernels[0].precision,
        flop=sum(kernel.flop for kernel in kernels),
        read_bytes=sum(kernel.read_bytes for kernel in kernels),
        write_bytes=sum(kernel.write_bytes for kernel in kernels),
        launches=sum(kernel.launches for kernel in kernels),
    )


# Phases of the table, and the number of the lowered operator's kernels that they time. The weights'
# gradients come last in the lowering; the table times them separately, as plain GEMMs.
_RECURRENT_PHASES = {"fw": None, "bw": None, "bw_input": 2}


def read_recurrent(path: Path) -> Iterator[TimedKernel]:
    """Yield the recurrences of recurrent layers, with the GEMMs timed with them."""
    for row in _read(path):
        if row["phase"] not in _RECURRENT_PHASES or row["device"].startswith("CPU"):
            continue
        lowered = lower(recurrent_op(row), Settings(allow_tf32_convolution=False))
        timed = lowered.kernels[: _RECURRENT_PHASES[row["phase"]]]
        (recurrence,) = (kernel for kernel in timed if kernel.family is Family.RECURRENT)
        yield TimedKernel(
            device=_device(row["device"]),
            # The tables used cuDNN 7.
            kernel=step_by_step(recurrence),
            time_ns=float(row["latency_ms"]) * 1e6,
            source=f"deepbench ops_deepbench_rnn.csv, {row['env']}",
            others=tuple(kernel for kernel in timed if kernel is not recurrence),
        )


_IDLE_TABLES: tuple[tuple[str, Callable[[Row], Op]], ...] = (
    ("ops_neusight_bmm.csv.gz", bmm_op),
    ("ops_neusight_linear.csv.gz", linear_op),
    ("ops_neusight_conv2d.csv.gz", square_convolution_op),
    ("ops_neusight_elementwise.csv.gz", vector_op),
    ("ops_neusight_ln_softmax.csv", vector_op),
    ("ops_neusight_amd_vec.csv", vector_op),
    ("ops_neusight_amd_mm.csv.gz", product_op),
)
_LOOPED_TABLES: tuple[tuple[str, Callable[[Row], Op]], ...] = (
    ("ops_deepbench_gemm.csv", gemm_op),
    ("ops_deepbench_conv2d.csv", convolution_op),
)

_PEAK_PRECISIONS = {
    "matmul n=8192 fp32/tf32": Precision.TF32,
    "matmul n=8192 fp16": Precision.FP16,
    "maximum achieved bf16 matmul": Precision.BF16,
}
_PEAK_SIZE = 8_192
_STREAM_BYTES = 4e9


def _peak_kernels(rows: Iterable[Row]) -> Iterator[TimedKernel]:
    """Yield one large GEMM or one long stream for each achieved rate."""
    for row in rows:
        precision = next(
            (value for key, value in _PEAK_PRECISIONS.items() if row["test"].startswith(key)), None
        )
        if precision is not None:
            device = _device(row["device"])
            if precision not in device.peak_flop_per_s:
                # "fp32/tf32" is plain fp32 on a device without TF32.
                precision = Precision.FP32
            size = _PEAK_SIZE
            flop = 2.0 * size**3
            element_bytes = 4 if precision in (Precision.FP32, Precision.TF32) else 2
            kernel = Kernel(
                family=Family.GEMM,
                flop=flop,
                read_bytes=2.0 * size**2 * element_bytes,
                write_bytes=1.0 * size**2 * element_bytes,
                precision=precision,
                m=size,
                n=size,
                k=size,
            )
            time_ns = flop / (float(row["value"]) * 1e3)
        elif row["test"].startswith(("stream_scale", "stream_triad")):
            device = _device(row["device"])
            kernel = Kernel(
                family=Family.ELEMENTWISE,
                flop=_STREAM_BYTES / 16,
                read_bytes=_STREAM_BYTES / 2,
                write_bytes=_STREAM_BYTES / 2,
            )
            time_ns = _STREAM_BYTES / float(row["value"])
        else:
            continue
        yield TimedKernel(
            device=device, kernel=kernel, time_ns=time_ns, source=f"{row['source']} achieved_peaks"
        )

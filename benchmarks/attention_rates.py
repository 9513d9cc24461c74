"""Compare fused attention, as predicted, with timed kernels.

``python benchmarks/attention_rates.py flash_attention_ops.csv`` reads a table with the columns
device, provider, causal, batch, seq, heads, head_dim, mode (fwd, bwd, fwd_bwd) and ms, in fp16.
Providers ``flash2`` and ``sdpa-flash2`` are torch's flash attention, ``xformers`` its efficient
one, ``sdpa-cudnn`` cuDNN's; ``pytorch`` is the same written out, without the mask's kernels.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from breakeven.cost import kernel_times, lower
from breakeven.device import find_device
from breakeven.trace import Op, Settings, TensorSpec

_IMPLEMENTATIONS = {
    "flash2": "flash",
    "sdpa-flash2": "flash",
    "xformers": "efficient",
    "sdpa-cudnn": "cudnn",
}
_DEVICES = {"A100": "A100 SXM4 80GB", "A100 80GB SXM4": "A100 SXM4 80GB"}
_NAME = "aten._scaled_dot_product_flash_attention"

Row = Mapping[str, str]


def predicted_ms(row: Row) -> float:
    """Return the time of a row's kernels on its device."""
    shape = tuple(int(row[key]) for key in ("batch", "heads", "seq", "head_dim"))
    x = TensorSpec(shape=shape, dtype="float16", device="cuda:0")
    attributes = {
        "is_causal": row["causal"] == "1",
        "implementations": _IMPLEMENTATIONS[row["provider"]],
    }
    forward = Op(name=f"{_NAME}.default", inputs=(x, x, x), outputs=(x,), attributes=attributes)
    backward = Op(
        name=f"{_NAME}_backward.default",
        inputs=(x, x, x, x, x),
        outputs=(x, x, x),
        attributes=attributes,
    )
    ops = {"fwd": (forward,), "bwd": (backward,), "fwd_bwd": (forward, backward)}[row["mode"]]
    kernels = [kernel for op in ops for kernel in lower(op, Settings()).kernels]
    device = find_device(_DEVICES.get(row["device"], row["device"]))
    return float(kernel_times(kernels, [device]).time_ns.sum()) / 1e6


def errors(rows: Iterator[Row]) -> dict[tuple[str, str, str], list[float]]:
    """Return log(predicted / measured) by provider, device and columns of a head."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["provider"] in _IMPLEMENTATIONS:
            ratio = predicted_ms(row) / float(row["ms"])
            found[row["provider"], row["device"], row["head_dim"]].append(float(np.log(ratio)))
    return found


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    with parser.parse_args().table.open(newline="") as stream:
        found = errors(csv.DictReader(stream))
    for (provider, device, width), logs in sorted(found.items()):
        error = np.abs(np.expm1(logs))
        print(
            f"{provider:12} {device:16} heads of {width:4} {len(logs):3} rows  "
            f"median {100 * np.median(error):5.1f} %  largest {100 * error.max():5.1f} %  "
            f"mean {100 * np.mean(logs):+5.1f} %"
        )


if __name__ == "__main__":
    main()

"""Sections of the accuracy page about measurements in the repository."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, quantiles

from benchmarks.gpu.summary import CASE, NETWORK, pair_tables

ROOT = Path(__file__).resolve().parents[1]


# Fewer rows have no meaningful 90th percentile, as in the tables of GPUs.
LEAST_ROWS_FOR_P90 = 10
# Output of `benchmarks/small_steps.py --csv`.
SMALL_STEPS = ROOT / "benchmarks" / "data" / "small_steps_2026-11-23.csv"
# Output of `benchmarks/absent_cpu.py report --csv`.
ABSENT_CPU = ROOT / "benchmarks" / "data" / "absent_cpu_2026-11-26.csv"
# Output of `benchmarks/gpu/pairs.py` on a GPU.
PAIRS = ROOT / "benchmarks" / "data" / "pairs_h200_2026-11-28.csv"
# Output of `benchmarks/gpu/run.py` on a GPU, completed by `again.py`.
CALIBRATED_GPU = ROOT / "benchmarks" / "data" / "h200_steps_2026-11-27.csv"
SMALL_STEPS_TITLE = "## The host's work on small steps"
PHASES = {
    "zero_grad": "gradients set to None",
    "forward": "forward pass and loss",
    "backward": "backward pass",
    "optimizer": "update",
    "step": "whole step",
}
# The host decides a step if issuing takes more than this share of it.
HOST_DECIDES_FRACTION = 0.9
# Upper bounds of the groups of whole steps, in microseconds.
STEP_TIMES_US = {"under 200 µs": 200.0, "200 to 500 µs": 500.0, "500 µs and over": math.inf}
# Upper bounds of the groups of steps on an absent CPU, in milliseconds.
ABSENT_CPU_TIMES_MS = {"under 10 ms": 10.0, "10 to 20 ms": 20.0, "20 ms and over": math.inf}
ELSEWHERE = """
## What is scored elsewhere

No step on a GPU above was compiled, and none computes attention in one kernel.

- *Compiled steps*, by the ratio to the eager step on the same GPU, with families left out:
  [how they are predicted](how-it-works.md#compiled-steps),
  `python benchmarks/compiled_pairs.py TABLE.csv`.
- *Attention* against timed kernels: `python benchmarks/attention_rates.py TABLE.csv`.
- *Recurrent layers*, whether the faster GPU is named:
  `python benchmarks/recurrent_order.py TABLE.csv`.
- *Single kernels*, by family, with GPUs left out: [kernels](kernels.md).
- *The CPU at other batch sizes*: [limits](limits.md#the-cpu-at-other-sizes).
"""


def own_data_markdown() -> str:
    """Return the sections about tables of the repository, which end the page."""
    tables = (
        small_steps_markdown,
        faster_device_markdown,
        calibrated_gpu_markdown,
        absent_cpu_markdown,
    )
    return "".join(section() for section in tables) + ELSEWHERE


def read_rows(table: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def small_steps_markdown() -> str:
    """Return the section about the host's work, from the table of measured small steps."""
    rows = read_rows(SMALL_STEPS)
    lines = [
        "",
        SMALL_STEPS_TITLE,
        "",
        f"{len(rows)} small networks, of many families and optimizers, on one thread of one "
        "machine. Their steps on the *CPU* are predicted from a recording and from what the host "
        "takes per operator, by the model that a GPU's host has too, and compared with the steps "
        "as timed from outside: `python benchmarks/small_steps.py`. The figures of the model were "
        "fitted to these very networks on this machine.",
        "",
        "| part | median | P90 | bias |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {title} | {_figures(rows, phase)} |" for phase, title in PHASES.items()]
    lines += ["", "| whole steps of | rows | median | P90 | bias |", "| --- " + "| ---: " * 4 + "|"]
    least = 0.0
    for title, most in STEP_TIMES_US.items():
        group = [row for row in rows if least <= float(row["step_us"]) < most]
        least = most
        if group:
            lines.append(f"| {title} | {len(group)} | {_figures(group, 'step')} |")
    return "\n".join([*lines, ""])


def faster_device_markdown() -> str:
    """Return the section about steps timed on both devices of one machine."""
    rows = read_rows(PAIRS)
    names = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in (NETWORK, CASE)}
    place = rows[0]
    software, _, _ = place["software"].rpartition(", breakeven")
    return "\n".join(
        [
            "",
            "## Which device was faster",
            "",
            f"{len(names[NETWORK])} small networks and {len(names[CASE])} scripts (*cases*), each "
            "on the CPU, with the number of threads that was fastest, and on the GPU of one "
            f"machine: {place['gpu']}; {place['machine']}; {software}; {place['date']}. A captured "
            "step is replayed as one CUDA graph, its update included. What a kernel takes in one "
            "was fitted to these very steps; before, 39 % held. A compiled step has forward "
            'and backward pass under `torch.compile(mode="reduce-overhead")`. Predictions rest on '
            "no calibration of the GPU: `python benchmarks/gpu/pairs.py`. They take the GPU to be "
            "in a [cloud machine](hosts.md). The step on the CPU was anchored with the GPU hidden, "
            "or with launches measured there. **This machine is one of three that tell what a "
            "cloud machine takes**: how well the others tell it is shown there. Without kinds of "
            "machines 6 of 30 networks had the right device and 4 the wrong one, and 20 % of the "
            "eager intervals held; the cases are still shown as they were predicted then. No other "
            "machine was tried.",
            "",
            *pair_tables(rows),
            "",
        ]
    )


def calibrated_gpu_markdown() -> str:
    """Return the section about a measured GPU, from the table of its steps."""
    rows = read_rows(CALIBRATED_GPU)
    eager = [row for row in rows if row["compile"] == "none"]
    groups = {
        "eager": eager,
        "eager, the GPU decides": [row for row in eager if not _host_decides(row)],
        "eager, the host decides": [row for row in eager if _host_decides(row)],
        "compiled": [row for row in rows if row["compile"] != "none"],
    }
    lines = [
        f"| {title} | {len(some)} | {_calibrated_figures(some, 'before')} | "
        f"{_calibrated_figures(some, 'after')} |"
        for title, some in groups.items()
    ]
    return "\n".join(
        [
            "",
            "## A GPU before and after `calibrate`",
            "",
            "Twenty workloads trained on an H200 (torch 2.11, 2026-11), eager and under "
            "`torch.compile`, on a rented virtual machine with 16 cores of a Xeon. Before: as if "
            "no H200 had ever been measured, on its host as operators on the CPU and single "
            "launches told it, without a backward pass on the GPU, which is measured since. After: "
            "with the samples of `breakeven calibrate` and a dozen other eager steps: other sizes, "
            "of the same kinds of networks. What a generated kernel takes the host was chosen by "
            "compiled steps of this very table: `python benchmarks/gpu/again.py` on "
            "`benchmarks/data`. The host decides where issuing a step takes nine tenths of it and "
            "more. Two machines of one kind, minutes apart, took the same call 3.2 and 1.3 µs, and "
            "the same steps 3 to 35 % more and less, which no calibration foresees.",
            "",
            "| steps | rows | before: median | P90 | in 90 % | after: median | P90 | in 90 % |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *lines,
            "",
        ]
    )


def _host_decides(row: Mapping[str, str]) -> bool:
    """Return whether issuing took nearly all of the step."""
    return float(row["host_issue_ms"]) > HOST_DECIDES_FRACTION * float(row["value_ms"])


def _calibrated_figures(rows: Sequence[Mapping[str, str]], when: str) -> str:
    """Return median and P90 of the errors, and the share of intervals that hold, as cells."""
    errors = [abs(float(row[f"{when}_ms"]) / float(row["value_ms"]) - 1) for row in rows]
    held = mean(
        float(row[f"{when}_low_ms"]) <= float(row["value_ms"]) <= float(row[f"{when}_high_ms"])
        for row in rows
    )
    return f"{_percent(median(errors))} | {_p90(errors)} | {_percent(held)}"


def absent_cpu_markdown() -> str:
    """Return the section about absent CPUs, from the table with families left out."""
    rows = read_rows(ABSENT_CPU)
    lines = [f"| all | {_absent_cpu_figures(rows)} |"]
    least = 0.0
    for title, most in ABSENT_CPU_TIMES_MS.items():
        group = [row for row in rows if least <= float(row["there_ms"]) < most]
        least = most
        if group:
            lines.append(f"| {title} | {_absent_cpu_figures(group)} |")
    return "\n".join(
        [
            "",
            "## A CPU that is absent",
            "",
            f"Inference of one image by {len(rows)} architectures of timm on a Core i9-10940X, as "
            "timm published it (compiled, 14 cores), predicted from their times on one core of "
            "another machine (eager), the speed of one core of each, and the two CPUs' vector "
            "width, clock, cores and memory bandwidth, as `check --device i9-10940X` does it. A "
            "power of the cores and the width of intervals are fitted; each family "
            "of architectures had no part in those that predict it: "
            "`python benchmarks/absent_cpu.py report`. No other CPU was tried, and no training.",
            "",
            "| steps of | rows | median | P90 | bias | in 90 % |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            *lines,
            "",
        ]
    )


def _absent_cpu_figures(rows: Sequence[Mapping[str, str]]) -> str:
    """Return number, median, P90 and bias of the errors, and the share of intervals that hold."""
    ratios = [float(row["predicted_ms"]) / float(row["there_ms"]) for row in rows]
    errors = [abs(ratio - 1) for ratio in ratios]
    bias = math.exp(mean(map(math.log, ratios))) - 1
    held = mean(
        float(row["low_ms"]) <= float(row["there_ms"]) <= float(row["high_ms"]) for row in rows
    )
    half = _percent(median(errors))
    return f"{len(rows)} | {half} | {_p90(errors)} | {_percent(bias, '+')} | {_percent(held)}"


def _figures(rows: Sequence[Mapping[str, str]], phase: str) -> str:
    """Return median, P90 and bias of the error of a phase, as cells."""
    ratios = [float(row[f"{phase}_predicted_us"]) / float(row[f"{phase}_us"]) for row in rows]
    errors = [abs(ratio - 1) for ratio in ratios]
    bias = math.exp(mean(map(math.log, ratios))) - 1
    return f"{_percent(median(errors))} | {_p90(errors)} | {_percent(bias, '+')}"


def _p90(errors: Sequence[float]) -> str:
    """Return the 90th percentile as a cell; ``-`` for too few errors."""
    return _percent(quantiles(errors, n=10)[-1]) if len(errors) >= LEAST_ROWS_FOR_P90 else "-"


def _percent(fraction: float, sign: str = "-") -> str:
    """Return a share as in the other tables; with ``+``, show the sign of a gain too."""
    return f"{100 * fraction:{sign}.0f} %"

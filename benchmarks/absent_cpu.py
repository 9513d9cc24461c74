"""How well a CPU that is absent is predicted from this one: timm's models on a Core i9-10940X.

``measure TABLE.csv[.gz] WORKLOAD... -o FILE`` times inference of one image here, on one core, by
processor time, and sets beside it what the table has for the other CPU. ``report FILE`` predicts
each architecture by a power of the cores and a width that its family had no part in; with ``--csv``
it writes what the accuracy page shows. Both need timm.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib
import io
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from breakeven.calibrate import named_host
from breakeven.device import find_host_cpu
from breakeven.errors import BreakevenError
from breakeven.measure import time_on_one_core
from breakeven.simulate import (
    CpuRates,
    Program,
    build_program,
    issuing_of,
    predict_absent_cpu,
    rates_of,
)
from breakeven.timing import Estimate, Source
from breakeven.trace import ScaledTrace, StepCase, StepTrace, TimedPhase
from breakeven.units import NS_PER_MS
from breakeven.workloads import trace_cases
from breakeven.workloads.libraries import import_torchvision

THERE = "Core i9-10940X"
# One core of the AMD EPYC of the measured file, by `breakeven.measure.measure_cpu_rates`.
HERE = CpuRates(num_cores=1, flop_per_s=92e9, bytes_per_s=21.7e9)
# A CPU of that family, for the little that issuing operators takes.
HERE_HOST = "EPYC 9554"
POWERS = np.linspace(0.3, 1.0, 141)
SECONDS = 2.0
QUANTILE_90 = 1.645


def measure(table: Path, workloads: Sequence[str], output: Path) -> None:
    """Time each workload here, and write it beside the table's time."""
    import_torchvision()
    timm: Any = importlib.import_module("timm")
    published = _published(table)
    with output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("workload", "here_ms", "there_ms"))
        for workload in workloads:
            name, _, size = workload.removeprefix("timm:").partition("?img=")
            try:
                model = timm.create_model(name, img_size=int(size)).eval()
            except TypeError:
                model = timm.create_model(name).eval()
            image = torch.randn(1, 3, int(size), int(size))
            with torch.no_grad():
                here = time_on_one_core(lambda: model(image), budget_s=SECONDS)  # noqa: B023
            here_ms = here.value_ns / NS_PER_MS
            writer.writerow((workload, f"{here_ms:.2f}", f"{published[workload]:.2f}"))


def _published(table: Path) -> dict[str, float]:
    data = table.read_bytes()
    text = (gzip.decompress(data) if table.suffix == ".gz" else data).decode()
    rows = csv.DictReader(io.StringIO(text))
    return {row["workload"]: float(row["value_ms"]) for row in rows
            if THERE in row["device"] and row["framework"].startswith("torch 2.4")}  # fmt: skip


def family_of(workload: str) -> str:
    """Return the architecture without its size: ``resnet`` of ``timm:resnet50?img=224``."""
    found = re.match(r"timm:(?:eca_)?([a-z]+)", workload)
    return found.group(1) if found else workload


def logs(programs: Sequence[Program], rows: Sequence[dict[str, str]]) -> np.ndarray:
    """Return the logarithm of predicted over published time, by power of the cores and row."""
    there = rates_of(find_host_cpu(THERE))
    hosts = named_host(HERE_HOST), named_host(THERE)
    found = np.empty((len(POWERS), len(rows)))
    for column, (program, row) in enumerate(zip(programs, rows, strict=True)):
        here_ns = float(row["here_ms"]) * NS_PER_MS
        measured = Estimate(
            value_ns=here_ns, low_ns=here_ns, high_ns=here_ns, source=Source.MEASURED
        )
        issuing = issuing_of(program, *hosts)
        for line, power in enumerate(POWERS):
            predicted = predict_absent_cpu(
                program, measured, HERE, there, issuing, cores_power=power
            )
            found[line, column] = math.log(predicted.value_ns / NS_PER_MS / float(row["there_ms"]))
    return found


def fitted(errors: np.ndarray) -> tuple[int, float]:
    """Return which power leaves no bias, and the width of what is left."""
    best = int(np.argmin(np.abs(np.median(errors, axis=1))))
    return best, float(np.std(errors[best]))


def _at_one(trace: ScaledTrace | BreakevenError) -> StepTrace:
    if isinstance(trace, BreakevenError):
        raise trace
    return trace.at(1)


def report(path: Path, output: Path | None) -> None:
    """Show errors of families left out, and what all of them give."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    cases = [StepCase(workload=row["workload"], phase=TimedPhase.INFERENCE) for row in rows]
    traces = trace_cases(cases)
    errors = logs([build_program(_at_one(traces[case])) for case in cases], rows)
    families = np.array([family_of(row["workload"]) for row in rows])
    left_out, widths = np.empty(len(rows)), np.empty(len(rows))
    for family in set(families):
        best, width = fitted(errors[:, families != family])
        left_out[families == family] = errors[best, families == family]
        widths[families == family] = width
    best, width = fitted(errors)
    shares = np.abs(np.expm1(left_out))
    held = np.mean(np.abs(left_out) < QUANTILE_90 * widths)
    sys.stdout.write(
        f"{len(rows)} architectures of {len(set(families))} families, each family left out: "
        f"median {np.median(shares):.1%}, P90 {np.percentile(shares, 90):.1%}, "
        f"bias {np.expm1(left_out.mean()):+.1%}, 90 % intervals hold {held:.1%}\n"
        f"all: cores_power {POWERS[best]:.3f}, log_sigma {width:.3f}\n"
    )
    if output is not None:
        _write(output, rows, left_out, widths)


def _write(
    output: Path, rows: Iterable[dict[str, str]], errors: np.ndarray, widths: np.ndarray
) -> None:
    with output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("workload", "here_ms", "there_ms", "predicted_ms", "low_ms", "high_ms"))
        for row, error, width in zip(rows, errors, widths, strict=True):
            predicted = float(row["there_ms"]) * math.exp(error)
            ends = (predicted * math.exp(sign * QUANTILE_90 * width) for sign in (-1, 1))
            figures = (predicted, *ends)
            writer.writerow((*list(row.values())[:3], *(f"{value:.2f}" for value in figures)))


def main(argv: list[str]) -> int:
    """Measure, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("table", type=Path)
    measuring.add_argument("workloads", nargs="+")
    measuring.add_argument("-o", "--output", type=Path, required=True)
    reporting = commands.add_parser("report")
    reporting.add_argument("file", type=Path)
    reporting.add_argument("--csv", type=Path)
    args = parser.parse_args(argv)
    if args.command == "measure":
        measure(args.table, args.workloads, args.output)
    else:
        report(args.file, args.csv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

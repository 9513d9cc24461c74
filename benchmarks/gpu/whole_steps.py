"""Twenty workloads on a GPU, eager and compiled, beside what is predicted for them.

A row is predicted twice: as if the GPU had never been measured, and from its calibration. Steps
that the calibration is fitted to are marked: they say how well it fits, not how well it predicts.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from breakeven.calibrate.gpu.calibrating import reason_of
from breakeven.calibrate.gpu.machine import describe_machine
from breakeven.calibrate.gpu.steps import EAGER, WantedStep, all_steps, case_of, time_step
from breakeven.cost import (
    GpuCalibration,
    StepCosts,
    load_efficiencies,
    load_step_effects,
)
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import BreakevenError
from breakeven.measure import DeviceTimer
from breakeven.simulate import CompileMode, Program, build_program, compiled_step, predict_steps
from breakeven.trace import NumberFormat
from breakeven.units import NS_PER_MS
from breakeven.workloads import trace_cases

# The columns of tables for `breakeven validate`, then what is beside them.
FIELDS: tuple[str, ...] = (
    "case_id", "source", "workload", "device", "num_devices", "precision", "batch_size", "phase",
    "optimizer", "h2d", "host", "framework", "value_ms", "repeats", "split", "note", "compile",
    "host_issue_ms", "spread", "is_fitted", "before_ms", "before_low_ms", "before_high_ms",
    "after_ms", "after_low_ms", "after_high_ms", "calibration",
)  # fmt: skip
_F = NumberFormat
_GPT = "llm:gpt2?d_model={}&n_heads={}&n_layers={}&vocab={}&seq={}&drop=0"
_WORKLOADS: tuple[tuple[str, int, NumberFormat, str], ...] = (
    ("breakeven:mlp?width=256&depth=4", 32, _F.FP32, "adam"),
    ("breakeven:disc-mlp?depth=8", 100, _F.FP32, "sgd"),
    ("breakeven:mlp?width=2048&depth=4", 512, _F.TF32, "adam"),
    ("breakeven:mlp?width=8192&depth=3", 2048, _F.AMP_BF16, "sgd"),
    ("breakeven:rnn-stream?hidden=256", 16, _F.FP32, "adam"),
    ("breakeven:lstm?hidden=128&seq=100&input=16", 64, _F.FP32, "adam"),
    ("breakeven:lstm?hidden=320&seq=200&input=40&layers=2", 32, _F.TF32, "adam"),
    ("breakeven:lstm?hidden=1024&seq=50&input=128", 128, _F.AMP_FP16, "sgd"),
    ("breakeven:resnet?depth=18&image=32", 128, _F.FP32, "sgd"),
    ("breakeven:resnet?depth=18", 32, _F.AMP_BF16, "sgd"),
    ("breakeven:resnet?depth=34", 32, _F.TF32, "sgd"),
    ("breakeven:resnet?depth=50", 16, _F.FP32, "sgd"),
    ("breakeven:resnet?depth=50", 16, _F.AMP_FP16, "sgd"),
    ("breakeven:resnet?depth=50", 128, _F.AMP_BF16, "sgd"),
    (_GPT.format(128, 4, 2, 512, 64), 16, _F.FP32, "adamw"),
    (_GPT.format(384, 6, 6, 512, 256), 64, _F.AMP_BF16, "adamw"),
    (_GPT.format(768, 12, 12, 50257, 1024), 4, _F.AMP_BF16, "adamw"),
    (_GPT.format(768, 12, 12, 50257, 1024), 4, _F.TF32, "adamw"),
    (_GPT.format(1024, 16, 12, 32000, 1024), 4, _F.BF16, "adamw"),
    (_GPT.format(512, 8, 8, 8192, 512), 16, _F.AMP_FP16, "adam"),
)
_FITTED = {step.name for is_tiny in (False, True) for step in all_steps(is_tiny=is_tiny)}
# Notes of steps that the process did not survive. One that was ended once is tried once more: the
# time of the machine may have been over.
ENDED = "the process was ended while it was measured"
ENDED_TWICE = "the process was ended twice while it was measured"
# All eager steps come before the compiled ones, which take longest.
_EAGER_S, _COMPILED_S = 8.0, 60.0


def wanted_steps(*, is_tiny: bool) -> tuple[WantedStep, ...]:
    """Return the steps in the order of measuring."""
    if is_tiny:
        return all_steps(is_tiny=True)
    return tuple(
        WantedStep(
            workload=w, batch_size=b, precision=p, optimizer=o, compile=mode, about_s=about_s
        )
        for mode, about_s in ((EAGER, _EAGER_S), ("default", _COMPILED_S))
        for w, b, p, o in _WORKLOADS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where steps are predicted.

    Args:
        device: The GPU.
        calibration: Of it; None for as if it had never been measured.
        host: The machine that it is in.
    """

    device: DeviceSpec
    calibration: GpuCalibration | None
    host: HostSpec


def described_row(step: WantedStep, device: torch.device, *, number: int) -> dict[str, object]:
    """Return the row of a step that is about to be timed: its note stays where that ends us."""
    machine = describe_machine(device)
    return {
        "case_id": f"gpu-{number:03d}",
        "source": "benchmarks/gpu",
        "workload": step.workload,
        "device": machine.gpu,
        "num_devices": 1,
        "precision": step.precision.value,
        "batch_size": step.batch_size,
        "phase": "train",
        "optimizer": step.optimizer,
        "h2d": "none",
        "host": machine.processor,
        "framework": f"torch {machine.torch_version} {machine.driver}",
        "compile": step.compile,
        "is_fitted": int(step.name in _FITTED),
        "note": ENDED,
    }


def timed_cells(step: WantedStep, device: torch.device) -> dict[str, object]:
    """Return the cells of a step that is timed now; one that fails says why in its note."""
    try:
        found = time_step(step, DeviceTimer(device))
    except Exception as error:  # what the device, its library or the compiler refuses is a row too
        return {"note": reason_of(error)}
    return {
        "note": "",
        "value_ms": round(found.time_ns / NS_PER_MS, 6),
        "repeats": found.num_steps,
        "host_issue_ms": round(found.issue_ns / NS_PER_MS, 6),
        "spread": found.spread,
    }


def programs_of(
    steps: Sequence[WantedStep], calibration: GpuCalibration | None
) -> Iterator[Program | str]:
    """Yield each step with its kernels, or why it cannot be traced."""
    costs = StepCosts(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        calibrations={} if calibration is None else {calibration.device: calibration},
    )
    traces = trace_cases([case_of(step) for step in steps])
    for step in steps:
        trace = traces[case_of(step)]
        if isinstance(trace, BreakevenError):
            yield reason_of(trace)
            continue
        program = build_program(trace.at(step.batch_size), costs=costs)
        if step.compile != EAGER:
            program = program.edited(compiled_step(program, CompileMode(step.compile)).edit)
        yield program


def predicted_ms(
    program: Program, device: DeviceSpec, host: HostSpec
) -> tuple[float, float, float]:
    """Return value, low and high of a step in milliseconds."""
    (found,) = predict_steps(program, [device], host)
    estimate = found.estimate
    value_ms, low_ms, high_ms = (
        round(time_ns / NS_PER_MS, 6)
        for time_ns in (estimate.value_ns, estimate.low_ns, estimate.high_ns)
    )
    return value_ms, low_ms, high_ms


def set_predicted(rows: Sequence[dict[str, Any]], when: str, place: Place) -> None:
    """Set what is predicted beside rows, ``before`` or ``after`` the calibration."""
    found = programs_of([step_of(row) for row in rows], place.calibration)
    for row, program in zip(rows, found, strict=True):
        if isinstance(program, str):
            row["note"] = row["note"] or program
            cells = ("", "", "")
        else:
            cells = predicted_ms(program, place.device, place.host)
        row[f"{when}_ms"], row[f"{when}_low_ms"], row[f"{when}_high_ms"] = cells


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows so far; none where there is no file yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def write_rows(
    path: Path, rows: Sequence[dict[str, object]], fields: Sequence[str] = FIELDS
) -> None:
    """Write all rows."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fields, restval="")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def digest(calibration: bytes) -> str:
    """Return what tells a calibration from another; times of files are lost by copies."""
    return hashlib.sha256(calibration).hexdigest()[:12]


def step_of(row: dict[str, str]) -> WantedStep:
    """Return the step of a row."""
    return WantedStep(
        workload=row["workload"],
        batch_size=int(row["batch_size"]),
        precision=NumberFormat(row["precision"]),
        optimizer=row["optimizer"],
        compile=row["compile"],
    )

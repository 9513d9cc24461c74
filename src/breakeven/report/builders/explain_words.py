"""An explanation in words: what a step takes, what limits it, where that is, what a fix saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from breakeven.report.text import duration_with_interval, printable, shorten
from breakeven.simulate import Bound, Finding, Severity, Side
from breakeven.units import format_digits, format_percent
from breakeven.verdict import ExplainReport

_BOUND_WORDS = {
    Bound.LAUNCH: "kernel launches",
    Bound.COMPUTE: "arithmetic",
    Bound.MEMORY: "memory bandwidth",
    Bound.LATENCY: "kernels that wait for each other",
    Bound.TRANSFER: "copies",
    Bound.SYNC: "waits for the GPU",
    Bound.HOST_DATA: "data and other work of the host",
    Bound.HOST_OPTIMIZER: "the optimizer on the host",
}


def headline(report: ExplainReport) -> str:
    """Return what was explained, on which device, and what a step takes there."""
    time = duration_with_interval(report.step_ns, report.low_ns, report.high_ns)
    return (
        f"{shorten(printable(report.target, None), 60)} on {printable(report.device, 60)}: "
        f"{time} a step, predicted."
    )


def busy_sentence(report: ExplainReport) -> str:
    """Return what limits the step, and how busy both sides are."""
    return (
        f"Limited by {_BOUND_WORDS[report.bound]}; the GPU is busy "
        f"{_busy_percent(report.device_busy_ns, report)} of the step, "
        f"the host {_busy_percent(report.host_busy_ns, report)}."
    )


def _busy_percent(busy_ns: float, report: ExplainReport) -> str:
    # What is busy and what the step takes are rounded apart: 100.3 % would puzzle a reader.
    return format_percent(min(busy_ns / report.step_ns, 1.0) if report.step_ns > 0 else 0.0)


def gain_text(finding: Finding) -> str:
    """Return ``saves 24 % (18–27 %)``, or the share of the step, or nothing where none is known."""
    whose = " of the CPU's step" if finding.side is Side.CPU else ""
    gain = finding.gain_fraction
    if gain > 0:
        low, high = finding.gain_low_fraction, finding.gain_high_fraction
        ends = "" if low == high else f" ({format_digits(100 * low, 2)}–{format_percent(high)})"
        return f"saves {format_percent(gain)}{ends}{whose}"
    if finding.severity is not Severity.ERROR and finding.share_fraction > 0:
        return f"{format_percent(finding.share_fraction)}{whose or ' of the step'}"
    return ""


def frames_text(frames: Sequence[str]) -> str:
    """Return functions of a framework as its users call them: ``training_step → backward``.

    The first is what the user's line calls, which that line says already.

    Args:
        frames: As an attribution has them: ``accelerate.accelerator:Accelerator.backward``.
    """
    shown = frames[1:] or frames
    return printable(" → ".join(map(_function_word, shown)), 80)


def _function_word(frame: str) -> str:
    qualified = frame.rpartition(":")[2]
    function = qualified.rpartition(".")[2]
    # `__next__` alone says nothing.
    return qualified if function.startswith("__") else function


def short_names(files: Iterable[str | None]) -> dict[str, str]:
    """Return files by their path below the folder that all of them are in.

    Args:
        files: Paths as a report has them; None for none.
    """
    paths = {file: file.split("/") for file in files if file is not None}
    levels = zip(*(path[:-1] for path in paths.values()), strict=False)
    num_shared = len(list(takewhile(lambda names: len(set(names)) == 1, levels)))
    return {file: "/".join(path[num_shared:]) for file, path in paths.items()}

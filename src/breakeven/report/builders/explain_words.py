"""Words of an explanation: causes, severities, gains, and what the plan comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from breakeven.report.run_text import verdict_sentence
from breakeven.report.text import duration_with_interval, printable, shorten
from breakeven.simulate import Bound, Finding, Severity, Side, StepCause
from breakeven.units import format_digits, format_percent
from breakeven.verdict import Choice, ExplainReport, PlanStep

_DEVICE_PREFIX = "device-"
_ARITHMETIC = frozenset(
    _DEVICE_PREFIX + family
    for family in ("gemm", "batched_gemm", "convolution", "attention", "recurrent")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseStyle:
    """How causes that belong together are drawn.

    Args:
        word: What they are, in a legend.
        letter: Stands for the group where there are no colours.
        style: Colour at a terminal.
        css_class: Colour in a page.
    """

    word: str
    letter: str
    style: str
    css_class: str


class CauseGroup(Enum):
    """Causes that share a colour: more than six could not be told apart."""

    ISSUING = CauseStyle(word="issuing operators", letter="I", style="blue", css_class="c1")
    HOST_WORK = CauseStyle(
        word="data and other host work", letter="H", style="yellow", css_class="c5"
    )
    COPIES = CauseStyle(word="copies", letter="C", style="magenta", css_class="c4")
    WAITING = CauseStyle(word="waiting", letter="W", style="red", css_class="c2")
    ARITHMETIC = CauseStyle(word="matrix kernels", letter="M", style="green", css_class="c3")
    KERNELS = CauseStyle(word="other kernels", letter="K", style="cyan", css_class="c6")


_GROUPS = {
    StepCause.PYTHON: CauseGroup.ISSUING,
    StepCause.DISPATCHER: CauseGroup.ISSUING,
    StepCause.AUTOGRAD: CauseGroup.ISSUING,
    StepCause.LAUNCH: CauseGroup.ISSUING,
    StepCause.OPTIMIZER: CauseGroup.ISSUING,
    StepCause.DATA_LOADING: CauseGroup.HOST_WORK,
    StepCause.SCRIPT: CauseGroup.HOST_WORK,
    StepCause.HOST_OPERATORS: CauseGroup.HOST_WORK,
    StepCause.COPY_PAGEABLE: CauseGroup.COPIES,
    StepCause.COPY_PINNED: CauseGroup.COPIES,
    StepCause.SYNC: CauseGroup.WAITING,
    StepCause.DEVICE_IDLE: CauseGroup.WAITING,
    StepCause.OVERLAP: CauseGroup.WAITING,
}
_CAUSE_WORDS = {
    StepCause.PYTHON: "Python between operators",
    StepCause.DISPATCHER: "dispatching operators",
    StepCause.AUTOGRAD: "autograd",
    StepCause.LAUNCH: "launching kernels",
    StepCause.OPTIMIZER: "issuing the optimizer",
    StepCause.DATA_LOADING: "loading data",
    StepCause.SCRIPT: "the script's own work",
    StepCause.HOST_OPERATORS: "operators on the CPU",
    StepCause.COPY_PAGEABLE: "copies, pageable memory",
    StepCause.COPY_PINNED: "copies, pinned memory",
    StepCause.SYNC: "waits, fixed cost",
    StepCause.DEVICE_IDLE: "GPU idle: latency, gaps",
    StepCause.OVERLAP: "host-device contention",
}
_BOUND_WORDS = {
    Bound.LAUNCH: "kernel launches",
    Bound.COMPUTE: "arithmetic",
    Bound.MEMORY: "memory bandwidth",
    Bound.TRANSFER: "copies",
    Bound.SYNC: "waits for the GPU",
    Bound.HOST_DATA: "data and other work of the host",
    Bound.HOST_OPTIMIZER: "the optimizer on the host",
}


def group_of(cause: str) -> CauseGroup:
    """Return the group of a cause, as an attribution or a timeline names it."""
    if cause.startswith(_DEVICE_PREFIX) and cause != StepCause.DEVICE_IDLE:
        return CauseGroup.ARITHMETIC if cause in _ARITHMETIC else CauseGroup.KERNELS
    try:
        return _GROUPS[StepCause(cause)]
    except ValueError:  # a stored run of a later version, or edited by hand
        return CauseGroup.HOST_WORK


def cause_words(cause: str) -> str:
    """Return a cause as a person would say it: ``GPU: batched gemm``."""
    if cause.startswith(_DEVICE_PREFIX) and cause != StepCause.DEVICE_IDLE:
        return f"GPU: {printable(cause.removeprefix(_DEVICE_PREFIX).replace('_', ' '), 40)}"
    try:
        return _CAUSE_WORDS[StepCause(cause)]
    except ValueError:
        return printable(cause, 40)


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
        ends = "" if low == high else f" ({_percent_digits(low)}–{format_percent(high)})"
        return f"saves {format_percent(gain)}{ends}{whose}"
    if finding.severity is not Severity.ERROR and finding.share_fraction > 0:
        return f"{format_percent(finding.share_fraction)}{whose or ' of the step'}"
    return ""


def _percent_digits(fraction: float) -> str:
    return format_digits(100 * fraction, 2)


def plan_sentence(plan: Sequence[PlanStep]) -> str:
    """Return whether the fixes of a plan turn the verdict, and from which on."""
    before, after = plan[0].verdict.choice, plan[-1].verdict.choice
    # By the results of the first step: there the CPU is the one that was measured, "this CPU".
    end = verdict_sentence(plan[-1].verdict, plan[0].results)
    fixes = len(plan) - 1
    if before is after:
        all_fixes = "The fix does" if fixes == 1 else f"All {fixes} fixes together do"
        return f"{all_fixes} not turn the verdict. {end}"
    turned = next(
        number
        for number in range(1, len(plan))
        if all(step.verdict.choice is after for step in plan[number:])
    )
    first = "the first fix" if turned == 1 else f"the first {turned} fixes"
    return f"After {first} the verdict turns. {end}"


def choice_word(choice: Choice) -> str:
    """Return a verdict in a word or two, for a table."""
    match choice:
        case Choice.CPU:
            return "CPU"
        case Choice.GPU:
            return "GPU"
        case Choice.TOO_CLOSE:
            return "too close"
        case Choice.UNDECIDED:
            return "undecided"
        case _:
            assert_never(choice)

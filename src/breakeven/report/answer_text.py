"""The answers of a check and an explanation, in sentences, and the labels of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import assert_never

from breakeven.errors import has_caveat
from breakeven.report.check_report import CheckReport
from breakeven.report.document import Line, Medium
from breakeven.report.explain_report import ExplainReport
from breakeven.report.text import place_text, plural, printable, ratio_with_interval
from breakeven.timing import EMULATED_ON_CPU, Source
from breakeven.units import format_percent
from breakeven.verdict import (
    Choice,
    DeviceKind,
    DeviceResult,
    ProgramPart,
    ProgramSummary,
    Verdict,
    log_ratio,
)

# The mark of a figure's source, and its colour in a terminal.
SOURCE_MARKS = {Source.MEASURED: ("●", "green"), Source.PREDICTED: ("○", "blue")}
_CHOICE_STYLES = {
    Choice.CPU: "bold cyan",
    Choice.GPU: "bold green",
    Choice.TOO_CLOSE: "bold yellow",
    Choice.UNDECIDED: "bold yellow",
}
# Rules with a one-line fix on a GPU, and the smallest share of its step worth a sentence.
_SMALL_EFFORTS = frozenset({"LAUNCH001", "OPT002"})
_MUCH = 0.05
# A smaller speedup is no reason to change the number of threads.
_CLEARLY_FASTER = 1.1
# If steps take nearly all of the script's time, say nothing about the rest.
_NEARLY_ALL = 0.9


def device_label(result: DeviceResult) -> str:
    """Return a device's name; the CPU that the step was measured on is ``this CPU``."""
    is_here = result.kind is DeviceKind.CPU and result.source is Source.MEASURED
    name = "this CPU" if is_here else result.device
    label = f"{name}, {result.setting}" if result.setting else name
    return label if is_here else printable(label)


def named_label(results: Sequence[DeviceResult], device: str) -> str:
    """Return the label of a device by its name, even if it is not among the results."""
    named = (result for result in results if result.device == device)
    return next(map(device_label, named), printable(device))


def sort_results(results: Sequence[DeviceResult]) -> tuple[DeviceResult, ...]:
    """Return results by step time; those that exceed their device's memory come last."""
    return tuple(sorted(results, key=lambda result: (result.fits is False, result.step_ns)))


def reference_cpu(results: Sequence[DeviceResult]) -> DeviceResult | None:
    """Return the fastest CPU, with which GPUs are compared."""
    cpus = [result for result in results if result.kind is DeviceKind.CPU]
    return min(cpus, key=lambda cpu: cpu.step_ns, default=None)


def speed_against(result: DeviceResult, other: DeviceResult) -> tuple[float, float, float]:
    """Return the speed of ``result`` relative to ``other``, and the ends of its interval."""
    ratio = log_ratio(other, result)
    return math.exp(ratio.value), math.exp(ratio.low), math.exp(ratio.high)


def sample_legend(counts: Sequence[int], *, is_predicted: bool = True) -> str:
    """Return ``● measured (5 to 43 steps)   ○ predicted``.

    Args:
        counts: Steps of each measured time.
        is_predicted: Whether there are predictions.
    """
    marks: list[str] = []
    if counts:
        least = f"{min(counts):,} to " if min(counts) < max(counts) else ""
        marks.append(f"● measured ({least}{plural(max(counts), 'step')})")
    return "   ".join([*marks, *(["○ predicted"] if is_predicted else [])])


def verdict_lines(report: CheckReport | ExplainReport) -> Iterator[Line]:
    """Yield the verdict, its reason, and the effect on the whole training."""
    verdict, results = report.verdict, report.results
    yield Line(verdict_sentence(verdict, results), _CHOICE_STYLES[verdict.choice])
    if verdict.because:
        # In a terminal, an explanation shows in full what this sentence sums up.
        only = Medium.PAGE if isinstance(report, ExplainReport) else None
        yield Line(printable(verdict.because, 600), only=only)
    best = reference_cpu(results)
    if best is not None and has_caveat(best.caveats, EMULATED_ON_CPU):
        what = best.precision if best.precision in ("bf16", "fp16") else "the 16-bit layers"
        yield Line(
            f"This CPU emulates {what}: in fp32 the step may run several times faster, which "
            "shrinks a GPU's lead. Let the script use fp32 on this CPU, and check again."
        )
    # The result with the script's own number of threads comes last.
    own = next((one for one in reversed(results) if one.kind is DeviceKind.CPU), None)
    if best is not None and own is not None and own.step_ns >= _CLEARLY_FASTER * best.step_ns:
        count = best.num_threads or report.host.num_threads
        yield Line(
            f"To run on {best.setting}, set OMP_NUM_THREADS={count} before python, or call "
            f"torch.set_num_threads({count}) in the script."
        )
        # A fix of similar effort helps the GPU too, but the verdict does not include it.
        gains = {
            finding.code: finding.gain_fraction
            for finding in report.findings
            if finding.code in _SMALL_EFFORTS and finding.gain_fraction > _MUCH
        }
        if gains:
            listed = ", ".join(f"{format_percent(gain)} ({code})" for code, gain in gains.items())
            yield Line(f"Equally small changes on the GPU save {listed}. That is not counted.")
    if report.program is not None:
        yield from _program_lines(report, report.program)


def verdict_sentence(verdict: Verdict, results: Sequence[DeviceResult]) -> str:
    """Return the device to train on, and its speedup.

    Args:
        verdict: The verdict.
        results: The results of all compared devices.
    """
    ratio = ratio_with_interval(verdict.speedup, verdict.low, verdict.high)
    device, over = named_label(results, verdict.device), named_label(results, verdict.over)
    match verdict.choice:
        case Choice.CPU:
            num_gpus = sum(result.kind is DeviceKind.GPU for result in results)
            rival = f"the {over}" if num_gpus == 1 else f"the best GPU, {over}"
            is_here = device.startswith("this CPU")
            where = device.replace("this", "your", 1) if is_here else f"the CPU ({device})"
            return f"Train this on {where}: {ratio} faster than {rival}."
        case Choice.GPU:
            return f"A GPU pays off: {device}, {ratio} faster than {over}."
        case Choice.TOO_CLOSE:
            return f"Too close to call: {device} at {ratio} the speed of {over}. Measure."
        case Choice.UNDECIDED:
            return f"Undecided: {over} cannot be timed well enough to compare it with {device}."
        case _:
            assert_never(verdict.choice)


def _program_lines(report: CheckReport | ExplainReport, program: ProgramSummary) -> Iterator[Line]:
    """Yield the effect on the whole training, if other work matters too."""
    results, verdict = report.results, report.verdict
    other_ns = program.other_ns or 0.0
    gpu = next(one for one in results if one.device in verdict.pair and one.kind is DeviceKind.GPU)
    found = next((each for each in program.between if each.device == gpu.device), None)
    on_gpu_ns = found.time_ns if found else other_ns
    gpu_fraction = on_gpu_ns / (on_gpu_ns + gpu.step_ns)
    if max(1 - program.step_fraction, gpu_fraction) < 1 - _NEARLY_ALL:
        return
    parts: list[str] = []
    for part in program.parts:
        place = place_text(PurePath(part.file).name, part.line, 48)
        named = f"{part_name(part)} at {place}" if part.function else place
        parts.append(f"{share_text(program, part.time_ns)} {named}")
    listed = f" ({', '.join(parts)})" if parts else ""
    stays = ", assumed to stay on the CPU"
    if found is not None:
        factors = (time_ns / other_ns for time_ns in (found.time_ns, found.low_ns, found.high_ns))
        stays = f"; on {device_label(gpu)} that takes {ratio_with_interval(*factors)} as long"
    is_open = verdict.choice is Choice.UNDECIDED
    rest = (
        f"{format_percent(1 - program.step_fraction)} of {'the' if is_open else 'its'} time on "
        f"this CPU is outside of steps{listed}{stays}, {format_percent(gpu_fraction)} of the time "
        f"with {device_label(gpu)}."
    )
    if is_open:
        yield Line(f"Of your whole training, {rest}")
        return
    ratio = ratio_with_interval(program.speedup, program.low, program.high)
    device, over = (named_label(results, name) for name in verdict.pair)
    yield Line(f"Your whole training is {ratio} as fast on {device} as on {over}: {rest}")


def part_name(part: ProgramPart) -> str:
    """Return the name of a part of the training: its function, or its place if it has none."""
    return printable(part.function, 60) or place_text(PurePath(part.file).name, part.line, 48)


def share_text(program: ProgramSummary, time_ns: float) -> str:
    """Return the share of the training's time, without start-up."""
    return format_percent(time_ns / (program.other_ns or 1.0) * (1 - program.step_fraction))

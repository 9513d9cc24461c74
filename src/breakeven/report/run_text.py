"""Words about a run that reports of several kinds share: verdict, facts, caveats, side effects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import assert_never

from breakeven.errors import Caveat
from breakeven.report.charts.build import axis_word, crossover_interval
from breakeven.report.document import Fact, Medium
from breakeven.report.text import plural, printable, ratio_alone, ratio_with_interval
from breakeven.timing import BUSY_MACHINE, Source
from breakeven.trace import FileChange, FileWrite, FileWrites, WriteProtection
from breakeven.units import format_bytes, format_count, format_duration, format_percent, format_time
from breakeven.verdict import (
    CheckReport,
    Choice,
    Crossover,
    DeviceKind,
    DeviceResult,
    ExplainReport,
    HostSummary,
    NoCrossover,
    ProgramPart,
    ProgramSummary,
    SweepReport,
    TuneReport,
    Verdict,
    by_trust_and_time,
    cpu_result,
    log_ratio,
)

CHOICE_STYLES = {
    Choice.CPU: "bold cyan",
    Choice.GPU: "bold green",
    Choice.TOO_CLOSE: "bold yellow",
    Choice.UNDECIDED: "bold yellow",
}
# The sign of where a figure comes from, and its colour at a terminal.
SOURCE_MARKS = {Source.MEASURED: ("●", "green"), Source.PREDICTED: ("○", "blue")}
# Files that are named; all that are known are in the JSON report.
_MAX_NAMES = 3


def verdict_sentence(verdict: Verdict, results: Sequence[DeviceResult]) -> str:
    """Return where to train, and by how much that is faster.

    Args:
        verdict: What was decided.
        results: Of all devices that were compared.
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


def crossover_sentence(report: CheckReport) -> str:
    """Return from which size on a GPU wins, or why that is not told."""
    cpu = reference_cpu(report.results)
    rival = "the CPU" if cpu is None else device_label(cpu)
    match report.crossover:
        case Crossover() as crossover:
            return _found_sentence(crossover, named_label(report.results, crossover.device), rival)
        case NoCrossover() as none:
            # What was not searched may well be there.
            what = "Crossover not known" if none.searched is None else "No crossover"
            return f"{what}: {printable(none.none_because, 600)}"


def generated_result(report: CheckReport) -> DeviceResult | None:
    """Return this CPU's step as generated code; None where that gains too little to be shown."""
    step, cpu = report.generated, reference_cpu(report.results)
    if step is None or cpu is None or not step.is_worth_it:
        return None
    return cpu_result(
        cpu.device, step.step, precision=cpu.precision, fits=True, setting="generated step"
    )


def generated_sentence(report: CheckReport) -> str | None:
    """Return what generated code makes of the step, where it is shown, and how to have it."""
    step, result = report.generated, generated_result(report)
    if step is None or result is None:
        return None
    gpus = [one for one in report.results if one.kind is DeviceKind.GPU and one.fits is not False]
    against = ""
    if gpus:
        gpu = min(gpus, key=lambda one: one.step_ns)
        ratio = log_ratio(gpu, result)
        values = (math.exp(value) for value in (ratio.value, ratio.low, ratio.high))
        against = f" and {ratio_with_interval(*values)} as fast as {device_label(gpu)}"
    return (
        f"With forward, backward and update as generated code, a step takes this CPU "
        f"{format_duration(step.step_ns, 2)}, {format_duration(step.kept_ns, 2)} of them for the "
        f"rest of the loop: {ratio_alone(step.speedup)} as fast as now"
        f"{against}. breakeven tune tries that and breakeven run trains so, or call "
        "breakeven.fast_step in the loop yourself."
    )


def generated_crossover_sentence(report: CheckReport) -> str | None:
    """Return from which size on a GPU wins against generated code; None where it is not told."""
    match report.generated_crossover:
        case None:
            return None
        case Crossover() as crossover:
            winner = named_label(report.results, crossover.device)
            return _found_sentence(crossover, winner, "generated code on this CPU")
        case NoCrossover() as none:
            return printable(none.none_because, 600)


def _found_sentence(crossover: Crossover, winner: str, rival: str) -> str:
    first, last = crossover.searched
    return (
        f"Crossover: from {axis_word(crossover.axis)} {crossover.value:,} "
        f"({crossover_interval(crossover)}) on, {winner} is faster than {rival} "
        f"(searched {first:,} to {last:,})."
    )


def run_facts(report: CheckReport | ExplainReport, program: Iterable[Fact] = ()) -> Iterator[Fact]:
    """Yield what was run, and where.

    Args:
        report: Of the run.
        program: What is known of the program around the step.
    """
    step = report.step
    batch = [] if step.batch_size is None else [f"batch size {step.batch_size:,}"]
    copies = ", ".join(
        f"{format_bytes(num_bytes, 2)} {direction}"
        for num_bytes, direction in ((step.h2d_bytes, "in"), (step.d2h_bytes, "out"))
        if num_bytes > 0
    )
    parts = [
        printable(report.target, 120),
        *batch,
        f"{format_count(step.num_parameters)} parameters",
    ]
    yield Fact("target", " · ".join(parts), is_bare=True)
    parts = [
        plural(step.num_ops, "op"),
        plural(step.num_kernels, "kernel"),
        plural(step.num_syncs, "sync"),
        *([f"copies {copies}"] if copies else []),
        f"host {format_duration(step.host_ns, 2)}",
    ]
    yield Fact("step", " · ".join(parts))
    yield from program
    yield from side_effect_facts(report)
    yield from host_facts(report.host)
    for result in report.results:
        if result.calibrated_on:
            told = f"calibrated on this GPU on {printable(result.calibrated_on, 20)}"
            yield Fact("GPU", f"{printable(result.device, 80)}: {told}")


def host_facts(host: HostSummary, threads: str = "") -> Iterator[Fact]:
    """Yield what the machine is.

    Args:
        host: The machine.
        threads: Those of the CPU's steps, where they are not the host's alone.
    """
    parts = [
        printable(host.name, 80),
        threads or plural(host.num_threads, "thread"),
        f"torch {printable(host.torch_version)}",
        # What was assumed beside is in a page and in the JSON report.
        printable(host.calibration, 120),
    ]
    yield Fact("host", " · ".join(parts))
    yield Fact("host costs", printable(host.source), only=Medium.PAGE)
    yield Fact("Python", printable(host.python_version, 60), only=Medium.PAGE)


def sample_legend(counts: Sequence[int], *, is_predicted: bool = True, noun: str = "step") -> str:
    """Return ``● measured (5 to 43 steps)   ○ predicted``.

    Args:
        counts: Samples of each measured time.
        is_predicted: Whether there are predictions.
        noun: What was counted.
    """
    marks: list[str] = []
    if counts:
        least = f"{min(counts):,} to " if min(counts) < max(counts) else ""
        marks.append(f"● measured ({least}{plural(max(counts), noun)})")
    return "   ".join([*marks, *(["○ predicted"] if is_predicted else [])])


def busy_warnings(caveats: Iterable[Caveat]) -> tuple[str, ...]:
    """Return a sentence where other processes disturbed a measurement; else nothing."""
    messages = [caveat.message for caveat in caveats if caveat.code == BUSY_MACHINE]
    if not messages:
        return ()
    # Each names its own load: the first stands for all.
    times = f" (so in {len(messages):,} measurements)" if len(messages) > 1 else ""
    quiet = "Run it again when the machine is quiet."
    return (f"Careful: {printable(messages[0])}{times}. {quiet}",)


def held_caveats(
    of_all: Iterable[Caveat], of_devices: Iterable[tuple[str, Sequence[Caveat]]], num_names: int
) -> Mapping[Caveat, str]:
    """Return each caveat once, with the names it holds for; none where it holds for all.

    That of a busy machine may turn the answer itself: ``busy_warnings`` puts it beside that.

    Args:
        of_all: Caveats of everything.
        of_devices: Names with their caveats.
        num_names: As many names are all.
    """
    everywhere = dict.fromkeys(of_all)
    grouped: dict[Caveat, dict[str, None]] = {caveat: {} for caveat in everywhere}
    for name, caveats in of_devices:
        for caveat in caveats:
            grouped.setdefault(caveat, {})[name] = None
    return {
        caveat: ", ".join(names) if caveat not in everywhere and len(names) < num_names else ""
        for caveat, names in grouped.items()
        if caveat.code != BUSY_MACHINE
    }


def caveats_of_results(report: CheckReport | ExplainReport) -> Mapping[Caveat, str]:
    """Return the caveats of a run with the devices that they hold for."""
    num_gpus = sum(result.kind is DeviceKind.GPU for result in report.results)
    held = held_caveats(report.caveats, _named_caveats(report.results), num_gpus)
    absent = report.absent_cpus if isinstance(report, CheckReport) else ()
    # What holds for all of these is said of them by name too, beside the GPUs.
    return {**held, **held_caveats((), _named_caveats(absent), len(absent) + 1)}


def _named_caveats(results: Iterable[DeviceResult]) -> list[tuple[str, Sequence[Caveat]]]:
    return [(device_label(result), result.caveats) for result in results]


def result_name(result: DeviceResult) -> str:
    """Return a device's name, with the processor's where it is this CPU."""
    label = device_label(result)
    return label if label == printable(result.device) else f"{label} ({printable(result.device)})"


def sort_results(results: Sequence[DeviceResult]) -> tuple[DeviceResult, ...]:
    """Return results by step time, those that do not fit their device last."""
    return tuple(sorted(results, key=lambda result: (result.fits is False, result.step_ns)))


def reference_cpu(results: Sequence[DeviceResult]) -> DeviceResult | None:
    """Return the CPU that GPUs are compared with: the fastest that was not disturbed."""
    cpus = [result for result in results if result.kind is DeviceKind.CPU]
    return min(cpus, key=by_trust_and_time, default=None)


def device_label(result: DeviceResult) -> str:
    """Return a device's name; the CPU that the step was measured on is ``this CPU``."""
    if result.kind is DeviceKind.CPU and result.source is Source.MEASURED:
        return f"this CPU, {result.setting}" if result.setting else "this CPU"
    return printable(f"{result.device}, {result.setting}" if result.setting else result.device)


def named_label(results: Sequence[DeviceResult], device: str) -> str:
    """Return the label of a device by its name, whether it is among results or not."""
    named = (result for result in results if result.device == device)
    return next(map(device_label, named), printable(device))


def side_effect_facts(
    report: CheckReport | ExplainReport | SweepReport | TuneReport,
) -> Iterator[Fact]:
    """Yield what the script wrote and logged, and where that went, where there is any.

    Args:
        report: Of the runs.
    """
    writes = report.writes
    if writes is not None and (
        writes.num_files or writes.protection is not WriteProtection.OVERLAY
    ):
        yield Fact("files", _writes_text(writes))
    if report.quiet_trackers:
        names = ", ".join(printable(name, 40) for name in report.quiet_trackers)
        text = f"nothing was logged to {names} (--keep-trackers lets them be)"
        yield Fact("trackers", text)


def _writes_text(writes: FileWrites) -> str:
    if writes.protection is WriteProtection.NONE:
        return "written for real, as asked for"
    led = " (what programs and libraries write past Python is real)"
    limit = led if writes.protection is WriteProtection.REDIRECTED else ""
    if not writes.num_files:
        return f"none written{limit}"
    names = [_file_name(write) for write in writes.files[:_MAX_NAMES]]
    if writes.num_files > len(names):
        names.append("…")
    size = f", {format_bytes(writes.num_bytes, 2)}" if writes.num_bytes else ""
    written = f"{plural(writes.num_files, 'file')}{size} ({', '.join(names)})"
    return f"{written}, written to a layer that is thrown away{limit}"


def _file_name(write: FileWrite) -> str:
    name = printable(PurePath(write.path).name, 40)
    return f"{name} deleted" if write.change is FileChange.DELETED else name


# A script that is hardly anything but its steps needs no sentence about the rest.
_NEARLY_ALL = 0.9
# Rules whose fix for a GPU is a line, and shares of its step that are worth a sentence.
_SMALL_EFFORTS = frozenset({"LAUNCH001", "OPT002"})
_MUCH = 0.05
# Of what lies between steps; less needs no name.
_LEAST_SHARE = 0.05


def program_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield what becomes of the whole training, where it is more than its steps."""
    program, verdict = report.program, report.verdict
    if program is None or program.step_fraction > _NEARLY_ALL:
        return
    listed = ", ".join(_part_text(program, part) for part in program.parts)
    rest = (
        f"{format_percent(1 - program.step_fraction)} of its time on this CPU is no step"
        f"{f' ({listed})' if listed else ''}, and is taken to stay on the CPU."
    )
    if verdict.choice is Choice.UNDECIDED:
        yield f"Of your whole training, {rest.replace('of its time', 'of the time', 1)}"
        return
    ratio = ratio_with_interval(program.speedup, program.low, program.high)
    device, over = (named_label(report.results, name) for name in (verdict.device, verdict.over))
    yield f"Your whole training is {ratio} as fast on {device} as on {over}: {rest}"


def program_facts(program: ProgramSummary | None) -> Iterator[Fact]:
    """Yield the parts of the training, where they are known, under their name."""
    if program is None:
        return
    parts = [f"start-up {format_duration(program.startup_ns, 2)}"]
    if program.other_ns is None:
        parts.append("what is done between the steps is not known")
    else:
        parts.append(f"steps {format_percent(program.step_fraction)}")
        parts += [f"{_name(part)} {_share(program, part.time_ns)}" for part in program.parts]
        unnamed_ns = program.other_ns - sum(part.time_ns for part in program.parts)
        if unnamed_ns > _LEAST_SHARE * program.other_ns:
            parts.append(f"between them {_share(program, unnamed_ns)}")
    yield Fact("program", " · ".join(parts))


def training_times(report: CheckReport) -> Iterator[tuple[str, str]]:
    """Yield the time of the whole training by device, the fastest first.

    Nothing where it is not known how long the training is.
    """
    program = report.program
    labels = {result.device: device_label(result) for result in report.results}
    times = () if program is None else program.times
    for time in sorted(times, key=lambda each: each.total_ns):
        ends = f"{format_time(time.low_ns)}–{format_time(time.high_ns)}"
        yield labels[time.device], f"{format_time(time.total_ns)} ({ends})"


def training_title(program: ProgramSummary) -> str:
    """Return what ``training_times`` are of."""
    unknown = "" if program.other_ns is not None else ", without what is done between them"
    return f"The whole training: {plural(program.num_steps or 0, 'step')} and start-up{unknown}"


def threads_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield how to get the threads that are best, where the script has others.

    And what as little effort brings on the GPU's side, which is compared as it is.
    """
    cpus = [result for result in report.results if result.kind is DeviceKind.CPU]
    best = reference_cpu(report.results)
    if best is None or len(cpus) < 2 or best is not cpus[0]:
        return
    count = report.host.num_threads
    yield (
        f"To run on {best.setting}, set OMP_NUM_THREADS={count} before python, or call "
        f"torch.set_num_threads({count}) in the script."
    )
    gains = {
        finding.code: finding.gain_fraction
        for finding in report.findings
        if finding.code in _SMALL_EFFORTS and finding.gain_fraction > _MUCH
    }
    if gains:
        listed = ", ".join(f"{format_percent(gain)} ({code})" for code, gain in gains.items())
        yield f"As small a change saves on the GPU: {listed}. That is not counted."


def _part_text(program: ProgramSummary, part: ProgramPart) -> str:
    place = f"{printable(PurePath(part.file).name, 40)}:{part.line}"
    at = f"{_name(part)} at {place}" if part.function else place
    return f"{_share(program, part.time_ns)} {at}"


def _share(program: ProgramSummary, time_ns: float) -> str:
    """Return the share of the training's time, start-up aside."""
    return format_percent(time_ns / (program.other_ns or 1.0) * (1 - program.step_fraction))


def _name(part: ProgramPart) -> str:
    return printable(part.function, 60) or f"{printable(PurePath(part.file).name, 40)}:{part.line}"

"""The answer of a check in sentences, which an explanation shares: verdict, crossover, training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import assert_never

from msgspec import structs

from breakeven.errors import has_caveat
from breakeven.report.charts.build import axis_word, crossover_interval
from breakeven.report.phrase import Line, Medium, Place
from breakeven.report.result_text import (
    device_label,
    fastest_gpu,
    named_label,
    reference_cpu,
    speed_against,
    speed_text,
)
from breakeven.report.text import (
    duration_with_interval,
    plural,
    printable,
    ratio_alone,
    ratio_with_interval,
)
from breakeven.timing import EMULATED_ON_CPU, Source
from breakeven.units import format_count, format_duration, format_percent
from breakeven.verdict import (
    CheckReport,
    Choice,
    Crossover,
    DeviceKind,
    DeviceResult,
    ExplainReport,
    NoCrossover,
    ProgramPart,
    ProgramSummary,
    Verdict,
    cpu_result,
)

_CHOICE_STYLES = {
    Choice.CPU: "bold cyan",
    Choice.GPU: "bold green",
    Choice.TOO_CLOSE: "bold yellow",
    Choice.UNDECIDED: "bold yellow",
}
# Rules whose fix for a GPU is a line, and shares of its step that are worth a sentence.
_SMALL_EFFORTS = frozenset({"LAUNCH001", "OPT002"})
_MUCH = 0.05
# What is less is no reason for another number of threads.
_CLEARLY_FASTER = 1.1
# A script that is hardly anything but its steps needs no sentence about the rest.
_NEARLY_ALL = 0.9
_MOST_BREAKS = 3


def verdict_lines(report: CheckReport | ExplainReport) -> Iterator[Line]:
    """Yield where to train, why, and what becomes of the whole training."""
    verdict = report.verdict
    yield Line(verdict_sentence(verdict, report.results), _CHOICE_STYLES[verdict.choice])
    if verdict.because:
        # An explanation says in full at a terminal what this sums up.
        only = Medium.PAGE if isinstance(report, ExplainReport) else None
        yield Line(printable(verdict.because, 600), only=only)
    yield from map(Line, _emulation_sentences(report))
    yield from map(Line, _threads_sentences(report))
    yield from map(Line, _program_sentences(report))
    if isinstance(report, CheckReport):
        yield from map(Line, _generated_sentences(report))
        yield from map(Line, _captured_sentences(report))
        yield from map(Line, _compiled_sentences(report))
        yield from map(Line, _absent_cpu_sentences(report))


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


def crossover_sentences(report: CheckReport) -> Iterator[str]:
    """Yield from which size on a GPU wins, or why that is not known; then for generated code."""
    cpu = reference_cpu(report.results)
    match report.crossover:
        case Crossover() as crossover:
            yield _found_sentence(
                report, crossover, "the CPU" if cpu is None else device_label(cpu)
            )
        case NoCrossover() as none:
            # What was not searched may well be there.
            what = "Crossover not known" if none.searched is None else "No crossover"
            yield f"{what}: {printable(none.none_because, 600)}"
    match report.generated_crossover:
        case None:
            return
        case Crossover() as crossover:
            yield _found_sentence(report, crossover, "generated code on this CPU")
        case NoCrossover() as none:
            yield printable(none.none_because, 600)


def _found_sentence(report: CheckReport, crossover: Crossover, rival: str) -> str:
    first, last = crossover.searched
    winner = named_label(report.results, crossover.device)
    return (
        f"Crossover: from {axis_word(crossover.axis)} {crossover.value:,} "
        f"({crossover_interval(crossover)}) on, {winner} is faster than {rival} "
        f"(searched {first:,} to {last:,})."
    )


def _emulation_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield that the CPU is compared in a format which it has no arithmetic for."""
    cpu = reference_cpu(report.results)
    if cpu is not None and has_caveat(cpu.caveats, EMULATED_ON_CPU):
        what = cpu.precision if cpu.precision in ("bf16", "fp16") else "the 16-bit layers"
        yield (
            f"This CPU emulates {what}: in fp32 the step may be several times as fast on "
            "it, and a GPU's lead as much smaller. Let the script keep fp32 there, and check that."
        )


def _threads_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield how to get the threads that are best, if the script has others.

    And what as little effort brings on the GPU's side, which is compared as it is.
    """
    cpus = [result for result in report.results if result.kind is DeviceKind.CPU]
    best = reference_cpu(report.results)
    # The script's own threads come last.
    if best is None or cpus[-1].step_ns < _CLEARLY_FASTER * best.step_ns:
        return
    count = best.num_threads or report.host.num_threads
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


def _program_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield what becomes of the whole training, if it is more than its steps."""
    program, verdict = report.program, report.verdict
    if program is None:
        return
    other_ns = program.other_ns or 0.0
    gpu = next(
        one for one in report.results if one.device in verdict.pair and one.kind is DeviceKind.GPU
    )
    found = next((each for each in program.between if each.device == gpu.device), None)
    on_gpu_ns = found.time_ns if found else other_ns
    gpu_fraction = on_gpu_ns / (on_gpu_ns + gpu.step_ns)
    if max(1 - program.step_fraction, gpu_fraction) < 1 - _NEARLY_ALL:
        return
    listed = ", ".join(
        f"{share_text(program, part.time_ns)} {_part_place(part)}" for part in program.parts
    )
    stays = ", and is taken to stay on the CPU"
    if found is not None:
        factors = (time_ns / other_ns for time_ns in (found.time_ns, found.low_ns, found.high_ns))
        stays = f"; on {device_label(gpu)} that takes {ratio_with_interval(*factors)} as long"
    stays += f", {format_percent(gpu_fraction)} of the time with {device_label(gpu)}."
    rest = (
        f"{format_percent(1 - program.step_fraction)} of its time on this CPU is no step"
        f"{f' ({listed})' if listed else ''}{stays}"
    )
    if verdict.choice is Choice.UNDECIDED:
        yield f"Of your whole training, {rest.replace('of its time', 'of the time', 1)}"
        return
    ratio = ratio_with_interval(program.speedup, program.low, program.high)
    device, over = (named_label(report.results, name) for name in verdict.pair)
    yield f"Your whole training is {ratio} as fast on {device} as on {over}: {rest}"


def _part_place(part: ProgramPart) -> str:
    place = f"{printable(PurePath(part.file).name, 40)}:{part.line}"
    return f"{part_name(part)} at {place}" if part.function else place


def part_name(part: ProgramPart) -> str:
    """Return how a part of the training is called: its function, or else its place."""
    return printable(part.function, 60) or f"{printable(PurePath(part.file).name, 40)}:{part.line}"


def share_text(program: ProgramSummary, time_ns: float) -> str:
    """Return the share of the training's time, start-up aside."""
    return format_percent(time_ns / (program.other_ns or 1.0) * (1 - program.step_fraction))


def generated_result(report: CheckReport) -> DeviceResult | None:
    """Return this CPU's step as generated code; None if that gains too little to be shown."""
    step, cpu = report.generated, reference_cpu(report.results)
    if step is None or cpu is None or not step.is_worth_it:
        return None
    return cpu_result(
        cpu.device, step.step, precision=cpu.precision, fits=True, setting="generated step"
    )


def _generated_sentences(report: CheckReport) -> Iterator[str]:
    """Yield what generated code makes of the step, if it is shown, and how to have it."""
    step, result = report.generated, generated_result(report)
    if step is None or result is None:
        return
    gpu = fastest_gpu(report.results)
    against = "" if gpu is None else f" and {speed_text(result, gpu)}"
    yield (
        f"With forward, backward and update as generated code, a step takes this CPU "
        f"{format_duration(step.step_ns, 2)}, {format_duration(step.kept_ns, 2)} of them for the "
        f"rest of the loop: {ratio_alone(step.speedup)} as fast as now"
        f"{against}. breakeven tune tries that and breakeven run trains so, or call "
        "breakeven.fast_step in the loop yourself."
    )


def _captured_sentences(report: CheckReport) -> Iterator[str]:
    """Yield what a CUDA graph makes of the step, against the generated step if there is one."""
    if report.captured is None:
        return
    gpu, cpu = report.captured.result, generated_result(report)
    because, way = "", "a CUDA graph"
    if report.captured.because:
        because = f"One CUDA graph cannot replay this step: {printable(report.captured.because)}. "
        way = 'torch.compile(mode="reduce-overhead")'
    if gpu is None:
        if because:
            yield because.rstrip()
        return
    named = f"{printable(gpu.device)} with {way}"
    time = duration_with_interval(gpu.step_ns, gpu.low_ns, gpu.high_ns)
    if cpu is None:
        yield f"{because}{named} is predicted to take {time} for a step."
        return
    faster, slower = sorted((cpu, gpu), key=lambda result: result.step_ns)
    ratio = speed_against(faster, slower)
    is_open = " (too close to call)" if ratio[1] < 1 else ""
    yield (
        f"{because}At their best: a generated step takes this CPU "
        f"{format_duration(cpu.step_ns, 2)}, {named} {time}, predicted: the "
        f"{faster.kind.upper()} is {ratio_with_interval(*ratio)} as fast{is_open}."
    )


def compiled_results(report: CheckReport) -> tuple[DeviceResult, ...]:
    """Return the compiled step on each GPU; none if it was not predicted."""
    if report.compiled is None:
        return ()
    eager = {result.device: result for result in report.results if result.kind is DeviceKind.GPU}
    return tuple(
        structs.replace(
            eager[one.device],
            source=Source.PREDICTED,
            step_ns=one.step_ns,
            low_ns=one.low_ns,
            high_ns=one.high_ns,
            bound=one.bound,
            num_samples=0,
            setting="compiled",
        )
        for one in report.compiled.results
        if one.device in eager
    )


def _compiled_sentences(report: CheckReport) -> Iterator[str]:
    """Yield what ``torch.compile`` makes of the step on the GPU that the verdict is about."""
    steps = report.compiled
    if steps is None or not steps.results:
        return
    fastest = min(steps.results, key=lambda one: one.step_ns)
    one = next((one for one in steps.results if one.device in report.verdict.pair), fastest)
    mode = "" if steps.mode == "default" else f' in mode "{steps.mode}"'
    pays = "which it never makes up for"
    if one.pays_after_steps is not None:
        pays = f"paid for after {format_count(one.pays_after_steps, 2)} steps"
    # What a script has that compiles its model itself is not the step that the verdict is about.
    beside = "without it, as the verdict takes it" if steps.is_asked_for_by_script else "written"
    yield (
        f"Compiled by torch.compile{mode}, a step on {printable(one.device)} is predicted to take "
        f"{format_duration(one.step_ns, 2)}: {ratio_alone(one.speedup)} as fast as {beside}. "
        f"Compiling takes about {format_duration(steps.compile_ns, 1)}, {pays}."
    )
    if steps.breaks:
        known = [at.location for at in steps.breaks if at.location is not None]
        places = (Place(file=at.file, line=at.line).text(80) for at in known[:_MOST_BREAKS])
        lines = ", ".join(places)
        yield (
            f"The compiled graph breaks where the model waits for a value, "
            f"{plural(len(steps.breaks), 'time')} per call{f': {lines}' if lines else ''}."
        )


def _absent_cpu_sentences(report: CheckReport) -> Iterator[str]:
    """Yield what each CPU that was named takes, against this one and the fastest GPU."""
    others = [reference_cpu(report.results), fastest_gpu(report.results)]
    for absent in report.absent_cpus:
        against = [speed_text(absent, other) for other in others if other is not None]
        yield (
            f"On {device_label(absent)}, a step is predicted to take "
            f"{format_duration(absent.step_ns, 2)}: {' and '.join(against)}."
        )
    if report.absent_cpus:
        yield "The verdict compares GPUs with this CPU alone, which was measured."

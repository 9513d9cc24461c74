"""Words that reports of several kinds share: verdict, crossover, facts, side effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import assert_never

from breakeven.errors import has_caveat
from breakeven.report.charts.build import axis_word, crossover_interval
from breakeven.report.phrase import Fact, Medium, place_of
from breakeven.report.result_text import device_label, named_label, reference_cpu
from breakeven.report.text import plural, printable, ratio_with_interval
from breakeven.timing import EMULATED_ON_CPU
from breakeven.trace import FileChange, FileWrite, FileWrites, WriteProtection
from breakeven.units import format_bytes, format_count, format_duration, format_percent
from breakeven.verdict import (
    CheckReport,
    Choice,
    Crossover,
    DeviceKind,
    DeviceResult,
    ExplainReport,
    Finding,
    HostSummary,
    NoCrossover,
    SweepReport,
    TuneReport,
    Verdict,
)

CHOICE_STYLES = {
    Choice.CPU: "bold cyan",
    Choice.GPU: "bold green",
    Choice.TOO_CLOSE: "bold yellow",
    Choice.UNDECIDED: "bold yellow",
}
# Files that are named; all that are known are in the JSON report.
_MAX_NAMES = 3
_MAX_PLACE_CHARACTERS = 40


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
            return found_sentence(crossover, named_label(report.results, crossover.device), rival)
        case NoCrossover() as none:
            # What was not searched may well be there.
            what = "Crossover not known" if none.searched is None else "No crossover"
            return f"{what}: {printable(none.none_because, 600)}"


def found_sentence(crossover: Crossover, winner: str, rival: str) -> str:
    """Return from which size on one is faster than another."""
    first, last = crossover.searched
    return (
        f"Crossover: from {axis_word(crossover.axis)} {crossover.value:,} "
        f"({crossover_interval(crossover)}) on, {winner} is faster than {rival} "
        f"(searched {first:,} to {last:,})."
    )


def fix_texts(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the fix of each finding, or for which line the same rule has said the same before."""
    said: dict[tuple[str, str], str] = {}
    for finding in findings:
        rule_and_fix, text = (finding.code, finding.fix), printable(finding.fix, 600)
        first = said.get(rule_and_fix)
        # A short fix is said sooner than where it stands.
        yield text if first is None or len(text) <= len(first) else first
        place = place_of(finding.file, finding.line)
        where = "above" if place is None else f"for {place.text(_MAX_PLACE_CHARACTERS)}"
        said.setdefault(rule_and_fix, f"as {where}")


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
    yield from kind_facts(report.results)
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


def kind_facts(results: Sequence[DeviceResult]) -> Iterator[Fact]:
    """Yield in what kind of machine each predicted GPU is taken to be."""
    fed: dict[str, list[str]] = {}
    for result in results:
        if result.fed_by:
            fed.setdefault(result.fed_by, []).append(printable(result.device, 80))
    if fed:
        told = "; ".join(f"{', '.join(names)}: {printable(kind)}" for kind, names in fed.items())
        yield Fact("GPUs in", f"{told} (--host changes that)")


def side_effect_facts(
    report: CheckReport | ExplainReport | SweepReport | TuneReport,
) -> Iterator[Fact]:
    """Yield what the script wrote, and where that went, where there is any.

    Args:
        report: Of the runs.
    """
    writes = report.writes
    if writes is not None and (
        writes.num_files or writes.protection is not WriteProtection.OVERLAY
    ):
        yield Fact("files", _writes_text(writes))


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


# Rules whose fix for a GPU is a line, and shares of its step that are worth a sentence.
_SMALL_EFFORTS = frozenset({"LAUNCH001", "OPT002"})
_MUCH = 0.05
# What is less is no reason for another number of threads.
_CLEARLY_FASTER = 1.1


def emulation_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield that the CPU is compared in a format which it has no arithmetic for."""
    cpu = reference_cpu(report.results)
    if cpu is not None and has_caveat(cpu.caveats, EMULATED_ON_CPU):
        what = cpu.precision if cpu.precision in ("bf16", "fp16") else "the 16-bit layers"
        yield (
            f"This CPU emulates {what}: in fp32 the step may be several times as fast on "
            "it, and a GPU's lead as much smaller. Let the script keep fp32 there, and check that."
        )


def threads_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield how to get the threads that are best, where the script has others.

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

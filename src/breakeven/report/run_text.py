"""What reports of several kinds share: facts of the run, side effects, fixes and caveats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from breakeven.errors import Caveat
from breakeven.report.answer_text import part_name, share_text
from breakeven.report.document import Lines, Section
from breakeven.report.phrase import Fact, Line, Medium, place_of
from breakeven.report.result_text import device_label
from breakeven.report.text import plural, printable, shorten
from breakeven.timing import BUSY_MACHINE
from breakeven.trace import FileChange, FileWrite, FileWrites, WriteProtection
from breakeven.units import format_bytes, format_count, format_duration, format_percent
from breakeven.verdict import (
    CheckReport,
    DeviceKind,
    ExplainReport,
    Finding,
    HostSummary,
    SweepReport,
    TuneReport,
)

# Files that are named; all that are known are in the JSON report.
_MAX_NAMES = 3
_MAX_PLACE_CHARACTERS = 40
# Of what lies between steps; less needs no name.
_LEAST_SHARE = 0.05


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


def run_facts(report: CheckReport | ExplainReport) -> Iterator[Fact]:
    """Yield what was run, and where."""
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
    program = report.program
    if program is not None:
        parts = [f"start-up {format_duration(program.startup_ns, 2)}"]
        if program.other_ns is None:
            parts.append("what is done between the steps is not known")
        else:
            parts.append(f"steps {format_percent(program.step_fraction)}")
            parts += [f"{part_name(p)} {share_text(program, p.time_ns)}" for p in program.parts]
            unnamed_ns = program.other_ns - sum(part.time_ns for part in program.parts)
            if unnamed_ns > _LEAST_SHARE * program.other_ns:
                parts.append(f"between them {share_text(program, unnamed_ns)}")
        yield Fact("program", " · ".join(parts))
    yield from side_effect_facts(report)
    yield from host_facts(report.host)
    # In what kind of machine each predicted GPU is taken to be.
    fed: dict[str, list[str]] = {}
    for result in report.results:
        if result.fed_by:
            fed.setdefault(result.fed_by, []).append(printable(result.device, 80))
    if fed:
        told = "; ".join(f"{', '.join(names)}: {printable(kind)}" for kind, names in fed.items())
        yield Fact("GPUs in", f"{told} (--host changes that)")
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
    here = [(device_label(result), result.caveats) for result in report.results]
    absent = report.absent_cpus if isinstance(report, CheckReport) else ()
    # What holds for all of these is said of them by name too, beside the GPUs.
    there = [(device_label(result), result.caveats) for result in absent]
    held = held_caveats(report.caveats, here, num_gpus)
    return {**held, **held_caveats((), there, len(absent) + 1)}


def caveat_section(caveats: Mapping[Caveat, str], *, most: int = 10) -> tuple[Section, ...]:
    """Return the section of caveats; none if there are none.

    Args:
        caveats: With what each holds for; empty for everything.
        most: Caveats that are shown.
    """
    lines = [
        Line(
            (
                (printable(caveat.code, 40), "yellow"),
                f"  {printable(caveat.message, 600)}",
                (f" ({shorten(remark, 200)})" if remark else "", "dim"),
            ),
            indent=2,
        )
        for caveat, remark in list(caveats.items())[:most]
    ]
    if len(caveats) > most:
        lines.append(Line(f"and {len(caveats) - most:,} more, listed by --json", "dim", 2))
    return (Section("Caveats", (Lines(tuple(lines), is_list=True),)),) if lines else ()

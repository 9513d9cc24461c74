"""Shared parts of several kinds of reports: run facts, side effects, fixes and caveats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from breakeven.errors import Caveat
from breakeven.report.answer_text import device_label, part_name, share_text
from breakeven.report.check_report import CheckReport
from breakeven.report.document import Fact, Line, Medium, Section
from breakeven.report.explain_report import ExplainReport
from breakeven.report.text import place_text, plural, printable, shorten
from breakeven.timing import BUSY_MACHINE
from breakeven.trace import FileChange, FileWrites, WriteProtection
from breakeven.units import format_bytes, format_count, format_duration, format_percent
from breakeven.verdict import DeviceKind, Finding, HostSummary, ProgramSummary

# Number of files named here; the JSON report names all.
_MAX_NAMES = 3
_MAX_PLACE_CHARACTERS = 40
# Smallest share of the work between steps that gets a name.
_LEAST_SHARE = 0.05


def fix_texts(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the fix of each finding, or the place where the same fix was given before."""
    said: dict[tuple[str, str], str] = {}
    for finding in findings:
        rule_and_fix, text = (finding.code, finding.fix), printable(finding.fix, 600)
        first = said.get(rule_and_fix)
        # If the fix is shorter than the reference to its place, repeat the fix.
        yield text if first is None or len(text) <= len(first) else first
        place = place_text(finding.file, finding.line, _MAX_PLACE_CHARACTERS)
        said.setdefault(rule_and_fix, f"as for {place}" if place else "as above")


def run_facts(report: CheckReport | ExplainReport) -> Iterator[Fact]:
    """Yield the script, its step and program, and the machine."""
    step = report.step
    batch = "" if step.batch_size is None else f"batch size {step.batch_size:,}"
    parameters = f"{format_count(step.num_parameters)} parameters"
    target = " · ".join(filter(None, (printable(report.target, 120), batch, parameters)))
    yield Fact("target", target, is_bare=True)
    copies = ", ".join(
        f"{format_bytes(num_bytes, 2)} {direction}"
        for num_bytes, direction in ((step.h2d_bytes, "in"), (step.d2h_bytes, "out"))
        if num_bytes > 0
    )
    parts = (
        plural(step.num_ops, "op"),
        plural(step.num_kernels, "kernel"),
        plural(step.num_syncs, "sync"),
        copies and f"copies {copies}",
        f"host {format_duration(step.host_ns, 2)}",
    )
    yield Fact("step", " · ".join(filter(None, parts)))
    if report.program is not None:
        yield Fact("program", " · ".join(_program_parts(report.program)))
    yield from side_effect_facts(report.writes)
    yield from host_facts(report.host)
    # The assumed kind of machine around each predicted GPU.
    fed: dict[str, list[str]] = {}
    for result in report.results:
        if result.fed_by:
            fed.setdefault(result.fed_by, []).append(printable(result.device, 80))
    if fed:
        kinds = "; ".join(f"{', '.join(names)}: {printable(kind)}" for kind, names in fed.items())
        yield Fact("GPUs in", f"{kinds} (--host changes that)")
    for result in report.results:
        if result.calibrated_on:
            when = f"calibrated on this GPU on {printable(result.calibrated_on, 20)}"
            yield Fact("GPU", f"{printable(result.device, 80)}: {when}")


def _program_parts(program: ProgramSummary) -> Iterator[str]:
    yield f"start-up {format_duration(program.startup_ns, 2)}"
    if program.other_ns is None:
        yield "the time between steps is not known"
        return
    yield f"steps {format_percent(program.step_fraction)}"
    times_ns: dict[str, float] = {}  # a function may be called on several lines
    for part in program.parts:
        name = part_name(part)
        times_ns[name] = times_ns.get(name, 0.0) + part.time_ns
    for name, time_ns in times_ns.items():
        yield f"{name} {share_text(program, time_ns)}"
    unnamed_ns = program.other_ns - sum(times_ns.values())
    if unnamed_ns > _LEAST_SHARE * program.other_ns:
        yield f"between them {share_text(program, unnamed_ns)}"


def host_facts(host: HostSummary, threads: str = "") -> Iterator[Fact]:
    """Yield the machine.

    Args:
        host: The machine.
        threads: Threads of the CPU's steps, if they differ from the host's.
    """
    parts = (
        printable(host.name, 80),
        threads or plural(host.num_threads, "thread"),
        f"torch {printable(host.torch_version)}",
        # Pages and the JSON report have further assumptions.
        printable(host.calibration, 120),
    )
    yield Fact("host", " · ".join(parts))
    yield Fact("host costs", printable(host.source), only=Medium.PAGE)
    yield Fact("Python", printable(host.python_version, 60), only=Medium.PAGE)


def side_effect_facts(writes: FileWrites | None) -> Iterator[Fact]:
    """Yield the files that the script wrote and their destination, if there are any."""
    if writes is None:
        return
    if writes.protection is WriteProtection.NONE:
        yield Fact("files", "written for real, as asked for")
        return
    is_redirected = writes.protection is WriteProtection.REDIRECTED
    limit = " (writes by other programs and native libraries are real)" if is_redirected else ""
    if writes.num_files:
        names: list[str] = []
        for write in writes.files[:_MAX_NAMES]:
            name = printable(PurePath(write.path).name, 40)
            names.append(f"{name} deleted" if write.change is FileChange.DELETED else name)
        if writes.num_files > len(names):
            names.append("…")
        size = f", {format_bytes(writes.num_bytes, 2)}" if writes.num_bytes else ""
        written = f"{plural(writes.num_files, 'file')}{size} ({', '.join(names)})"
        yield Fact("files", f"{written}, written to a layer that is thrown away{limit}")
    elif limit:
        yield Fact("files", f"none written{limit}")


def busy_warnings(caveats: Iterable[Caveat]) -> tuple[str, ...]:
    """Return a sentence if other processes disturbed a measurement."""
    messages = [caveat.message for caveat in caveats if caveat.code == BUSY_MACHINE]
    if not messages:
        return ()
    # Each message names its own load: show the first for all.
    times = f" (so in {len(messages):,} measurements)" if len(messages) > 1 else ""
    quiet = "Run it again when the machine is quiet."
    return (f"Careful: {printable(messages[0])}{times}. {quiet}",)


def caveats_of_results(report: CheckReport | ExplainReport) -> Mapping[Caveat, str]:
    """Return the caveats of a run with the devices that they concern; empty for all devices."""
    results = report.results
    absent = report.absent_cpus if isinstance(report, CheckReport) else ()
    num_gpus = sum(result.kind is DeviceKind.GPU for result in results)
    held = dict.fromkeys(report.caveats, "")
    for group, num_all in ((results, num_gpus), (absent, len(absent) + 1)):
        names: dict[Caveat, dict[str, None]] = {}
        for result in group:
            for caveat in result.caveats:
                names.setdefault(caveat, {})[device_label(result)] = None
        # Name absent CPUs even if a caveat concerns all of them.
        for caveat, own in names.items():
            if group is absent or caveat not in report.caveats:
                held[caveat] = ", ".join(own) if len(own) < num_all else ""
    return held


def caveat_section(
    caveats: Mapping[Caveat, str] | Sequence[Caveat], *, most: int = 10
) -> Iterator[Section]:
    """Yield the section of caveats, if there are any.

    The busy-machine caveat is left out: ``busy_warnings`` shows it next to the answer.

    Args:
        caveats: Caveats, each with the devices that it concerns; empty for all.
        most: Maximum number of caveats shown.
    """
    held = caveats if isinstance(caveats, Mapping) else dict.fromkeys(caveats, "")
    lines = [
        Line(
            (
                (printable(caveat.code, 40), "yellow"),
                f"  {printable(caveat.message, 600)}",
                (f" ({shorten(remark, 200)})" if remark else "", "dim"),
            ),
            indent=2,
        )
        for caveat, remark in held.items()
        if caveat.code != BUSY_MACHINE
    ]
    num_hidden = len(lines) - most
    if num_hidden > 0:
        lines[most:] = [Line(f"and {num_hidden:,} more, listed by --json", "dim", 2)]
    if lines:
        yield Section("Caveats", lines, is_list=True)

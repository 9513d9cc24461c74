"""Words about the whole training, which is more than its steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from breakeven.report.phrase import Fact
from breakeven.report.result_text import device_label, named_label
from breakeven.report.text import plural, printable, ratio_with_interval
from breakeven.units import format_duration, format_percent, format_time
from breakeven.verdict import (
    CheckReport,
    Choice,
    DeviceKind,
    ExplainReport,
    ProgramPart,
    ProgramSummary,
)

# A script that is hardly anything but its steps needs no sentence about the rest.
_NEARLY_ALL = 0.9
# Of what lies between steps; less needs no name.
_LEAST_SHARE = 0.05


def program_sentences(report: CheckReport | ExplainReport) -> Iterator[str]:
    """Yield what becomes of the whole training, where it is more than its steps."""
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
    listed = ", ".join(_part_text(program, part) for part in program.parts)
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
    results = (*report.results, *report.absent_cpus)
    labels = {result.device: device_label(result) for result in results}
    times = () if program is None else program.times
    for time in sorted(times, key=lambda each: each.total_ns):
        ends = f"{format_time(time.low_ns)}–{format_time(time.high_ns)}"
        yield labels[time.device], f"{format_time(time.total_ns)} ({ends})"


def training_title(program: ProgramSummary) -> str:
    """Return what ``training_times`` are of."""
    unknown = "" if program.other_ns is not None else ", without what is done between them"
    return f"The whole training: {plural(program.num_steps or 0, 'step')} and start-up{unknown}"


def _part_text(program: ProgramSummary, part: ProgramPart) -> str:
    place = f"{printable(PurePath(part.file).name, 40)}:{part.line}"
    at = f"{_name(part)} at {place}" if part.function else place
    return f"{_share(program, part.time_ns)} {at}"


def _share(program: ProgramSummary, time_ns: float) -> str:
    """Return the share of the training's time, start-up aside."""
    return format_percent(time_ns / (program.other_ns or 1.0) * (1 - program.step_fraction))


def _name(part: ProgramPart) -> str:
    return printable(part.function, 60) or f"{printable(PurePath(part.file).name, 40)}:{part.line}"

"""Sentences of a check's report, for renderers other than the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from breakeven.errors import Caveat
from breakeven.report.chart_build import axis_word, crossover_interval
from breakeven.report.result_table import device_label, reference_cpu
from breakeven.report.text import printable, ratio_with_interval
from breakeven.timing import BUSY_MACHINE
from breakeven.units import format_bytes, format_count, format_duration
from breakeven.verdict import (
    CheckReport,
    Choice,
    Crossover,
    DeviceKind,
    DeviceResult,
    HostSummary,
    NoCrossover,
    StepSummary,
    Verdict,
)


def verdict_sentence(verdict: Verdict, results: Sequence[DeviceResult]) -> str:
    """Return where to train, and by how much that is faster.

    Args:
        verdict: What was decided.
        results: Of all devices that were compared.
    """
    ratio = ratio_with_interval(verdict.speedup, verdict.low, verdict.high)
    device, over = _label(results, verdict.device), _label(results, verdict.over)
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
            return _found_sentence(crossover, _label(report.results, crossover.device), rival)
        case NoCrossover() as none:
            # What was not searched may well be there.
            what = "Crossover not known" if none.searched is None else "No crossover"
            return f"{what}: {printable(none.none_because, 600)}"


def _found_sentence(crossover: Crossover, winner: str, rival: str) -> str:
    first, last = crossover.searched
    return (
        f"Crossover: from {axis_word(crossover.axis)} {crossover.value:,} "
        f"({crossover_interval(crossover)}) on, {winner} is faster than {rival} "
        f"(searched {first:,} to {last:,})."
    )


def step_facts(target: str, step: StepSummary) -> Iterator[tuple[str, str]]:
    """Yield what was traced, by name."""
    yield "target", printable(target)
    if step.batch_size is not None:
        yield "batch size", f"{step.batch_size:,}"
    yield "parameters", format_count(step.num_parameters)
    yield "ops", f"{step.num_ops:,}"
    yield "kernels on a GPU", f"{step.num_kernels:,}"
    yield "syncs", f"{step.num_syncs:,}"
    if step.h2d_bytes:
        yield "copied to the GPU", format_bytes(step.h2d_bytes, 2)
    if step.d2h_bytes:
        yield "copied back", format_bytes(step.d2h_bytes, 2)
    yield "host time", format_duration(step.host_ns, 2)


def host_facts(host: HostSummary) -> Iterator[tuple[str, str]]:
    """Yield what the machine is, by name."""
    yield "host", printable(host.name, 120)
    yield "threads", f"{host.num_threads:,}"
    yield "host costs", printable(host.source)
    yield "torch", printable(host.torch_version, 60)
    yield "Python", printable(host.python_version, 60)


def busy_warnings(caveats: Iterable[Caveat]) -> tuple[str, ...]:
    """Return a sentence where other processes disturbed a measurement; else nothing."""
    messages = [caveat.message for caveat in caveats if caveat.code == BUSY_MACHINE]
    if not messages:
        return ()
    # Each names its own load: the first stands for all.
    times = f" (so in {len(messages):,} measurements)" if len(messages) > 1 else ""
    quiet = "Run it again when the machine is quiet."
    return (f"Careful: {printable(messages[0])}{times}. {quiet}",)


def grouped_caveats(
    of_all: Iterable[Caveat], of_devices: Sequence[tuple[str, Sequence[Caveat]]]
) -> dict[Caveat, tuple[str, ...]]:
    """Return each caveat once, with the names it holds for; none where it holds for all.

    That of a busy machine may turn the answer itself: ``busy_warnings`` puts it beside that.
    """
    grouped: dict[Caveat, dict[str, None]] = {
        caveat: {} for caveat in of_all if caveat.code != BUSY_MACHINE
    }
    everywhere = set(grouped)
    for name, caveats in of_devices:
        for caveat in caveats:
            if caveat.code != BUSY_MACHINE:
                grouped.setdefault(caveat, {})[name] = None
    return {
        caveat: () if caveat in everywhere else tuple(names) for caveat, names in grouped.items()
    }


def place_text(file: str | None, line: int | None) -> str:
    """Return ``file:line``; empty where a finding has no place."""
    if file is None:
        return ""
    return printable(file) + ("" if line is None else f":{line}")


def result_name(result: DeviceResult) -> str:
    """Return a device's name, with the processor's where it is this CPU."""
    label = device_label(result)
    return label if label == printable(result.device) else f"{label} ({printable(result.device)})"


def _label(results: Sequence[DeviceResult], device: str) -> str:
    for result in results:
        if result.device == device:
            return device_label(result)
    return printable(device)

"""Words about the step as ``torch.compile`` would make it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from breakeven.report.phrase import Place
from breakeven.report.text import plural, printable, ratio_alone
from breakeven.timing import Source
from breakeven.units import format_count, format_duration
from breakeven.verdict import CheckReport, DeviceKind, DeviceResult

_MOST_PLACES = 3


def compiled_results(report: CheckReport) -> tuple[DeviceResult, ...]:
    """Return the compiled step on each GPU; none where it was not predicted."""
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


def compiled_sentences(report: CheckReport) -> Iterator[str]:
    """Yield what ``torch.compile`` makes of the step on the GPU that the verdict is about."""
    steps = report.compiled
    if steps is None or not steps.results:
        return
    named = (report.verdict.device, report.verdict.over)
    fastest = min(steps.results, key=lambda one: one.step_ns)
    one = next((one for one in steps.results if one.device in named), fastest)
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
        lines = ", ".join(Place(file=at.file, line=at.line).text(80) for at in known[:_MOST_PLACES])
        yield (
            f"The compiled graph breaks where the model waits for a value, "
            f"{plural(len(steps.breaks), 'time')} per call{f': {lines}' if lines else ''}."
        )

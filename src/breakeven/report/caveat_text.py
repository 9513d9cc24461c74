"""Caveats: each is said once, with what it holds for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from breakeven.errors import Caveat
from breakeven.report.document import Note, Notes, Section
from breakeven.report.result_text import device_label
from breakeven.report.text import printable, shorten
from breakeven.timing import BUSY_MACHINE
from breakeven.verdict import CheckReport, DeviceKind, DeviceResult, ExplainReport


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


def caveat_section(
    caveats: Mapping[Caveat, str], *, most: int = 10, level: int = 2
) -> tuple[Section, ...]:
    """Return the section of caveats; none where there are none.

    Args:
        caveats: With what each holds for; empty for everything.
        most: Caveats that a terminal shows.
        level: Of the heading, in a page.
    """
    if not caveats:
        return ()
    notes = Notes(
        notes=tuple(
            Note(printable(caveat.code, 40), printable(caveat.message, 600), shorten(remark, 200))
            for caveat, remark in caveats.items()
        ),
        caption="Reasons to trust a figure less",
        headings=("code", "what it is", "holds for"),
        most=most,
    )
    return (Section(title="Caveats", blocks=(notes,), level=level),)

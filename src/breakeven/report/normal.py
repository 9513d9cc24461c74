"""The document of a judged speed: the answer, its causes, and other GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from breakeven.report.answer_text import device_label, sort_results
from breakeven.report.document import Document, Fact, Line, Section, Table, columns_of
from breakeven.report.normal_report import NormalReport, Pace, SlowCause, SpeedJudgement
from breakeven.report.run_text import busy_warnings, caveat_section, host_facts
from breakeven.report.text import duration_with_interval, printable, ratio_with_interval, shorten
from breakeven.simulate import Bound
from breakeven.units import format_duration, format_percent

_STYLES = {Pace.NORMAL: "bold green", Pace.SLOW: "bold red", Pace.FAST: "bold yellow"}
# The name of each cause, and its meaning.
_CAUSES = {
    SlowCause.LOADER: ("the data loader", "each step waits for its batch"),
    SlowCause.HOST: ("a slow host", "a virtual machine, a container or Windows"),
    SlowCause.SYNC: ("waits for the GPU", ".item(), print or debugging switches"),
    SlowCause.FLOAT64: ("float64", "model or data are doubles"),
    SlowCause.NO_TENSOR_CORES: ("float32 without tensor cores", "no autocast, or TF32 is off"),
    SlowCause.DEVICE: ("a slowed GPU", "a clock or power limit, heat, or another process"),
}
_HOST_BOUNDS = (Bound.LAUNCH, Bound.SYNC, Bound.HOST_DATA, Bound.HOST_OPTIMIZER)
_TOO_FAST = (
    "No such GPU should be that fast. Look for a missing torch.cuda.synchronize(), a smaller "
    "batch or model, and another unit (samples/s, not it/s)."
)


def normal_document(report: NormalReport) -> Document:
    """Return the document of a judged speed."""
    batch = "" if report.batch_size is None else f" · batch size {report.batch_size:,}"
    return Document(
        title=f"Is the speed of {printable(report.target, 120)} normal?",
        answers=tuple(line for one in report.speeds for line in _answer(one)),
        warnings=busy_warnings(report.caveats),
        facts=(
            Fact("target", f"{printable(report.target, 120)}{batch}", is_bare=True),
            *host_facts(report.host),
        ),
        blocks=(
            *(_suspect_section(one) for one in report.speeds if one.suspects),
            *_other_section(report),
            *caveat_section(report.caveats),
        ),
    )


def _answer(one: SpeedJudgement) -> Iterator[Line]:
    """Yield whether a speed is normal, and what one number cannot tell."""
    expected, device = one.expected, printable(one.device)
    should = duration_with_interval(expected.value_ns, expected.low_ns, expected.high_ns)
    takes = format_duration(one.measured.value_ns)
    ratio = ratio_with_interval(one.ratio, one.ratio_low, one.ratio_high)
    answer = {Pace.NORMAL: "That is normal", Pace.SLOW: "Too slow", Pace.FAST: "Too fast"}
    text = f"{answer[one.pace]}: {device} should take {should} a step; you take {takes}"
    if one.suspects:
        named = ", ".join(
            f"{_CAUSES[each.cause][0]} ({format_duration(each.explained_ns, 2)})"
            for each in one.suspects
        )
        text += f", {format_duration(one.measured.value_ns - expected.value_ns, 2)} more: {named}"
    yield Line(f"{text}.", _STYLES[one.pace])
    where = f" in a {printable(one.fed_by)}" if one.fed_by else ""
    binds = "the host" if one.bound in _HOST_BOUNDS else "the GPU"
    yield Line(f"That is {ratio} the usual time{where}. Normally {binds} limits this step.")
    if one.pace is Pace.FAST:
        yield Line(_TOO_FAST)
    if one.pace is Pace.SLOW and not one.is_explained:
        yield Line(
            "No cause that breakeven knows explains all of it alone. Does your number count only "
            "training steps, at this batch size, after the first ones?"
        )
    elif len(one.suspects) > 1:
        yield Line("One number cannot tell these causes apart. Each amount is for it alone.")


def _suspect_section(one: SpeedJudgement) -> Section:
    lines: list[Line] = []
    for each in one.suspects:
        (name, meaning), share = _CAUSES[each.cause], format_percent(each.share)
        amount = format_duration(each.explained_ns, 2)
        lines.append(Line(((name, "bold"), f", {amount}, {share} likely"), indent=2))
        lines.append(Line(f"{meaning}; look at: {each.look}", indent=4))
    named = f"{printable(one.device)}, {printable(one.said) or 'measured here'}"
    return Section(f"What to look at first ({named})", lines, is_list=True)


def _other_section(report: NormalReport) -> Iterator[Section]:
    """Yield the other GPUs, and whether the speeds narrowed their predictions."""
    if not report.others:
        return
    used = [printable(one.said) for one in report.speeds if one.is_used]
    told = f"Adjusted to the machine that your speed shows: {', '.join(used)}."
    if not used:
        told = "Not adjusted: only a normal speed of a step that the host limits shows the host."
    rows = (
        (
            shorten(device_label(one), 32),
            duration_with_interval(one.step_ns, one.low_ns, one.high_ns),
            "too big" if one.fits is False else "" if one.bound is None else one.bound.word,
            shorten(one.fed_by.partition(",")[0], 40),
        )
        for one in sort_results(report.others)
    )
    columns = columns_of(("GPU", "step", "bound", "in a"), rows, numbers=" n")
    yield Section("Other GPUs, predicted", (Table(columns), Line(told, "dim")))

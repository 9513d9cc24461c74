"""Speed against the CPU along an axis, and the GPUs worth drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from breakeven.device import default_devices
from breakeven.money import gpu_usd_per_hour
from breakeven.report.answer_text import device_label, reference_cpu, sort_results
from breakeven.report.chart import (
    Chart,
    ChartPoint,
    ChartSeries,
    CrossoverMark,
    category_axis,
    crossover_interval,
    size_axis,
    speed_axis,
)
from breakeven.report.text import duration_with_interval, printable, ratio_with_interval
from breakeven.verdict import Crossover, DeviceKind, DeviceResult, Timed, log_ratio

# More curves hide each other.
_MAX_GPUS = 3
# A GPU is as fast as the fastest if its step takes at most this many times as long.
_AS_FAST = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLine:
    """Step times of one device.

    Args:
        name: Name in the legend.
        kind: CPU or GPU.
        times: The time in each row of the chart that has one.
        device: Its device, if the name says more.
        batches: Batches of a step in a row, if there are several: GPUs that share it.
    """

    name: str
    kind: DeviceKind
    times: Mapping[int, Timed]
    device: str = ""
    batches: Mapping[int, int] = field(default_factory=dict[int, int])


def is_timed(timed: Timed) -> bool:
    """Return whether a time is above 0 and within its interval, so that it has a speed."""
    return 0 < timed.low_ns <= timed.step_ns <= timed.high_ns


def chosen_gpus(
    times_ns: Mapping[str, float], best: str, remark: str = "fastest"
) -> dict[str, str]:
    """Return the GPUs to draw, at most three, each with the reason.

    These are the fastest, the cheapest that is as fast, and those that the user named. A GPU
    without a known price is not the cheapest.

    Args:
        times_ns: Step time of each GPU, in the order of the report; infinite if it does not fit.
        best: The GPU of the answer; empty for none.
        remark: What it is.
    """
    chosen = {best: remark} if math.isfinite(times_ns.get(best, math.inf)) else {}
    prices = {name: gpu_usd_per_hour(name) for name in times_ns}
    as_fast = [
        (price, name)
        for name, price in prices.items()
        if price is not None and times_ns[name] <= _AS_FAST * times_ns.get(best, math.inf)
    ]
    if as_fast and chosen:
        price, name = min(as_fast)
        what = remark if name == best else "cheapest as fast"
        chosen[name] = f"{what}, ${price:.2f}/h"
    defaults = {device.name for device in default_devices()}
    are_all_there = defaults <= times_ns.keys()
    for name in times_ns:
        is_named = not (are_all_there and name in defaults)
        if is_named and len(chosen) < _MAX_GPUS:
            chosen.setdefault(name, "")
    return chosen


def speed_chart(
    *,
    title: str,
    word: str,
    places: Sequence[float] | None,
    x_labels: Sequence[str],
    lines: Iterable[TimedLine],
    rival: str,
    rivals: Mapping[int, Timed],
    crossovers: Iterable[tuple[str, Crossover]] = (),
    note: str = "",
    chosen: Mapping[str, str] | None = None,
    is_by_device: bool = False,
) -> Chart:
    """Return the chart of speeds against a CPU; it is empty if the CPU has no time.

    Args:
        title: Title of the chart.
        word: The quantity on the horizontal axis.
        places: Value of each row on it; None for names side by side.
        x_labels: Label of each row.
        lines: The devices; CPUs are drawn first.
        rival: Name of the CPU that the others are compared with.
        rivals: Its step time in each row.
        crossovers: Crossovers, each with a remark that distinguishes it from others of the chart.
        note: Held settings.
        chosen: GPUs to draw, each with the reason; others are drawn on request. None for all.
        is_by_device: Whether each line is a single point in a row of its own.
    """

    def is_extra(line: TimedLine) -> bool:
        is_gpu = line.kind is DeviceKind.GPU
        return is_gpu and chosen is not None and (line.device or line.name) not in chosen

    ordered = sorted(lines, key=lambda line: (is_extra(line), line.kind is not DeviceKind.CPU))
    series: list[ChartSeries] = []
    for style, line in enumerate(ordered):
        points = [
            _point(
                float(row) if places is None else places[row],
                row,
                timed,
                rivals.get(row),
                line.batches.get(row, 1),
            )
            for row, timed in sorted(line.times.items())
        ]
        series.append(
            ChartSeries(
                name=printable(line.name, 60),
                style=style,
                points=tuple(points),
                remark=(chosen or {}).get(line.name, ""),
                is_extra=is_extra(line),
            )
        )
    # Devices on request must not widen the axis by their intervals.
    ends = [
        end
        for one in series
        for point in one.curve
        for end in ((point.value,) if one.is_extra else (point.low, point.high))
    ]
    styles = {line.name: style for style, line in enumerate(ordered) if not is_extra(line)}
    marks = [
        CrossoverMark(
            style=styles[found.device],
            x=float(found.value),
            low=float(found.low),
            high=None if found.high is None else float(found.high),
            label=f"{printable(found.device, 60)}{f' ({remark})' if remark else ''} faster from "
            f"{found.value:,} ({crossover_interval(found)})",
            short_label=f"{printable(found.device, 60)} from {found.value:,}",
        )
        for remark, found in crossovers
        if found.device in styles
    ]
    return Chart(
        title=title,
        note=note,
        # Leave out sizes without a speed.
        x=category_axis(word, x_labels)
        if places is None
        else size_axis(word, {places[row] for row in rivals} or places),
        y=speed_axis(rival, ends),
        x_labels=tuple(x_labels),
        series=tuple(series),
        rival=rival,
        crossovers=tuple(marks),
        is_by_device=is_by_device,
    )


def device_chart(
    results: Sequence[DeviceResult], variants: Iterable[DeviceResult] = ()
) -> Chart | None:
    """Return the chart of one step on each device; None without a CPU to compare with.

    Args:
        results: The devices of the verdict, which compares with their fastest CPU.
        variants: Other forms of the step, and other CPUs.
    """
    cpu = reference_cpu(results)
    if cpu is None:
        return None
    ordered = sort_results((*results, *variants))
    names = [device_label(result) for result in ordered]
    rival = device_label(cpu)
    return speed_chart(
        title=f"Speed against {rival}",
        word="device",
        places=None,
        x_labels=names,
        lines=[
            TimedLine(name=name, kind=one.kind, times={row: one})
            for row, (name, one) in enumerate(zip(names, ordered, strict=True))
        ],
        rival=rival,
        rivals=dict.fromkeys(range(len(names)), cpu),
        is_by_device=True,
    )


def _point(x: float, row: int, timed: Timed, rival: Timed | None, num_batches: int) -> ChartPoint:
    """Return the speed of a step of ``num_batches`` batches against one of a single batch."""
    value = low = high = 1.0
    text = duration_with_interval(timed.step_ns, timed.low_ns, timed.high_ns)
    has_speed = rival is not None and is_timed(timed)
    if timed.fits is False:
        text += ", too big"
    elif rival is not None and rival is not timed and has_speed:
        ratio = log_ratio(rival, timed)
        value, low, high = (
            num_batches * math.exp(end) for end in (ratio.value, ratio.low, ratio.high)
        )
        text += f", {ratio_with_interval(value, low, high)}"
    return ChartPoint(
        x=x,
        row=row,
        value=value,
        low=low,
        high=high,
        step_ns=timed.step_ns,
        text=text,
        source=timed.source,
        is_too_big=timed.fits is False,
        has_value=has_speed,
    )

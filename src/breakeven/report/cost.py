"""The document of a cost: the choice in one sentence, the machines, and what is assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from breakeven.errors import BreakevenError, Caveat
from breakeven.money import J_PER_KWH, Interval, PriceSource
from breakeven.report.chart import Chart, ChartPoint, ChartSeries, value_axis
from breakeven.report.conditions import Figure
from breakeven.report.cost_report import CostReport, CostRow
from breakeven.report.document import TOO_BIG, Cell, Column, Document, Fact, Line, Section, Table
from breakeven.report.run_text import caveat_section, host_facts
from breakeven.report.text import listed, plural, printable, ratio_alone, shorten
from breakeven.units import NS_PER_S, format_digits, format_time
from breakeven.verdict import DeviceKind

_MAX_ROWS = 14
_MAX_DEVICES = 3
# A faster machine is named if it is at least this much faster than the cheapest one.
CLEARLY_FASTER = 1.2
_UNITS = (
    ("days", 24 * 3600 * NS_PER_S),
    ("hours", 3600 * NS_PER_S),
    ("minutes", 60 * NS_PER_S),
    ("seconds", NS_PER_S),
)


def cost_answer(rows: Sequence[CostRow], prices: Sequence[PriceSource]) -> str:
    """Return the cheapest faster machine, this one, and a faster one, in one sentence.

    Args:
        rows: All machines, those that meet the limits first, then by money.
        prices: The lists of their prices.
    """
    here = own_row(rows)
    late = "" if here.meets_limits else ", which may miss the limits"
    own = (
        f"this {here.kind.upper()}: {format_time(here.time_ns.value)}, "
        f"{usd_text(here.usd.value) if here.usd.value else 'free'}{late}"
    )
    rented = faster_choices(rows)
    if not any(row.meets_limits for row in rows):
        fitting = [row for row in rows if row.fits is not False and not row.is_here]
        if not fitting:
            return f"No machine surely meets the limits; {own}."
        fastest = min(fitting, key=lambda row: row.time_ns.value)
        return (
            f"No machine surely meets the limits. The fastest, {_device(fastest)} on "
            f"{machine_text(fastest, prices)}, takes {time_text(fastest)}; {own}."
        )
    if not rented:
        is_limited = any(not row.meets_limits and row.fits is not False for row in rows)
        within = " within the limits" if is_limited else ""
        return f"{own[0].upper()}{own[1:]}; no listed machine{within} is clearly faster."
    cheapest = rented[0]
    batch = f", fits up to batch {cheapest.largest_batch:,}" if cheapest.largest_batch else ""
    answer = (
        f"{_device(cheapest)} on {machine_text(cheapest, prices)}: {time_text(cheapest)}, "
        f"{usd_text(cheapest.usd.value)}{batch}; {own}"
    )
    longest_ns = cheapest.time_ns.value / CLEARLY_FASTER
    faster = [row for row in rented if row.time_ns.value <= longest_ns]
    if not faster:
        return f"{answer}."
    # Of the clearly faster ones, the one that buys the most speed for the money.
    row = min(faster, key=lambda row: row.usd.value * row.time_ns.value)
    speedup = cheapest.time_ns.value / row.time_ns.value
    return (
        f"{answer}; {_device(row)} on {machine_text(row, prices)} would be {ratio_alone(speedup)} "
        f"faster for {ratio_alone(row.usd.value / cheapest.usd.value)} the money."
    )


def cheapest_figure(report: CostReport) -> Figure:
    """Return the money for the cheapest rented machine within the limits, in dollars.

    Raises:
        BreakevenError: There is none.
    """
    rented = [row for row in report.rows if not row.is_here and row.meets_limits]
    if not rented:
        raise BreakevenError(
            "--max-usd cannot be judged: no rented machine fits the step and the limits",
            hint="name larger machines with --machines, or allow a later --deadline",
        )
    row = min(rented, key=lambda row: row.usd.value)
    text = f"{usd_text(row.usd.value)} ({usd_text(row.usd.low)}–{usd_text(row.usd.high)})"
    return Figure(f"{text} on {row.provider} {row.machine}", row.usd.low, row.usd.high)


def own_row(rows: Sequence[CostRow]) -> CostRow:
    """Return the faster row of this machine: of its CPU, or of its GPU."""
    return min((row for row in rows if row.is_here), key=lambda row: row.time_ns.value)


def faster_choices(rows: Sequence[CostRow]) -> list[CostRow]:
    """Return the rented machines within the limits that are clearly faster than this one.

    If this one is not within the limits, all rented ones that are.
    """
    here = own_row(rows)
    longest_ns = here.time_ns.value / CLEARLY_FASTER if here.meets_limits else math.inf
    usable = (row for row in rows if row.meets_limits and not row.is_here)
    return [row for row in usable if row.time_ns.value < longest_ns]


def machine_text(row: CostRow, prices: Sequence[PriceSource]) -> str:
    """Return the provider and its machine."""
    name = next((one.name for one in prices if one.id == row.provider), row.provider)
    return f"{printable(name, 20)} {printable(row.machine, 40)}"


def time_text(row: CostRow) -> str:
    """Return the time of the training with its interval."""
    return _time_with_ends(row.time_ns)


def _time_with_ends(ns: Interval) -> str:
    return f"{format_time(ns.value)} ({format_time(ns.low)}–{format_time(ns.high)})"


def usd_text(usd: float) -> str:
    """Return ``$0.80``, ``$12`` or ``$0.0004``."""
    return f"${usd:.2f}" if 0.1 <= usd < 100 else f"${format_digits(usd, 2)}"


def cost_document(report: CostReport) -> Document:
    """Return the document of a cost."""
    rows, charts, limits = report.rows, _charts(report), _limits(report)
    num_in_time = sum(row.meets_limits for row in rows)
    answers = [Line(report.answer, "bold green" if num_in_time else "bold yellow")]
    if limits:
        held = f"{num_in_time:,} of {plural(len(rows), 'machine')}"
        answers.append(Line(f"{limits}, with 95 % confidence: {held}."))
    size = f", batch size {report.batch_size:,}" if report.batch_size else ""
    sources = (f"{printable(one.name, 40)} {one.date or 'undated copy'}" for one in report.prices)
    setup, energy = report.setup_s, _measured_energy(rows)
    setup_text = f"{_time_with_ends(setup.times(NS_PER_S))} assumed"
    if setup.low == setup.high:  # given by the user
        setup_text = format_time(setup.value * NS_PER_S) if setup.value else "0 s"
    return Document(
        title=f"What does it cost to train {printable(report.target, 120)}?",
        answers=answers,
        facts=(
            Fact("training", f"{plural(report.num_steps, 'step')}{size}"),
            *host_facts(report.host),
            Fact("prices", "; ".join(sources)),
            Fact(
                "setup",
                f"{setup_text} to start a rented machine, load the software and copy the data",
            ),
            *([Fact("energy here", energy)] if energy else []),
        ),
        blocks=(
            Section("Machines", (_table(rows),), heading=""),
            *([Section("Time against money", charts)] if charts else []),
            *caveat_section(_caveats(report)),
        ),
        charts=charts,
    )


def _measured_energy(rows: Sequence[CostRow]) -> str:
    """Return the measured power of this machine, by device; empty if its energy is predicted."""
    texts: list[str] = []
    for row in rows:
        if row.energy_counters:
            watts = row.energy_kwh.value * J_PER_KWH / (row.time_ns.value / NS_PER_S)
            counters = ", ".join(printable(one, 40) for one in row.energy_counters)
            is_part = (
                row.kind is DeviceKind.GPU and len({one[:4] for one in row.energy_counters}) < 2
            )
            rest = ", the rest predicted" if is_part else ""
            texts.append(f"{_device(row)} {format_digits(watts, 2)} W ({counters} measured{rest})")
    return f"{'; '.join(texts)}, with idle power and other processes" if texts else ""


def _limits(report: CostReport) -> str:
    parts: list[str] = []
    if report.deadline_s is not None:
        parts.append(f"done within {format_time(report.deadline_s * NS_PER_S)}")
    if report.budget_usd is not None:
        parts.append(f"at most {usd_text(report.budget_usd)}")
    text = " and ".join(parts)
    return text[:1].upper() + text[1:]


def _caveats(report: CostReport) -> dict[Caveat, str]:
    """Return the caveats with some of the devices that each concerns; empty for all."""
    devices: dict[Caveat, dict[str, None]] = {}
    for row in report.rows:
        for caveat in row.caveats:
            devices.setdefault(caveat, {})[printable(row.device, 40)] = None
    held = dict.fromkeys(report.caveats, "")
    return held | {one: listed(list(names), _MAX_DEVICES) for one, names in devices.items()}


def _table(rows: Sequence[CostRow]) -> Table:
    unit, unit_ns = _unit(rows)
    places = [
        "this machine" if r.is_here else f"{r.provider} {r.machine.removeprefix('Standard_')}"
        for r in rows
    ]
    styles = ["bold" if r.is_on_front else "" for r in rows]
    times = [TOO_BIG if r.fits is False else _with_ends(r.time_ns.times(1 / unit_ns)) for r in rows]
    money = [_with_ends(r.usd) if r.usd.value else "free" for r in rows]
    emissions = [format_digits(r.co2_kg.value, 2) if r.co2_kg else "" for r in rows]
    parts = [f", in {r.num_parts} parts" if r.num_parts > 1 else "" for r in rows]
    bounds = [(r.bound.word if r.bound else "") + text for r, text in zip(rows, parts, strict=True)]
    batches = [f"{r.largest_batch:,}" if r.largest_batch else "" for r in rows]
    columns = [
        Column(
            "machine",
            [Cell(shorten(p, 22), s, page=p) for p, s in zip(places, styles, strict=True)],
        ),
        Column(
            "device",
            [
                Cell(shorten(_device(r).replace("Xeon Platinum ", "Xeon "), 22), page=_device(r))
                for r in rows
            ],
        ),
        Column(unit, times, is_number=True),
        Column("$", money, is_number=True),
        Column("kWh", [format_digits(r.energy_kwh.value, 2) for r in rows], is_number=True),
        Column("kg CO₂", emissions, is_number=True),
    ]
    if any(bounds):
        columns.append(Column("bound", bounds, page_header="limited by"))
    if any(batches):
        columns.append(Column("batch", batches, page_header="largest batch", is_number=True))
    return Table(
        columns,
        caption="Machines within the limits first, then by money",
        note="No other machine is both faster and cheaper than those in bold type.",
        legend="(low–high) 90 % interval   bold: no other machine is both faster and cheaper",
        marks=["" if row.meets_limits else "out" for row in rows],
        most=_MAX_ROWS,
    )


def _unit(rows: Sequence[CostRow]) -> tuple[str, float]:
    """Return the largest unit of time in which no row is below 1."""
    shortest_ns = min(row.time_ns.value for row in rows)
    return next((one for one in _UNITS if one[1] <= shortest_ns), _UNITS[-1])


def _device(row: CostRow) -> str:
    name = "this CPU" if row.is_here and row.kind is DeviceKind.CPU else printable(row.device)
    return f"{row.num_gpus} × {name}" if row.num_gpus > 1 else name


def _with_ends(figure: Interval) -> str:
    """Return ``1.2 (0.9–1.6)``."""
    value, low, high = (format_digits(x, 2) for x in (figure.value, figure.low, figure.high))
    return f"{value} ({low}–{high})"


def _charts(report: CostReport) -> tuple[Chart, ...]:
    """Return the chart of time against money: of each kind, the machines that no other beats."""
    paid = [row for row in report.rows if row.usd.value > 0 and row.fits is not False]
    shown = [
        row for kind in DeviceKind for row in pareto_front([r for r in paid if r.kind is kind])
    ]
    if len(shown) < 2:
        return ()
    shown.sort(key=lambda row: row.usd.value)
    unit, unit_ns = _unit(shown)
    ends: list[float] = []
    groups: dict[DeviceKind, list[ChartPoint]] = {}
    for number, row in enumerate(shown):
        time = row.time_ns.times(1 / unit_ns)
        ends += [time.low, time.high]
        point = ChartPoint(
            x=row.usd.value,
            row=number,
            value=time.value,
            low=time.low,
            high=time.high,
            step_ns=row.time_ns.value,
            text=time_text(row),
            source=row.source,
        )
        groups.setdefault(row.kind, []).append(point)
    names = {DeviceKind.CPU: "machines with a CPU alone", DeviceKind.GPU: "machines with a GPU"}
    chart = Chart(
        title="The fastest machines for the money",
        note="",
        x=value_axis("money", [row.usd.value for row in shown], usd_text),
        y=value_axis("time of the training", ends, lambda time: f"{format_digits(time)} {unit}"),
        x_labels=tuple(
            f"{usd_text(row.usd.value)}: {_device(row)}, {machine_text(row, report.prices)}"
            for row in shown
        ),
        series=tuple(
            ChartSeries(name=names[kind], style=number, points=tuple(points))
            for number, (kind, points) in enumerate(groups.items())
        ),
    )
    return (chart,)


def pareto_front(rows: Sequence[CostRow]) -> list[CostRow]:
    """Return the rows that no other one beats in both time and money, cheapest first."""
    front: list[CostRow] = []
    for row in sorted(rows, key=lambda row: (row.usd.value, row.time_ns.value)):
        if not front or row.time_ns.value < front[-1].time_ns.value:
            front.append(row)
    return front

"""The cost card: a training in a README or a pull request, as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from breakeven.report.cost import (
    CLEARLY_FASTER,
    faster_choices,
    machine_text,
    own_row,
    time_text,
    usd_text,
)
from breakeven.report.cost_report import CostReport, CostRow
from breakeven.report.document import plain
from breakeven.report.kinds import kind_of
from breakeven.report.text import plural, printable
from breakeven.units import format_time
from breakeven.verdict import DeviceKind

_HEADER = "| device | machine | step | training | money |\n|" + " --- |" * 5 + "\n"


def card_text(run: msgspec.Struct, cost: CostReport) -> str:
    """Return the card of a training as Markdown.

    Args:
        run: The stored run.
        cost: What the training costs.
    """
    build = kind_of(run).build
    assert build is not None, "a run with a recorded step has a document"
    batch = f" of {cost.batch_size:,} samples" if cost.batch_size else ""
    title = f"{printable(cost.target, 60)}, {plural(cost.num_steps, 'step')}{batch}"
    verdict = plain(build(run).answers[0].phrase)
    dates = (f"{printable(one.name, 40)} {one.date or 'undated'}" for one in cost.prices)
    is_script = cost.target.endswith(".py") or ".py:" in cost.target
    target = f"{'' if is_script else '-m '}{shlex.quote(printable(cost.target, None))}"
    rows = (_cells(row, cost) for row in card_rows(cost.rows))
    table = "".join(f"| {' | '.join(map(_plain, row))} |\n" for row in rows)
    return (
        f"**{_plain(title)}**\n\n{_plain(verdict)}\n\n{_HEADER}{table}\n"
        f"90 % intervals. Prices: {_plain(', '.join(dates))}.\n\n"
        f"```sh\nbreakeven cost {target} --steps {cost.num_steps}\n```\n"
    )


def card_rows(rows: Sequence[CostRow]) -> list[CostRow]:
    """Return this machine, the cheapest one that is clearly faster, and a faster GPU.

    If no machine is clearly faster, the second is the cheapest GPU. If no GPU is clearly faster
    than that one, the third is the next cheapest GPU.
    """
    gpus = [r for r in rows if r.kind is DeviceKind.GPU and not r.is_here and r.fits is not False]
    gpus.sort(key=lambda row: row.usd.value)
    second = (faster_choices(rows) or gpus)[:1]
    others = [row for row in gpus if all(row.device != one.device for one in second)]
    longest_ns = second[0].time_ns.value / CLEARLY_FASTER if second else 0.0
    others.sort(key=lambda row: row.time_ns.value > longest_ns)
    return [own_row(rows), *second, *others[:1]]


def _cells(row: CostRow, report: CostReport) -> tuple[str, ...]:
    return (
        printable(row.device, 40),
        "this machine" if row.is_here else machine_text(row, report.prices),
        format_time(row.step_ns),
        time_text(row),
        usd_text(row.usd.value) if row.usd.value else "free",
    )


def _plain(text: str) -> str:
    """Return text without effect on Markdown."""
    return "".join(f"\\{one}" if one in "\\`*_[]<>|#" else one for one in text)

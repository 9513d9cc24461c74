"""The cost card: a training in a README or a pull request, as Markdown or as an image."""

from __future__ import annotations

import shlex
import textwrap
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
from breakeven.report.page import render_template
from breakeven.report.text import plural, printable, shorten
from breakeven.units import format_time
from breakeven.verdict import DeviceKind

_HEADER = "| device | machine | step | training | money |\n|" + " --- |" * 5 + "\n"
# Characters of a line of the image, by the width of its font.
_TITLE_CHARACTERS, _LINE_CHARACTERS, _SMALL_CHARACTERS = 54, 60, 70


def card_document(run: msgspec.Struct, cost: CostReport, suffix: str) -> bytes:
    """Return the card of a training, as text in UTF-8.

    Args:
        run: The stored run.
        cost: What the training costs.
        suffix: ``.md`` for Markdown, ``.svg`` for an image.
    """
    build = kind_of(run).build
    assert build is not None, "a run with a recorded step has a document"
    name = printable(cost.target, 60)
    batch = f" of {cost.batch_size:,} samples" if cost.batch_size else ""
    length = f"{plural(cost.num_steps, 'step')}{batch}"
    verdict = plain(build(run).answers[0].phrase)
    dates = (f"{printable(one.name, 40)} {one.date or 'undated'}" for one in cost.prices)
    note = f"90 % intervals. Prices: {', '.join(dates)}."
    is_script = cost.target.endswith(".py") or ".py:" in cost.target
    target = f"{'' if is_script else '-m '}{shlex.quote(printable(cost.target, None))}"
    command = f"breakeven cost {target} --steps {cost.num_steps}"
    rows = [_cells(row, cost) for row in card_rows(cost.rows)]
    if suffix == ".svg":
        return render_template(
            "card.svg.j2",
            title=f"{shorten(name, _TITLE_CHARACTERS - len(length))}, {length}",
            verdict=textwrap.wrap(verdict, _LINE_CHARACTERS),
            rows=rows,
            note=textwrap.wrap(note, _SMALL_CHARACTERS),
            command=textwrap.wrap(command, _LINE_CHARACTERS, break_on_hyphens=False),
        )
    table = "".join(f"| {' | '.join(map(_plain, row))} |\n" for row in rows)
    return (
        f"**{_plain(f'{name}, {length}')}**\n\n{_plain(verdict)}\n\n{_HEADER}{table}\n"
        f"{_plain(note)}\n\n```sh\n{command}\n```\n"
    ).encode()


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

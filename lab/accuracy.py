"""Write the accuracy page: what each protocol of validation finds on a table of measured steps.

    python -m lab.accuracy TABLE.csv ... [--only KEY=VALUE]

This writes ``docs/accuracy.md`` and one plot per protocol. The table is not part of the repository,
so the page is kept there. Without a table, the sections about the repository's own data are written
again, and the others stay.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from breakeven.errors import BreakevenError
from breakeven.progress import SilentProgress
from breakeven.report import AccuracyReport, LeaveOut, RowResult, printable
from breakeven.report.text import plural
from breakeven.report.validate import (
    GROUPING_TITLES,
    HEADERS,
    PROTOCOL_SENTENCES,
    SHOWN_GROUPINGS,
    headline,
    is_shown,
    percent,
    signed_percent,
    summary_cells,
    unpredicted_reasons,
    unread_reasons,
    warnings,
    worst_rows,
)
from breakeven.simulate import Bound
from breakeven.units import NS_PER_MS, format_duration
from breakeven.validate import RowFilter, validate_table
from lab.own_data import SMALL_STEPS_TITLE, own_data_markdown
from lab.validate import predictor_for

DOCS = Path(__file__).resolve().parents[1] / "docs"
# Unseen sources, GPUs and models first: they show what to expect for another GPU or model.
PROTOCOLS = (LeaveOut.SOURCE, LeaveOut.GPU, LeaveOut.MODEL, LeaveOut.NONE)
PROTOCOL_TITLES: Mapping[LeaveOut, str] = {
    LeaveOut.NONE: "The calibration that ships",
    LeaveOut.GPU: "A GPU never calibrated on",
    LeaveOut.MODEL: "A new model on a known GPU",
    LeaveOut.SOURCE: "A source never calibrated on",
}
# Show only the unseen GPU in detail, since most readers ask for it.
_DETAILED = LeaveOut.GPU
_DETAILS = ("phase", "architecture", "device", "family")
_SUMMARY = ("precision", "era", "bound", "source")
_PLOT = "Predicted against measured time of each row, both axes logarithmic, with a band of ±20 %"
_HOW_TO_READ = """\
Predicted times of whole steps, beside measured ones that others published. **Error** is
|predicted / measured - 1|; **bias** is the geometric mean of predicted / measured, minus 1: `+` is
too slow. **In 90 %** is the share of rows whose 90 % interval holds the measured time; a row that
could not be predicted counts as missed. **Right GPU** is the share of pairs of rows, equal in all
but the device and more than 20 % apart, of which the faster device is predicted to be faster.
Fewer than ten rows have no P90.

What these figures do not show: a GPU that is left out may have relatives with its chip that are
not (an RTX 2080 Ti teaches a TITAN RTX); the eight figures that scale the intervals (kernels
bound by arithmetic, by memory and in fp64, and hosts; each seen and unseen), and the prior widths
of the effects, were chosen on the very errors of leaving out GPUs and model families; and the
prediction of a row knows its host, framework and kind of copy, as the table tells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAccuracy:
    """Another predictor's error, on its own set of steps.

    Args:
        name: Name of the predictor.
        figure: Its published error.
        measured_on: The steps of the figure.
        source: The publication.
        by: Our grouping that is closest to those steps.
        group: Our group in it.
    """

    name: str
    figure: str
    measured_on: str
    source: str
    by: str
    group: str

    @property
    def nearest_rows(self) -> str:
        """Return the name of our group."""
        return "all rows" if self.by == "all" else f"{self.by} {self.group}"


_OTHER_SETS = "Each of these was measured on other steps: near, but no like-for-like comparison."

PUBLISHED: tuple[PublishedAccuracy, ...] = (
    PublishedAccuracy(
        name="Habitat",
        figure="11.8 % mean",
        measured_on="training of 5 models on 6 GPUs, from a measurement on another GPU",
        source="Yu et al., USENIX ATC 2021",
        by="all",
        group="all",
    ),
    PublishedAccuracy(
        name="NeuSight",
        figure="9.8 % mean (7.3 % out of distribution)",
        measured_on="52 training rows of its published summary, recomputed; needs a GPU",
        source="Lee et al., ASPLOS 2025",
        by="source,phase",
        group="neusight,forward_backward",
    ),
    PublishedAccuracy(
        name="Lin et al.",
        figure="7.96 % geometric mean (10.15 % with host overheads shared)",
        measured_on="launch-bound DLRM steps, host overheads measured on the machine itself",
        source="arXiv 2201.07821",
        by="regime",
        group="under 20 ms",
    ),
    PublishedAccuracy(
        name="hand-written roofline",
        figure="32 % median, 76 % P90",
        measured_on="single-GPU rows of the tables that breakeven is developed with; constant "
        "efficiencies, 12 µs of host per op",
        source="our own",
        by="num_devices",
        group="1",
    ),
)


def write_page(reports: Sequence[AccuracyReport], folder: Path, *, command: str) -> tuple[str, ...]:
    """Write the page about the reports and their plots; return the names of the files."""
    plots = {report.protocol: scatter_svg(report) for report in reports}
    names = {
        protocol: f"accuracy-{protocol}.svg" for protocol, plot in plots.items() if plot is not None
    }
    lines = [
        f"<!-- Written by `{command}`; do not edit by hand. -->\n",
        "# Accuracy\n",
        f"{_HOW_TO_READ}\n",
        *(line for report in reports for line in _sections(report, names.get(report.protocol))),
    ]
    page = "\n".join(lines).rstrip() + "\n"
    (folder / "accuracy.md").write_text(page + own_data_markdown(), "utf-8")
    for protocol, name in names.items():
        (folder / name).write_bytes(plots[protocol] or b"")
    return ("accuracy.md", *names.values())


def _sections(report: AccuracyReport, plot: str | None) -> Iterator[str]:
    """Yield the lines about one protocol."""
    yield f"## {PROTOCOL_TITLES[report.protocol]}\n"
    yield f"{PROTOCOL_SENTENCES[report.protocol]} {headline(report)}\n"
    yield from (f"**{warning}**\n" for warning in warnings(report))
    if plot is not None:
        yield f"![{_PLOT}]({plot})\n"
    yield from _table(("", *HEADERS), [("all rows", *summary_cells(report.overall))], "-" + "n" * 7)
    is_detailed = report.protocol is _DETAILED
    for by in (*SHOWN_GROUPINGS, *_DETAILS) if is_detailed else _SUMMARY:
        if is_shown(report, by):
            groups = [(group, *summary_cells(one)) for group, one in report.summary[by].items()]
            yield from _table((f"by {GROUPING_TITLES[by]}", *HEADERS), groups, "-" + "n" * 7)
    if not is_detailed:
        return
    compiled = [
        (
            each.mode,
            f"{each.num_pairs:,}/{each.num_pairs + each.num_pairs_unpredicted:,}",
            percent(each.close_fraction),
            percent(each.right_side_fraction),
            percent(each.median_error_fraction),
        )
        for each in compare_compiled(report.rows)
    ]
    if compiled:
        yield "### Compiled beside eager\n"
        headings = ("mode", "pairs", "within 15 %", "right side of 1", "median error")
        yield from _table(headings, compiled, "-nnnn")
    worst = worst_rows(report)
    if worst:
        yield f"### The {plural(len(worst), 'row')} furthest off\n"
        rows = [
            (
                row.case_id,
                f"`{row.workload}`",
                row.phase,
                row.device,
                row.precision,
                format_duration(row.value_ns),
                signed_percent(row.error_fraction),
            )
            for row in worst
        ]
        headings = ("case", "workload", "phase", "device", "precision", "measured", "error")
        yield from _table(headings, rows, "-----nn")
    for title, name, reasons in (
        (
            f"{plural(report.overall.num_unpredicted, 'row')} not predicted",
            ("rows", "code", "reason"),
            unpredicted_reasons(report.rows),
        ),
        (
            f"{plural(len(report.unread), 'row')} not read",
            ("rows", "case", "cell"),
            unread_reasons(report),
        ),
    ):
        if reasons:
            yield f"### {title}\n"
            rows = [(f"{count:,}", f"`{label}`", text) for label, text, count in reasons]
            yield from _table(name, rows, "n--")
    if report.overall.num_unpredicted < report.overall.num_rows:
        yield "### What others publish\n"
        yield f"{_OTHER_SETS}\n"
        headings = ("predictor", "published", "measured on", "nearest rows here", "mean", "median")
        yield from _table(headings, [_published(report, peer) for peer in PUBLISHED], "----nn")


def _published(report: AccuracyReport, peer: PublishedAccuracy) -> tuple[str, ...]:
    """Return the row of a published figure, with ours for the nearest group."""
    ours = report.summary[peer.by].get(peer.group)
    num_rows = 0 if ours is None else ours.num_rows - ours.num_unpredicted
    return (
        f"{peer.name} ({peer.source})",
        peer.figure,
        peer.measured_on,
        f"{peer.nearest_rows}, n = {num_rows:,}",
        percent(None if ours is None else ours.mean_error_fraction),
        percent(None if ours is None else ours.median_error_fraction),
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], kinds: str) -> Iterator[str]:
    """Yield a table line by line; ``kinds`` has an ``n`` for each numeric column."""
    yield _row(headings)
    yield "".join("| ---: " if kind == "n" else "| --- " for kind in kinds) + "|"
    yield from map(_row, rows)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"


_EAGER = "none"
# A predicted ratio this close to the measured one suffices for a decision.
CLOSE_FRACTION = 0.15


class CompiledPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios of compiled to eager times of a step on a device, predicted and measured.

    Args:
        mode: Mode of ``torch.compile``.
        num_pairs: Pairs whose rows are both predicted.
        num_pairs_unpredicted: Pairs with an unpredicted row.
        close_fraction: Share of ``num_pairs`` whose predicted ratio is within 15 % of the measured
            one. If there are no pairs, this and the following figures are null.
        right_side_fraction: Share on the same side of 1 as measured.
        median_error_fraction: Median of abs(predicted ratio / measured ratio - 1).
    """

    mode: str
    num_pairs: int
    num_pairs_unpredicted: int
    close_fraction: float | None = None
    right_side_fraction: float | None = None
    median_error_fraction: float | None = None


def compare_compiled(rows: Sequence[RowResult]) -> tuple[CompiledPairs, ...]:
    """Return the figures of each mode with a step that was also measured eager.

    If a step has several eager rows, then the first is used.
    """
    eager: dict[tuple[object, ...], RowResult] = {}
    compiled: defaultdict[str, list[RowResult]] = defaultdict(list)
    for row in rows:
        if row.compile == _EAGER:
            eager.setdefault(_step(row), row)
        else:
            compiled[row.compile].append(row)
    found: list[CompiledPairs] = []
    for mode, members in sorted(compiled.items()):
        pairs = [(row, eager[_step(row)]) for row in members if _step(row) in eager]
        if pairs:
            found.append(_figures(mode, pairs))
    return tuple(found)


def _step(row: RowResult) -> tuple[object, ...]:
    """Return the fields that two rows share if they differ only in compilation."""
    return (
        row.source, row.workload, row.device, row.num_devices, row.precision, row.batch_size,
        row.phase, row.optimizer, row.h2d, row.host, row.framework, row.memory_format,
        row.attention,
    )  # fmt: skip


def _figures(mode: str, pairs: Sequence[tuple[RowResult, RowResult]]) -> CompiledPairs:
    predicted: list[float] = []
    measured: list[float] = []
    for row, other in pairs:
        if row.prediction is None or other.prediction is None:
            continue
        predicted.append(row.prediction.estimate.value_ns / other.prediction.estimate.value_ns)
        measured.append(row.value_ns / other.value_ns)
    counts = {"num_pairs": len(predicted), "num_pairs_unpredicted": len(pairs) - len(predicted)}
    if not predicted:
        return CompiledPairs(mode=mode, **counts)
    ratios, truth = np.array(predicted), np.array(measured)
    errors = np.abs(ratios / truth - 1.0)
    return CompiledPairs(
        mode=mode,
        **counts,
        close_fraction=float(np.mean(errors <= CLOSE_FRACTION)),
        right_side_fraction=sum(
            (r < 1.0) == (t < 1.0) for r, t in zip(predicted, measured, strict=True)
        )
        / len(predicted),
        median_error_fraction=float(np.median(errors)),
    )


_BAND_FRACTION = 0.2
_SIDE_INCHES = 5.5
# Okabe and Ito's palette, which is distinguishable with any colour vision. A bound has the same
# colour in every plot.
_BOUND_COLOURS: Mapping[Bound | None, str] = {
    Bound.COMPUTE: "#0072B2",
    Bound.LAUNCH: "#D55E00",
    Bound.MEMORY: "#009E73",
    Bound.LATENCY: "#999999",
    Bound.TRANSFER: "#CC79A7",
    Bound.SYNC: "#E69F00",
    Bound.HOST_DATA: "#56B4E9",
    Bound.HOST_OPTIMIZER: "#F0E442",
    None: "#000000",
}
_SVG_SETTINGS = {
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Names of devices and files may contain text that looks like a formula.
    "text.parse_math": False,
    # SVG identifiers are random without a salt; text stored as text needs no font outlines.
    "svg.hashsalt": "breakeven",
    "svg.fonttype": "none",
}


def scatter_svg(report: AccuracyReport) -> bytes | None:
    """Plot all predicted rows: measured time across, predicted time up, in ms.

    Both axes are logarithmic. A band marks ±20 %, and colours show the bound of the predicted step.

    Returns:
        The SVG, or ``None`` if no row is predicted.

    Raises:
        BreakevenError: If matplotlib is not installed.
    """
    points: dict[Bound | None, list[tuple[float, float]]] = defaultdict(list)
    for row in report.rows:
        if row.prediction is not None:
            predicted_ms = row.prediction.estimate.value_ns / NS_PER_MS
            points[row.prediction.bound].append((row.value_ns / NS_PER_MS, predicted_ms))
    if not points:
        return None
    # matplotlib is optional; everything else must work without it, including types.
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context(_SVG_SETTINGS):
        figure = figures.Figure(figsize=(_SIDE_INCHES, _SIDE_INCHES), layout="constrained")
        axes = figure.add_subplot()
        every = [value for pairs in points.values() for pair in pairs for value in pair]
        ends = (min(every) / 1.3, max(every) * 1.3)
        axes.fill_between(
            ends,
            [end * (1 - _BAND_FRACTION) for end in ends],
            [end * (1 + _BAND_FRACTION) for end in ends],
            color="0.9",
            linewidth=0,
            label="±20 %",
        )
        axes.plot(ends, ends, color="0.5", linewidth=0.8)
        for bound in filter(points.__contains__, _BOUND_COLOURS):
            pairs = points[bound]
            name = "bound not known" if bound is None else f"{bound}-bound"
            axes.plot(
                [measured for measured, _ in pairs],
                [predicted for _, predicted in pairs],
                linestyle="none",
                marker="o",
                markersize=3,
                markeredgewidth=0,
                alpha=0.6,
                color=_BOUND_COLOURS[bound],
                label=f"{name} ({len(pairs):,})",
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlim=ends,
            ylim=ends,
            aspect="equal",
            xlabel="measured, ms",
            ylabel="predicted, ms",
            title=PROTOCOL_TITLES[report.protocol],
        )
        axes.legend(loc="upper left", frameon=False, fontsize="small")
        document = io.BytesIO()
        figure.savefig(document, format="svg", metadata={"Date": None, "Creator": None})
    return document.getvalue()


def main(argv: list[str]) -> int:
    """Validate by every protocol, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="*", help="tables of measured steps")
    parser.add_argument(
        "--only", metavar="KEY=VALUE", action="append", default=[], help="count only these rows"
    )
    args = parser.parse_args(argv)
    if not args.tables:
        page = DOCS / "accuracy.md"
        kept, _, _ = page.read_text("utf-8").partition(f"\n{SMALL_STEPS_TITLE}")
        page.write_text(kept + own_data_markdown(), "utf-8")
        return 0
    if importlib.util.find_spec("matplotlib") is None:
        sys.stderr.write("error: the plots need matplotlib: pip install matplotlib\n")
        return 3
    try:
        only = RowFilter.parse(args.only)
        reports = [
            validate_table(
                *args.tables,
                predictor=predictor_for(protocol, progress=SilentProgress()),
                protocol=protocol,
                only=only,
            )
            for protocol in PROTOCOLS
        ]
    except BreakevenError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    # Leave the folder of the table out: it is private to the author.
    options = [option for condition in args.only for option in ("--only", condition)]
    command = shlex.join(
        ["python", "-m", "lab.accuracy", *(table.name for table in args.tables), *options]
    )
    for name in write_page(reports, DOCS, command=command):
        sys.stderr.write(f"wrote docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The words and figures of a validation, beside the errors that others publish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from breakeven.report.text import plural
from breakeven.units import format_digits
from breakeven.verdict import AccuracyReport, AccuracySummary, LeaveOut, RowResult, Unpredictable

PROTOCOL_SENTENCES: Mapping[LeaveOut, str] = {
    LeaveOut.NONE: "The calibration that ships with breakeven predicts every row.",
    LeaveOut.GPU: "Leave one GPU out: each GPU is predicted by a calibration made without any "
    "figure of it.",
    LeaveOut.MODEL: "Leave one model family out: each family is predicted by a calibration made "
    "without any row of it.",
    LeaveOut.SOURCE: "Leave one source out: the steps of each source are predicted by a "
    "calibration made without any figure from it.",
}
PROTOCOL_TITLES: Mapping[LeaveOut, str] = {
    LeaveOut.NONE: "The calibration that ships",
    LeaveOut.GPU: "A GPU never calibrated on",
    LeaveOut.MODEL: "A new model on a known GPU",
    LeaveOut.SOURCE: "A source never calibrated on",
}

# The groupings that a person reads; all of them are in the JSON document.
SHOWN_GROUPINGS = (
    "split", "precision", "era", "compile", "attention", "regime", "bound", "source", "num_devices",
)  # fmt: skip
GROUPING_TITLES: Mapping[str, str] = {
    "all": "all",
    "split": "split",
    "precision": "precision",
    "compile": "mode of torch.compile",
    "attention": "attention",
    "memory_format": "memory format",
    "family": "model family",
    "era": "era",
    "regime": "measured time",
    "bound": "bound",
    "source": "source",
    "num_devices": "devices per step",
    "device": "device",
    "architecture": "architecture",
    "workload": "workload",
    "phase": "phase",
}

# Every stored run has these; others were added later.
FIRST_GROUPINGS = frozenset(GROUPING_TITLES) - {"compile", "attention", "memory_format", "family"}

HEADERS = ("rows", "median", "mean", "P90", "bias", "in 90 %", "right GPU")
# Fewer rows than this have no 90th percentile worth the name.
_LEAST_ROWS_FOR_P90 = 10
# As many as a person reads one by one.
_NUM_WORST = 10
# Of rows that fail alike, as many are named.
_NUM_NAMED = 3


def headline(report: AccuracyReport) -> str:
    """Return the answer in one sentence."""
    overall = report.overall
    num_predicted = overall.num_rows - overall.num_unpredicted
    if num_predicted == 0:
        return f"None of {plural(overall.num_rows, 'row')} could be predicted."
    of_all = "" if overall.num_unpredicted == 0 else f" of {overall.num_rows:,}"
    p90 = p90_percent(overall.p90_error_fraction, num_predicted)
    rows = plural(num_predicted, "row") if not of_all else f"{num_predicted:,}{of_all} rows"
    return (
        f"{rows} predicted: error {percent(overall.median_error_fraction)} "
        f"median{'' if p90 == '-' else f', {p90} P90'}; 90 % intervals hold "
        f"{percent(overall.coverage_fraction)} of all rows."
    )


def warnings(report: AccuracyReport) -> tuple[str, ...]:
    """Return what a reader must know first: rows that count nowhere, or that were learned from."""
    found: list[str] = []
    if report.unread:
        found.append(
            f"{plural(len(report.unread), 'row')} of this table could not be read, and "
            f"{'is' if len(report.unread) == 1 else 'are'} in none of the figures."
        )
    num_seen = report.overall.num_calibrated_on
    if num_seen:
        found.append(
            f"The calibration has seen {plural(num_seen, 'row')} of this table: their errors say "
            "how well it fits, not how well it predicts."
        )
    return tuple(found)


def summary_cells(summary: AccuracySummary) -> tuple[str, ...]:
    """Return the figures of a group, in the order of ``HEADERS``."""
    num_predicted = summary.num_rows - summary.num_unpredicted
    rows = f"{summary.num_rows:,}"
    if summary.num_unpredicted:
        rows = f"{num_predicted:,}/{rows}"
    return (
        rows,
        percent(summary.median_error_fraction),
        percent(summary.mean_error_fraction),
        p90_percent(summary.p90_error_fraction, num_predicted),
        signed_percent(summary.bias_fraction),
        percent(summary.coverage_fraction),
        percent(summary.right_device_fraction),
    )


def worst_rows(report: AccuracyReport, num_rows: int = _NUM_WORST) -> tuple[RowResult, ...]:
    """Return the rows with the largest errors, by factor, so that 2× too slow and too fast tie."""

    def factor(row: RowResult) -> float:
        ratio = 1.0 + (row.error_fraction or 0.0)
        return max(ratio, 1.0 / ratio)

    predicted = [row for row in report.rows if row.prediction is not None]
    return tuple(sorted(predicted, key=factor, reverse=True)[:num_rows])


def unpredicted_reasons(rows: Sequence[RowResult]) -> tuple[tuple[str, str, int], ...]:
    """Return code, reason and number of the rows that have no prediction, most rows first."""
    counts = Counter(
        (row.outcome.code, row.outcome.reason)
        for row in rows
        if isinstance(row.outcome, Unpredictable)
    )
    return tuple((code, reason, count) for (code, reason), count in counts.most_common())


def unread_reasons(report: AccuracyReport) -> tuple[tuple[str, str, int], ...]:
    """Return some rows, the cell and the number of rows that could not be read for it."""
    names: dict[str, list[str]] = {}
    for row in report.unread:
        reason = f"{row.reason}; allowed: {row.allowed}"
        names.setdefault(reason, []).append(row.case_id or row.place)
    found = [
        (", ".join((*rows[:_NUM_NAMED], *["..."] * (len(rows) > _NUM_NAMED))), reason, len(rows))
        for reason, rows in names.items()
    ]
    return tuple(sorted(found, key=lambda each: -each[2]))


def percent(fraction: float | None) -> str:
    """Return a share or error as a percentage with two digits: ``9.1 %``; ``-`` without one."""
    return "-" if fraction is None else f"{format_digits(100 * fraction, _digits(fraction))} %"


def p90_percent(fraction: float | None, num_rows: int) -> str:
    """Return a 90th percentile as a percentage; ``-`` where there are too few rows for one."""
    return "-" if num_rows < _LEAST_ROWS_FOR_P90 else percent(fraction)


def signed_percent(fraction: float | None) -> str:
    """Return ``+9.1 %`` or ``-12 %``; ``-`` where there is none."""
    if fraction is None:
        return "-"
    if fraction == 0:
        return percent(fraction)
    sign = "-" if fraction < 0 else "+"
    return f"{sign}{percent(abs(fraction))}"


def _digits(fraction: float) -> int:
    # 96 % and 99.6 % of pairs are not the same; 0.3 % of error is as much as 0 %.
    if abs(fraction) < 0.01:
        return 1
    return 3 if 0.95 <= fraction < 1.0 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAccuracy:
    """Another predictor's error, on its own set of steps.

    Args:
        name: Of the predictor.
        figure: Its error, as published.
        measured_on: The steps that the figure is about.
        source: Where it is published.
        by: Grouping of ours that comes nearest to those steps.
        group: Group of ours.
    """

    name: str
    figure: str
    measured_on: str
    source: str
    by: str
    group: str

    @property
    def nearest_rows(self) -> str:
        """Return what to call our group."""
        return "all rows" if self.by == "all" else f"{self.by} {self.group}"


OTHER_SETS = "Each of these was measured on other steps: near, but no like-for-like comparison."

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


# The groupings of ours that they are set beside.
NEAREST_GROUPINGS = frozenset(published.by for published in PUBLISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFigure:
    """Our errors in the group nearest to a published figure.

    Args:
        published: The published figure.
        num_rows: Predicted rows of ours; 0 where the report has no such group.
        median_error_fraction: Our median.
        mean_error_fraction: Our mean.
        p90_error_fraction: Our 90th percentile.
    """

    published: PublishedAccuracy
    num_rows: int
    median_error_fraction: float | None
    mean_error_fraction: float | None
    p90_error_fraction: float | None


def beside_published(report: AccuracyReport) -> Iterator[OwnFigure]:
    """Yield each published figure with ours of the nearest group."""
    for published in PUBLISHED:
        summary = report.summary[published.by].get(published.group)
        yield OwnFigure(
            published=published,
            num_rows=0 if summary is None else summary.num_rows - summary.num_unpredicted,
            median_error_fraction=None if summary is None else summary.median_error_fraction,
            mean_error_fraction=None if summary is None else summary.mean_error_fraction,
            p90_error_fraction=None if summary is None else summary.p90_error_fraction,
        )

"""What others publish about predictions of the same kind, to be set beside our figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from breakeven.verdict import AccuracyReport


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

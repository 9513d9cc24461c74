"""What matplotlib draws: charts as a PNG file, and predicted against measured times as an SVG.

For the same figures the bytes are the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Mapping
from typing import Any

from breakeven.errors import BreakevenError
from breakeven.report.builders.validate_words import PROTOCOL_TITLES
from breakeven.units import NS_PER_MS
from breakeven.verdict import AccuracyReport, Bound

_SETTINGS = {
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Names of devices and files may hold what would be read as a formula.
    "text.parse_math": False,
}


_NO_PLOTS = BreakevenError(
    "plots need matplotlib, which is not installed",
    hint="pip install 'breakeven[plots]', or pip install matplotlib",
)
_BAND_FRACTION = 0.2
_SIDE_INCHES = 5.5
# Okabe and Ito's palette, which people with any colour vision can tell apart; a bound has the same
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
    **_SETTINGS,
    # Identifiers of an SVG are random unless salted; text as text needs no font's outlines.
    "svg.hashsalt": "breakeven",
    "svg.fonttype": "none",
}


def ensure_can_plot() -> None:
    """Check that matplotlib is there, before the work whose errors it plots.

    Raises:
        BreakevenError: It is not.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise _NO_PLOTS


def scatter_svg(report: AccuracyReport) -> bytes | None:
    """Return a plot of all predicted rows: measured time across, predicted time up, in ms.

    Both axes are logarithmic; a band marks ±20 %, colours tell what limits the predicted step.

    Returns:
        The SVG, or ``None`` where no row is predicted.

    Raises:
        BreakevenError: matplotlib is not installed.
    """
    points = _points(report)
    if not points:
        return None
    ensure_can_plot()
    # An optional dependency without which everything else must work, types included.
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
        for bound, pairs in points.items():
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


def _points(report: AccuracyReport) -> dict[Bound | None, list[tuple[float, float]]]:
    """Return measured and predicted milliseconds of each row, by what limits the step."""
    points: dict[Bound | None, list[tuple[float, float]]] = {}
    for row in report.rows:
        if row.prediction is None:
            continue
        pair = (row.value_ns / NS_PER_MS, row.prediction.estimate.value_ns / NS_PER_MS)
        points.setdefault(row.prediction.bound, []).append(pair)
    return {bound: points[bound] for bound in _BOUND_COLOURS if bound in points}

"""Charts as a PNG file, by matplotlib; for the same figures the bytes are the same."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from breakeven.errors import BreakevenError
from breakeven.report.charts.model import Chart, Scale, style_of
from breakeven.report.text import printable, shorten
from breakeven.timing import Source

# An image taller than that is read no more; a page and an SVG hold any number of charts.
MAX_CHARTS = 6
_SETTINGS = {
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Names of devices and files may hold what would be read as a formula.
    "text.parse_math": False,
}


def ensure_can_draw() -> None:
    """Check that matplotlib is there, before the work whose charts it draws.

    Raises:
        BreakevenError: It is not.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BreakevenError(
            "charts as PNG need matplotlib, which is not installed",
            hint="pip install 'breakeven[plots]', or name a file that ends in .svg, which needs "
            "nothing",
        )


def chart_png(charts: Sequence[Chart], *, heading: str) -> bytes:
    """Return charts below one another as a PNG.

    Args:
        charts: At least one; those after the first six are left out, and the heading says so.
        heading: What was run.

    Raises:
        BreakevenError: matplotlib is not installed.
    """
    ensure_can_draw()
    # An optional dependency without which everything else must work, types included.
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    shown = charts[:MAX_CHARTS]
    if len(charts) > len(shown):
        heading += f" (the first {len(shown)} of {len(charts)} charts)"
    with matplotlib.rc_context(_SETTINGS):
        figure = figures.Figure(figsize=(9.5, 0.4 + 5 * len(shown)))
        figure.suptitle(printable(heading, 100), x=0.01, ha="left", fontsize="medium")
        rows: Any = figure.subplots(len(shown), squeeze=False)
        # Not by a layout that is solved for: its last digits differ from run to run.
        top = 1 - 0.9 / (0.4 + 5 * len(shown))
        figure.subplots_adjust(left=0.09, right=0.7, bottom=0.6 / figure.get_figheight(), top=top)
        for (axes,), chart in zip(rows, shown, strict=True):
            _draw(axes, chart)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
    return image.getvalue()


def _draw(axes: Any, chart: Chart) -> None:
    notes = [f"{mark.label} on" for mark in chart.crossovers]
    title = f"{chart.title} · {chart.note}" if chart.note else chart.title
    axes.set_title("\n".join(shorten(text, 90) for text in (title, *notes)), fontsize="small")
    for series in chart.series:
        style = style_of(series.style)
        x, y = [p.x for p in series.points], [p.step_ns for p in series.points]
        low, high = [p.low_ns for p in series.points], [p.high_ns for p in series.points]
        axes.vlines(x, low, high, color=style.light, linewidth=1)
        is_line = chart.x.scale is not Scale.CATEGORY
        line = ((0, style.dashes) if style.dashes else "solid") if is_line else "none"
        axes.plot(x, y, color=style.light, linestyle=line, label=shorten(series.name, 34))
        for source in Source:
            fill = style.light if source is Source.MEASURED else "white"
            own = [(p.x, p.step_ns) for p in series.points if p.source is source]
            axes.scatter(*zip(*own, strict=True), c=fill, edgecolors=style.light) if own else None
    for mark in chart.crossovers:
        axes.axvline(mark.x, color=style_of(mark.style).light, linestyle=(0, (1, 3)))
    for side, axis in (("x", chart.x), ("y", chart.y)):
        getattr(axes, f"set_{side}scale")("log" if axis.scale is Scale.LOG else "linear")
        getattr(axes, f"set_{side}ticks")([], minor=True)
        labels = [shorten(tick.label, 18) for tick in axis.ticks]
        turn = 20 if axis.scale is Scale.CATEGORY and sum(map(len, labels)) > 80 else 0
        values = [tick.value for tick in axis.ticks]
        getattr(axes, f"set_{side}ticks")(values, labels, fontsize="small", rotation=turn)
        getattr(axes, f"set_{side}lim")(axis.low, axis.high)
        getattr(axes, f"set_{side}label")(axis.label)
    axes.grid(color="0.9", linewidth=0.6)
    legend = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "frameon": False}
    axes.legend(**legend, fontsize="x-small", title="filled: measured; bars: 90 % interval")

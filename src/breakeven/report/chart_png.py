"""Charts as a PNG file, drawn by matplotlib; equal figures give equal bytes."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from breakeven.errors import BreakevenError
from breakeven.report.chart import Chart, Scale, style_of
from breakeven.report.text import printable, shorten
from breakeven.timing import Source

# A taller image is unreadable; pages and SVG can have any number of charts.
MAX_CHARTS = 6
_SETTINGS = {
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Names of devices and files may look like formulas.
    "text.parse_math": False,
}


def ensure_can_draw() -> None:
    """Check that matplotlib is installed, before the measurement to be drawn.

    Raises:
        BreakevenError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BreakevenError(
            "charts as PNG need matplotlib, which is not installed",
            hint="pip install 'breakeven[plots]', or name a file that ends in .svg, which needs "
            "nothing",
        )


def chart_png(charts: Sequence[Chart], *, heading: str) -> bytes:
    """Return a PNG with the charts stacked vertically.

    Args:
        charts: At least one chart; only the first six are drawn, and the heading says so.
        heading: The command or target of the run.

    Raises:
        BreakevenError: matplotlib is not installed.
    """
    ensure_can_draw()
    # An optional dependency: everything else must work without it, types included.
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    shown = charts[:MAX_CHARTS]
    if len(charts) > len(shown):
        heading += f" (the first {len(shown)} of {len(charts)} charts)"
    height = 0.4 + 5 * len(shown)
    with matplotlib.rc_context(_SETTINGS):
        figure = figures.Figure(figsize=(9.5, height))
        figure.suptitle(printable(heading, 100), x=0.01, ha="left", fontsize="medium")
        # Avoid matplotlib's solved layouts: their last digits differ from run to run.
        place = {"left": 0.09, "right": 0.7, "bottom": 0.6 / height, "top": 1 - 1.1 / height}
        figure.subplots_adjust(**place, hspace=0.4)
        for number, chart in enumerate(shown, start=1):
            _draw(figure.add_subplot(len(shown), 1, number), chart)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
    return image.getvalue()


def _draw(axes: Any, chart: Chart) -> None:
    chart = chart.shown
    title = f"{chart.title} · {chart.note}" if chart.note else chart.title
    notes = [f"{mark.label} on" for mark in chart.crossovers]
    axes.set_title("\n".join(shorten(text, 90) for text in (title, *notes)), fontsize="small")
    for mark in chart.crossovers:
        axes.axvline(mark.x, color=style_of(mark.style).light, linestyle=(0, (1, 3)))
    if chart.rival:
        axes.axhline(1.0, color="black", linewidth=2.5)
        words = {"transform": axes.get_yaxis_transform(), "ha": "right", "fontsize": "small"}
        axes.text(0.99, 1.04, f"faster than {shorten(chart.rival, 40)}", va="bottom", **words)
    for series in chart.series:
        style, x = style_of(series.style), [point.x for point in series.curve]
        low, high = [p.low for p in series.curve], [p.high for p in series.curve]
        axes.vlines(x, low, high, color=style.light, linewidth=1)
        line = (0, style.dashes) if style.dashes else "solid"
        line = "none" if chart.x.scale is Scale.CATEGORY else line
        values, name = [point.value for point in series.curve], shorten(series.label, 44)
        axes.plot(x, values, color=style.light, linestyle=line, label=name)
        fills = [style.light if p.source is Source.MEASURED else "white" for p in series.curve]
        axes.scatter(x, values, c=fills, edgecolors=style.light, marker=style.marker, zorder=3)
        # Sizes that exceed the memory, at the lower edge.
        big = [point.x for point in series.too_big]
        axes.plot(big, [chart.y.low] * len(big), "x", color=style.light, clip_on=False)
    for side, axis in (("x", chart.x), ("y", chart.y)):
        labels = [shorten(tick.label, 18) for tick in axis.ticks]
        turn = 20 if axis.scale is Scale.CATEGORY and sum(map(len, labels)) > 80 else 0
        own = getattr(axes, f"{side}axis")
        getattr(axes, f"set_{side}scale")("log" if axis.scale is Scale.LOG else "linear")
        own.set_ticks([], minor=True)
        own.set_ticks([t.value for t in axis.ticks], labels, fontsize="small", rotation=turn)
        own.set_label_text(axis.label)
        getattr(axes, f"set_{side}lim")(axis.low, axis.high)
    axes.grid(color="0.9", linewidth=0.6)
    small = {"fontsize": "x-small", "title_fontsize": "x-small", "frameon": False}
    title = "filled: measured; bars: 90 % interval"
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), title=title, **small)

"""What matplotlib draws: charts as a PNG file.

For the same figures the bytes are the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from breakeven.errors import BreakevenError
from breakeven.report.charts.build import PUBLISHED_LABEL
from breakeven.report.charts.model import Chart, ChartAxis, ChartPoint, ChartSeries, Scale, style_of
from breakeven.report.text import printable, shorten
from breakeven.timing import Source

_NO_CHARTS = BreakevenError(
    "charts as PNG need matplotlib, which is not installed",
    hint="pip install 'breakeven[plots]', or name a file that ends in .svg, which needs nothing",
)
# An image taller than that is read no more; a page holds any number of charts.
MAX_CHARTS = 6
_WIDTH_INCHES = 9.5
_LEFT_INCHES = 0.85
_PLOT_WIDTH_INCHES = 6.0
_HEADING_INCHES = 0.4
_TITLE_INCHES = 0.45
_PLOT_INCHES = 3.8
_BELOW_INCHES = 0.75
_STRIP_INCHES_PER_ROW = 0.22
_MAX_LEGEND_ROWS = 12
_MAX_CATEGORY_CHARACTERS = 18
_DOTS_PER_INCH = 150
_BAND_OPACITY = 0.13
_PUBLISHED_COLOUR = "#57606a"
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
        raise _NO_CHARTS


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
    height = _HEADING_INCHES + sum(map(_height_inches, shown))
    with matplotlib.rc_context(_SETTINGS):
        figure = figures.Figure(figsize=(_WIDTH_INCHES, height))
        figure.text(0.012, 1 - 0.25 / height, printable(heading, 100), va="center")
        top = height - _HEADING_INCHES
        for chart in shown:
            _draw(figure, chart, top, height)
            top -= _height_inches(chart)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return image.getvalue()


def _strip_inches(chart: Chart) -> float:
    num_rows = len(chart.crossovers) + sum(mark.step_ns is None for mark in chart.published)
    return _STRIP_INCHES_PER_ROW * num_rows


def _height_inches(chart: Chart) -> float:
    return _TITLE_INCHES + _strip_inches(chart) + _PLOT_INCHES + _BELOW_INCHES


def _draw(figure: Any, chart: Chart, top: float, height: float) -> None:
    # Placed by hand: a layout that is solved for differs in its last digits from run to run.
    def add_axes(upper: float, lower: float, **options: Any) -> Any:
        left = _LEFT_INCHES / _WIDTH_INCHES
        place = (left, lower / height, _PLOT_WIDTH_INCHES / _WIDTH_INCHES, (upper - lower) / height)
        return figure.add_axes(place, **options)

    upper = top - _TITLE_INCHES
    lower = upper - _strip_inches(chart)
    axes = add_axes(lower, lower - _PLOT_INCHES)
    title = f"{chart.title} · {chart.note}" if chart.note else chart.title
    figure.text(_LEFT_INCHES / _WIDTH_INCHES, (upper + 0.12) / height, shorten(title, 90))
    if lower < upper:
        _draw_strip(add_axes(upper, lower, sharex=axes), axes, chart)
    for series in chart.series:
        _draw_series(axes, series, is_joined=chart.x.scale is not Scale.CATEGORY)
    _draw_published(axes, chart)
    _set_axis(axes, "x", chart.x)
    _set_axis(axes, "y", chart.y)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    _draw_legend(axes, chart)


def _draw_series(axes: Any, series: ChartSeries, *, is_joined: bool) -> None:
    style = style_of(series.style)
    points = series.points
    x = [point.x for point in points]
    low, high = [p.low_ns for p in points], [p.high_ns for p in points]
    dashes = (0, style.dashes) if style.dashes else "solid"
    if is_joined and len(points) > 1:
        axes.fill_between(x, low, high, color=style.light, alpha=_BAND_OPACITY, linewidth=0)
        steps = [point.step_ns for point in points]
        axes.plot(x, steps, color=style.light, linestyle=dashes, linewidth=1.4)
    else:
        axes.vlines(x, low, high, color=style.light, linewidth=1.4)
    for source in Source:
        _draw_markers(axes, [point for point in points if point.source is source], series)


def _draw_markers(axes: Any, points: Sequence[ChartPoint], series: ChartSeries) -> None:
    style = style_of(series.style)
    is_measured = bool(points) and points[0].source is Source.MEASURED
    axes.plot(
        [point.x for point in points],
        [point.step_ns for point in points],
        linestyle="none",
        marker=style.marker,
        markersize=4 if len(series.points) <= 40 else 2.5,
        markerfacecolor=style.light if is_measured else "white",
        markeredgecolor=style.light,
        markeredgewidth=0.9,
    )


def _draw_strip(strip: Any, axes: Any, chart: Chart) -> None:
    """Draw where each GPU begins to win, with its interval, above the curves."""
    last = chart.x.high
    row = 0
    for mark in chart.crossovers:
        colour = style_of(mark.style).light
        high = last if mark.high is None else mark.high
        strip.plot([mark.low, high], [row, row], color=colour, linewidth=2)
        strip.plot([mark.x], [row], color=colour, marker="D", markersize=4.5)
        axes.axvline(mark.x, color=colour, linewidth=0.8, linestyle=(0, (1, 3)))
        _strip_label(strip, chart.x, f"{mark.label} on", (mark.low, high, row))
        row += 1
    for published in chart.published:
        if published.step_ns is None:
            strip.plot([published.x], [row], color=_PUBLISHED_COLOUR, marker="*", markersize=9)
            text = f"{published.label}: {published.where}"
            _strip_label(strip, chart.x, text, (published.x, published.x, row))
            row += 1
    strip.set_ylim(row - 0.4, -0.6)
    strip.set_yticks([])
    strip.tick_params(bottom=False, labelbottom=False)
    for side in ("left", "bottom"):
        strip.spines[side].set_visible(False)


def _strip_label(strip: Any, x: ChartAxis, text: str, place: tuple[float, float, int]) -> None:
    low, high, row = place
    is_left = x.position(low) > 1 - x.position(high)
    strip.annotate(
        shorten(text, 60),
        (low if is_left else high, row),
        xytext=(-8 if is_left else 8, 0),
        textcoords="offset points",
        ha="right" if is_left else "left",
        va="center",
        fontsize="x-small",
    )


def _draw_published(axes: Any, chart: Chart) -> None:
    for number, mark in enumerate(chart.published, start=1):
        if mark.step_ns is None:
            continue
        axes.plot(
            [mark.x], [mark.step_ns], color=_PUBLISHED_COLOUR, marker="*", markersize=11, zorder=5
        )
        axes.annotate(
            str(number),
            (mark.x, mark.step_ns),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize="small",
        )


def _set_axis(axes: Any, side: str, axis: ChartAxis) -> None:
    getattr(axes, f"set_{side}scale")("log" if axis.scale is Scale.LOG else "linear")
    getattr(axes, f"set_{side}lim")(axis.low, axis.high)
    labels = [shorten(tick.label, _MAX_CATEGORY_CHARACTERS) for tick in axis.ticks]
    options = {"fontsize": "small"}
    if axis.scale is Scale.CATEGORY and max(map(len, labels)) * len(labels) > 80:
        options |= {"rotation": 20, "ha": "right"}
    getattr(axes, f"set_{side}ticks")([tick.value for tick in axis.ticks], labels, **options)
    getattr(axes, f"set_{side}ticks")([], minor=True)
    getattr(axes, f"set_{side}label")(axis.label)


def _draw_legend(axes: Any, chart: Chart) -> None:
    lines: Any = importlib.import_module("matplotlib.lines")
    handles: list[Any] = []
    for series in chart.series[:_MAX_LEGEND_ROWS]:
        style = style_of(series.style)
        handles.append(
            lines.Line2D(
                [],
                [],
                color=style.light,
                linestyle=(0, style.dashes) if style.dashes else "solid",
                linewidth=1.4,
                marker=style.marker,
                markersize=4,
                markerfacecolor="white",
                label=shorten(series.name, 34),
            )
        )
    num_hidden = len(chart.series) - len(handles)
    grey = {"color": "0.35", "linestyle": "none", "marker": "o", "markersize": 4}
    if num_hidden > 0:
        handles.append(lines.Line2D([], [], linestyle="none", label=f"and {num_hidden} more"))
    handles.append(lines.Line2D([], [], **grey, label="measured"))
    handles.append(lines.Line2D([], [], **grey, markerfacecolor="white", label="predicted"))
    for number, mark in enumerate(chart.published, start=1):
        handles.append(
            lines.Line2D(
                [],
                [],
                color=_PUBLISHED_COLOUR,
                linestyle="none",
                marker="*",
                markersize=9,
                label=shorten(f"{number}: {mark.label} ({PUBLISHED_LABEL})", 38),
            )
        )
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize="x-small",
        title="bands: 90 % interval",
        title_fontsize="x-small",
        alignment="left",
    )

"""The chart in a terminal: what is where, told without colour."""

from __future__ import annotations

import dataclasses

import pytest

from breakeven.report.chart import Chart
from breakeven.report.chart_text import chart_text
from breakeven.report.sweep import sweep_charts
from breakeven.report.text import ASCII
from breakeven.verdict import SweepReport
from factories import sweeps as made_up


def chart(report: SweepReport) -> Chart:
    return sweep_charts(report)[0]


def lines(report: SweepReport, *, columns: int = 78, rows: int = 14) -> list[str]:
    text = chart_text(chart(report), num_columns=columns, num_rows=rows)
    return text.plain.split("\n")


def column(line: str, character: str) -> int:
    return line.index(character)


def test_curves_go_from_the_first_to_the_last_size() -> None:
    drawn = lines(made_up.batch_sizes())
    (corner,) = [line for line in drawn if "└" in line]
    # The CPU is the line at 1×; a GPU's speed grows, so its last point is the highest.
    (at_one,) = [line for line in drawn if line.split("┤")[0].strip() == "1×"]
    assert at_one.split("┤")[1].count("━") > 40
    assert column(at_one, "A") == corner.index("┴")
    assert at_one.rindex("A") == corner.rindex("┴")
    rows_of_gpu = [i for i, line in enumerate(drawn[1:15]) if "b" in line]
    assert drawn[1 + rows_of_gpu[0]].rindex("b") == corner.rindex("┴")
    assert column(drawn[1 + rows_of_gpu[-1]], "b") == corner.index("┴")


def test_measured_points_are_capitals_and_predicted_ones_small() -> None:
    plot = "\n".join(lines(made_up.batch_sizes())[1:15])
    assert plot.count("A") > 0
    assert plot.count("a") > 0
    assert "B" not in plot.replace("B ", "")
    legend = " ".join(lines(made_up.batch_sizes())[17:])
    assert "a this CPU   b T4   c RTX 4090 (first to pay off)" in legend
    assert "CAPITAL measured, small predicted" in legend


def test_the_crossover_stands_on_the_curve_and_on_the_axis() -> None:
    drawn = lines(made_up.batch_sizes(devices=(made_up.T4,)))
    (corner,) = [line for line in drawn if "└" in line]
    crossing = [line for line in drawn[1:15] if "╳" in line]
    assert len(crossing) == 1
    assert crossing[0].strip().startswith("1×")
    assert column(crossing[0], "╳") == column(corner, "▲")
    without = lines(made_up.cpu_wins())
    assert not any(mark in "".join(without) for mark in "╳▲")


def test_ticks_of_doubling_sizes_are_sizes_and_of_speeds_ratios() -> None:
    drawn = lines(made_up.batch_sizes())
    assert drawn[16].split() == ["16", "64", "256", "1,024", "4,096", "16,384", "65,536"]
    ticks = [line.split("┤")[0].strip() for line in drawn if "┤" in line]
    assert ticks == ["50×", "20×", "5×", "2×", "1×", "0.2×"]


@pytest.mark.parametrize("name", ["batch_sizes", "widths", "grid", "large"])
def test_ascii(name: str) -> None:
    drawn = [line.translate(ASCII) for line in lines(made_up.ALL[name]())]
    assert "".join(drawn).isascii()
    assert any("+" in line and "^" in line for line in drawn)
    assert sum("X" in line for line in drawn[1:15]) >= 1


def test_a_size_that_does_not_fit_is_marked_and_has_no_speed() -> None:
    full = chart(made_up.batch_sizes(devices=(made_up.T4,)))
    cpu, gpu = full.series
    too_big = tuple(dataclasses.replace(point, is_too_big=True) for point in gpu.points)
    changed = dataclasses.replace(full, series=(cpu, dataclasses.replace(gpu, points=too_big)))
    plot = chart_text(changed, num_columns=78, num_rows=14).plain.split("\n")
    assert not any("b" in line for line in plot[1:15])
    assert any("A" in line for line in plot[1:15])
    assert plot[14].count("!") == 13
    assert any("! too big for T4" in line for line in plot[17:])

"""What of a report becomes a chart."""

from __future__ import annotations

import msgspec
import pytest

from breakeven.report.chart import Chart, Scale, axis_word, settings_text, value_text
from breakeven.report.check import check_charts
from breakeven.report.sweep import sweep_charts
from breakeven.timing import Source
from breakeven.verdict import (
    AxisRole,
    DeviceKind,
    SweepAxis,
    SweepReport,
)
from factories import reports as made_up
from factories import sweeps


def only(report: SweepReport) -> Chart:
    (chart,) = sweep_charts(report)
    return chart


def test_a_check_has_one_chart_along_its_batch_sizes() -> None:
    (chart,) = check_charts(made_up.cpu_wins())
    assert chart.title == "Step time along the batch size"
    assert [series.name for series in chart.series] == [made_up.CPU_NAME, "T4", "RTX 4090"]
    assert chart.x.scale is chart.y.scale is Scale.LOG
    (mark,) = chart.crossovers
    assert (mark.x, mark.low, mark.high) == (640, 410, 1_300)
    assert mark.label == "RTX 4090 faster from 640 (410–1,300)"
    assert mark.style == chart.series[2].style


def test_a_check_without_curves_shows_its_devices_side_by_side() -> None:
    report = made_up.gpu_wins()
    (chart,) = check_charts(report)
    assert chart.is_by_device
    assert chart.x_labels[0] == "H100 SXM5 80GB"
    assert chart.x_labels[-1] == made_up.CPU_NAME
    assert {len(series.points) for series in chart.series} == {1}
    too_big = next(series for series in chart.series if series.name == "GTX 1050 Ti")
    assert too_big.points[0].is_too_big


def test_the_cpu_comes_first_and_figures_are_kept() -> None:
    report = sweeps.batch_sizes()
    chart = only(report)
    assert chart.series[0].kind is DeviceKind.CPU
    assert chart.series[0].style == 0
    drawn = {
        (series.name, chart.x_labels[p.row], p.step_ns, p.low_ns, p.high_ns, p.source)
        for series in chart.series
        for p in series.points
    }
    told = {
        (p.device, f"{p.settings['batch_size']:,}", p.step_ns, p.low_ns, p.high_ns, p.source)
        for p in report.points
    }
    assert drawn == told
    assert {p.source for p in chart.series[0].points} == set(Source)


def test_the_parameters_have_a_chart_of_their_own_where_they_grow() -> None:
    by_width, by_parameters = sweep_charts(sweeps.widths())
    assert by_width.x.label == "width"
    assert by_parameters.x.label == "parameters"
    assert by_parameters.x_labels[0] == "304"
    assert {mark.label.partition(" faster")[0] for mark in by_parameters.crossovers} == {
        "T4",
        "RTX 4090",
    }


def test_a_failed_point_is_in_no_chart() -> None:
    by_width, _ = sweep_charts(sweeps.widths())
    assert "2,048" not in by_width.x_labels


def test_threads_share_a_chart_and_a_gpu_is_drawn_once() -> None:
    chart = only(sweeps.grid(threads=(1, 2)))
    assert [series.name for series in chart.series] == [
        f"{sweeps.CPU_NAME}, threads 1",
        f"{sweeps.CPU_NAME}, threads 2",
        "T4",
        "RTX 4090",
    ]
    assert any(mark.label.startswith("T4 (threads 2) ") for mark in chart.crossovers)


def test_each_held_setting_has_a_chart() -> None:
    charts = sweep_charts(sweeps.grid(depths=(2, 4, 8)))
    assert [chart.note for chart in charts] == ["depth 2", "depth 4", "depth 8"]
    steps = [chart.series[0].points[0].step_ns for chart in charts]
    assert steps == sorted(steps)


def test_along_threads_the_cpu_is_one_device() -> None:
    points = [
        sweeps.CPU.point({"threads": n}, 1_000 / n, source=Source.MEASURED) for n in (1, 2, 4)
    ]
    points = [
        msgspec.structs.replace(
            point,
            device=f"{point.device} ({point.settings['threads']} "
            f"thread{'s' * (point.settings['threads'] != 1)})",
            processor=point.device,
        )
        for point in points
    ]
    points += [sweeps.T4.point({"threads": n}, 1_000) for n in (1, 2, 4)]
    axis = SweepAxis(name="threads", role=AxisRole.THREADS, values=(1, 2, 4))
    chart = only(sweeps.report([axis], points))
    assert [(series.name, len(series.points)) for series in chart.series] == [
        (sweeps.CPU_NAME, 3),
        ("T4", 3),
    ]


def test_along_the_number_of_gpus_the_chart_says_that_the_work_grows() -> None:
    axis = SweepAxis(name="num_devices", role=AxisRole.NUM_DEVICES, values=(1, 2))
    points = [sweeps.T4.point({"num_devices": n}, 100) for n in (1, 2)]
    assert "each GPU adds a batch" in only(sweeps.report([axis], points)).note


def test_words_stand_side_by_side() -> None:
    chart = only(sweeps.words())
    assert chart.x.scale is Scale.CATEGORY
    assert chart.x_labels == ("relu", "tanh")
    assert all(point.is_too_big for point in chart.series[1].points)


def test_nothing_to_draw() -> None:
    assert sweep_charts(sweeps.nothing()) == ()
    assert sweep_charts(msgspec.structs.replace(sweeps.batch_sizes(), axes=())) == ()


def test_a_check_with_nothing_in_it_has_no_chart() -> None:
    report = msgspec.structs.replace(made_up.cpu_wins(), results=())
    empty = tuple(msgspec.structs.replace(curve, points=()) for curve in report.curves)
    assert check_charts(msgspec.structs.replace(report, curves=empty)) == ()
    assert check_charts(msgspec.structs.replace(report, curves=())) == ()


@pytest.mark.parametrize(
    ("value", "text"), [(65_536, "65,536"), (0.125, "0.125"), ("re\x1blu", "re\\x1blu")]
)
def test_values_of_axes(value: int | float | str, text: str) -> None:
    assert value_text(value) == text


def test_words_of_axes() -> None:
    assert axis_word("num_parameters") == "parameters"
    assert settings_text({"batch_size": 64, "act": "relu"}) == "batch size 64, act relu"

"""The document and the charts of a sweep."""

from __future__ import annotations

import re
from functools import partial

import msgspec
import pytest

from breakeven.errors import Caveat
from breakeven.report import show
from breakeven.report.chart import Chart, Scale
from breakeven.report.check import check_charts
from breakeven.report.sweep import sweep_charts
from breakeven.report.text import duration_with_interval
from breakeven.timing import BUSY_MACHINE, Source
from breakeven.verdict import (
    AxisRole,
    DeviceKind,
    NoCrossover,
    SweepAxis,
    SweepCrossover,
    SweepReport,
)
from factories import reports, terminal
from factories import sweeps as made_up
from factories.terminal import flat

shown = partial(
    terminal.shown,
    shows=partial(show, hints=("Every number as JSON: --json, or -o sweep.json",)),
    height=25,
)


def with_outcomes(*outcomes: NoCrossover) -> SweepReport:
    found = tuple(
        SweepCrossover(device=f"GPU {i}", cpu=made_up.CPU.name, held={}, outcome=outcome)
        for i, outcome in enumerate(outcomes)
    )
    return msgspec.structs.replace(made_up.batch_sizes(), crossovers=found)


def none(faster: DeviceKind | None) -> NoCrossover:
    return NoCrossover(none_because="GPU 0 is so.", faster=faster, searched=(16, 65_536))


def test_many_sizes_are_thinned_and_many_devices_take_several_tables() -> None:
    text = shown(made_up.large())
    assert "20 of 100 sizes; all by --json" in text
    assert text.count("ms  ○") > 100
    assert re.search(r"batch size +CPU +GPU 0 ", text)
    assert re.search(r"batch size +GPU 6 +GPU 7 +GPU 8", text)


@pytest.mark.parametrize(
    ("report", "first_line"),
    [
        (made_up.batch_sizes(), "A GPU pays off from batch size 413 on (294–586): RTX 4090."),
        (made_up.cpu_wins(), "No GPU pays off at any batch size searched, 16 to 128."),
        (made_up.words(), "The CPU has the shortest step at 2 of 2 points."),
        (made_up.nothing(), "No point of the grid gave an answer."),
        (
            with_outcomes(none(DeviceKind.GPU), none(DeviceKind.CPU)),
            "A GPU pays off at every batch size searched, 16 to 65,536: GPU 0.",
        ),
        (
            with_outcomes(none(None)),
            "No GPU pays off for good from any batch size searched, 16 to 65,536.",
        ),
        (
            made_up.grid(),
            "A GPU pays off in 2 of 2 settings, at the earliest from batch size 417 on (294–578) "
            "(RTX 4090).",
        ),
    ],
)
def test_the_answer_comes_first(report: SweepReport, first_line: str) -> None:
    assert flat(shown(report)).startswith(first_line)


def test_several_settings_are_a_table_with_a_block_each_up_to_a_cap() -> None:
    text = shown(made_up.grid(depths=(2, 4, 6, 8)))
    assert "threads 2, depth 8  187 (138–249)   105 (74–146)\n" in text
    assert text.count("Step time and speed against this CPU along the batch size, depth ") == 3
    assert "and 1 more setting, listed by --json" in text
    # Predictions of a GPU do not depend on the CPU's threads: one column for both.
    assert "CPU, threads 1  CPU, threads 2        T4  RTX 4090\n" in text


def test_the_cpu_is_named_by_its_threads_where_its_name_holds_them() -> None:
    report = made_up.grid()
    threads = {1: " (1 thread)", 2: " (2 threads)"}
    points = tuple(
        msgspec.structs.replace(
            point,
            device=point.device + threads[point.settings["threads"]],
            processor=point.device,
        )
        if point.kind is DeviceKind.CPU
        else point
        for point in report.points
    )
    text = shown(msgspec.structs.replace(report, points=points))
    assert "\nbatch size  CPU (1 thread)  CPU (2 threads)        T4  RTX 4090\n" in text
    assert "  a this CPU (1 thread)   b this CPU (2 threads)   c T4" in text
    # It is that of the host, which is named already.
    assert "\nCPU: " not in text


def test_another_cpu_than_the_host_is_named() -> None:
    report = made_up.batch_sizes()
    host = msgspec.structs.replace(report.host, name="reference server")
    text = shown(msgspec.structs.replace(report, host=host))
    assert "\nhost: reference server · " in text
    assert "\nCPU: AMD EPYC 7B13\n" in text


def test_a_narrow_table_of_crossovers_never_cuts_a_figure() -> None:
    text = shown(made_up.grid(depths=(2, 4)), columns=30)
    figures = re.findall(r"\d+ \(\d+–\d+\)", text.partition("Step time and speed")[0])
    assert len(figures) == 8
    assert "…" not in text.partition("Step time and speed")[0]


def test_failures_are_grouped_by_reason() -> None:
    report = made_up.nothing()
    same = tuple(msgspec.structs.replace(one, message="out of memory") for one in report.failures)
    text = flat(shown(msgspec.structs.replace(report, failures=same)))
    assert "7 points failed width 16; width 32; width 64; width 128; and 3 more out of" in text
    assert text.count("out of memory") == 1


def test_caveats_say_where_they_hold() -> None:
    report = made_up.batch_sizes()
    caveat = Caveat(code="few-steps", message="three steps only.")
    busy = Caveat(code=BUSY_MACHINE, message="other programs kept half of the CPU busy")
    first, second, *rest = report.points
    points = (
        msgspec.structs.replace(first, caveats=(caveat, busy)),
        *(msgspec.structs.replace(second, caveats=(caveat,)), *rest),
    )
    text = flat(shown(msgspec.structs.replace(report, points=points)))
    assert "few-steps three steps only. (AMD EPYC 7B13, T4; 2 of 26 times)" in text
    assert "short-run the step was measured over 43 steps only. few-steps" in text
    careful = text.index("Careful: other programs kept half of the CPU busy. Run it again")
    assert careful < text.index("examples/disc_mlp.py")
    assert text.count("kept half of the CPU busy") == 1
    assert "(so in " not in text


def only(report: SweepReport) -> Chart:
    (chart,) = sweep_charts(report)
    return chart


def test_a_check_has_one_chart_along_its_batch_sizes() -> None:
    (chart,) = check_charts(reports.cpu_wins())
    assert chart.title == "Speed against this CPU along the batch size"
    assert [series.name for series in chart.series] == ["this CPU", "T4", "RTX 4090"]
    assert chart.x.scale is chart.y.scale is Scale.LOG
    (mark,) = chart.crossovers
    assert (mark.x, mark.low, mark.high) == (640, 410, 1_300)
    assert mark.label == "RTX 4090 faster from 640 (410–1,300)"
    assert mark.style == chart.series[2].style


def test_the_cpu_comes_first_and_figures_are_kept() -> None:
    report = made_up.batch_sizes()
    chart = only(report)
    assert chart.series[0].style == 0
    drawn = {
        (series.name, chart.x_labels[p.row], p.step_ns, p.text.split(",")[0], p.source)
        for series in chart.series
        for p in series.points
    }
    told = {
        (
            "this CPU" if p.kind is DeviceKind.CPU else p.device,
            f"{p.settings['batch_size']:,}",
            p.step_ns,
            duration_with_interval(p.step_ns, p.low_ns, p.high_ns),
            p.source,
        )
        for p in report.points
    }
    assert drawn == told
    assert {p.source for p in chart.series[0].points} == set(Source)


def test_the_parameters_have_a_chart_of_their_own_where_they_grow() -> None:
    by_width, by_parameters = sweep_charts(made_up.widths())
    assert by_width.x.label == "width"
    assert by_parameters.x.label == "parameters"
    assert by_parameters.x_labels[0] == "304"
    assert {mark.label.partition(" faster")[0] for mark in by_parameters.crossovers} == {
        "T4",
        "RTX 4090",
    }


def test_threads_share_a_chart_and_a_gpu_is_drawn_once() -> None:
    chart = only(made_up.grid(threads=(1, 2)))
    assert [series.name for series in chart.series] == [
        "this CPU, threads 1",
        "this CPU, threads 2",
        "T4",
        "RTX 4090",
    ]
    assert any(mark.label.startswith("T4 (threads 2) ") for mark in chart.crossovers)


def test_each_held_setting_has_a_chart() -> None:
    charts = sweep_charts(made_up.grid(depths=(2, 4, 8)))
    assert [chart.note for chart in charts] == ["depth 2", "depth 4", "depth 8"]
    steps = [chart.series[0].points[0].step_ns for chart in charts]
    assert steps == sorted(steps)


def test_along_threads_the_cpu_is_one_device() -> None:
    points = [
        made_up.CPU.point({"threads": n}, 1_000 / n, source=Source.MEASURED) for n in (1, 2, 4)
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
    points += [made_up.T4.point({"threads": n}, 1_000) for n in (1, 2, 4)]
    axis = SweepAxis(name="threads", role=AxisRole.THREADS, values=(1, 2, 4))
    chart = only(made_up.report([axis], points))
    assert [(series.name, len(series.points)) for series in chart.series] == [
        ("this CPU", 3),
        ("T4", 3),
    ]


def test_along_the_number_of_gpus_the_chart_says_that_the_work_grows() -> None:
    axis = SweepAxis(name="num_devices", role=AxisRole.NUM_DEVICES, values=(1, 2))
    points = [made_up.T4.point({"num_devices": n}, 100) for n in (1, 2)]
    assert "each GPU adds a batch" in only(made_up.report([axis], points)).note


def test_words_stand_side_by_side() -> None:
    chart = only(made_up.words())
    assert chart.x.scale is Scale.CATEGORY
    assert chart.x_labels == ("relu", "tanh")
    assert all(point.is_too_big for point in chart.series[1].points)


def test_nothing_to_draw() -> None:
    assert sweep_charts(made_up.nothing()) == ()
    assert sweep_charts(msgspec.structs.replace(made_up.batch_sizes(), axes=())) == ()

"""The GPUs that a speed chart draws, and what its points say."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.device import default_devices
from breakeven.money import gpu_usd_per_hour
from breakeven.report import CheckReport, chart_document
from breakeven.report.chart import Chart
from breakeven.report.check import check_charts
from breakeven.report.speed_chart import chosen_gpus
from factories import reports as made_up

DEFAULTS = [device.name for device in default_devices()]


def chart(report: CheckReport) -> Chart:
    (only,) = check_charts(report)
    return only


def test_of_the_default_devices_the_fastest_and_the_cheapest_as_fast_are_chosen() -> None:
    times_ns = dict.fromkeys(DEFAULTS, 9e6) | {"H100 SXM5 80GB": 1.0e6, "L4": 1.05e6, "T4": 1.2e6}
    chosen = chosen_gpus(times_ns, "H100 SXM5 80GB")
    price = gpu_usd_per_hour("L4")
    assert price is not None
    assert chosen == {
        "H100 SXM5 80GB": "fastest",
        "L4": f"cheapest as fast, ${price:.2f}/h",
    }


def test_one_gpu_may_be_both() -> None:
    chosen = chosen_gpus(dict.fromkeys(DEFAULTS, 9e6) | {"T4": 1e6}, "T4", "first to pay off")
    assert list(chosen) == ["T4"]
    assert chosen["T4"].startswith("first to pay off, $")


def test_a_gpu_without_a_price_is_never_the_cheapest() -> None:
    assert gpu_usd_per_hour("GPU of mine") is None
    assert chosen_gpus({"GPU of mine": 1e6}, "GPU of mine") == {"GPU of mine": "fastest"}


@given(st.dictionaries(st.sampled_from([*DEFAULTS, "A", "B", "C"]), st.floats(1.0, 1e9)))
def test_at_most_three_are_chosen_and_the_best_is_among_them(times_ns: dict[str, float]) -> None:
    best = min(times_ns, key=times_ns.__getitem__, default="")
    chosen = chosen_gpus(times_ns, best)
    assert len(chosen) <= 3
    assert set(chosen) <= set(times_ns)
    assert not best or best in chosen


def test_a_device_that_is_too_small_does_not_make_the_others_asked_for() -> None:
    times_ns = dict.fromkeys(DEFAULTS, 9e6) | {"H100 SXM5 80GB": 1e6, "T4": math.inf}
    assert list(chosen_gpus(times_ns, "H100 SXM5 80GB")) == ["H100 SXM5 80GB"]
    assert chosen_gpus({"T4": math.inf}, "T4") == {"T4": ""}


def test_sizes_that_do_not_fit_are_marked_and_have_no_speed() -> None:
    report = made_up.cpu_wins()
    curves = tuple(
        msgspec.structs.replace(
            curve,
            points=tuple(
                msgspec.structs.replace(point, fits=point.size <= 1_024) for point in curve.points
            ),
        )
        if curve.device == "T4"
        else curve
        for curve in report.curves
    )
    results = tuple(
        msgspec.structs.replace(one, fits=False) if one.device == "T4" else one
        for one in report.results
    )
    drawn = chart(msgspec.structs.replace(report, curves=curves, results=results))
    t4 = next(one for one in drawn.series if one.name == "T4")
    assert [point.x for point in t4.too_big] == [2_048, 4_096, 8_192, 16_384]
    assert all(point.text.endswith(", too big") for point in t4.too_big)
    assert max(point.x for point in t4.curve) == 1_024
    page = chart_document(
        msgspec.structs.replace(report, curves=curves, results=results), ".html"
    ).decode()
    assert "<span>too big for T4</span>" in page
    assert page.count('class="big"') == 4 + 1  # the legend


def test_a_form_of_the_step_at_one_size_is_a_single_point() -> None:
    drawn = chart(made_up.at_their_best())
    forms = [one for one in drawn.series if "generated" in one.name or "graph" in one.name]
    assert len(forms) == 2
    assert {point.x for one in forms for point in one.points} == {100.0}
    assert all(len(one.points) == 1 for one in forms)


def test_the_cpu_is_at_one_and_speeds_are_ratios_of_times() -> None:
    report = made_up.cpu_wins()
    drawn = chart(report)
    cpu, gpu = (
        next(one for one in drawn.series if one.name == name) for name in ("this CPU", "T4")
    )
    assert {point.value for point in cpu.points} == {1.0}
    for mine, other in zip(cpu.points, gpu.points, strict=True):
        assert other.value == pytest.approx(mine.step_ns / other.step_ns)
        assert other.low < other.value < other.high

"""Two runs compared: values, terminal, JSON and command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.cli import main
from breakeven.report import (
    Cell,
    Change,
    CheckReport,
    ClaimOutcome,
    ColumnKind,
    ComparisonReport,
    CrossoverShift,
    RowSource,
    SystemsReport,
    SystemTable,
    TableColumn,
    TableRow,
    compare_reports,
    record,
    show,
    to_json,
)
from breakeven.report.comparison import common_fraction
from breakeven.trace import StepTrace
from breakeven.verdict import (
    Bound,
    Choice,
    CompiledResult,
    CompiledSteps,
    Crossover,
    NoCrossover,
    SweepReport,
)
from factories import reports as made_up
from factories import steps, sweeps, systems, terminal

replace = msgspec.structs.replace


def changed_check() -> CheckReport:
    """Return a later run of the same script: another torch, a sync gone, a finding new."""
    report = made_up.cpu_wins()
    factors = {"T4": 0.5, "RTX 3060": 0.9, made_up.CPU_NAME: 1.2}
    results = [
        _scaled(result, factors.get(result.device, 1.0))
        for result in report.results
        if result.device != "A100 SXM4 80GB"
    ]
    found = report.crossover
    assert isinstance(found, Crossover)
    sync, fused = report.findings
    return replace(
        report,
        host=replace(report.host, torch_version="2.14.0"),
        step=replace(report.step, num_syncs=0, num_ops=111, d2h_bytes=0),
        results=(*results, made_up.gpu("L4", 1e6, 0.9e6, 1.1e6, made_up.Bound.LAUNCH)),
        verdict=replace(report.verdict, choice=Choice.GPU, device="T4", over=made_up.CPU_NAME),
        crossover=replace(found, value=120, low=90, high=200),
        findings=(replace(fused, line=44), replace(sync, code="COPY001", title="a pageable copy")),
    )


def _scaled(timed, factor: float):  # type: ignore[no-untyped-def]
    return replace(
        timed,
        step_ns=timed.step_ns * factor,
        low_ns=timed.low_ns * factor,
        high_ns=timed.high_ns * factor,
    )


def changed_sweep(factor: float = 0.4) -> SweepReport:
    report = sweeps.batch_sizes()
    points = tuple(_scaled(p, factor) if p.device == "T4" else p for p in report.points)
    return replace(report, points=points[:-1])


shown = partial(terminal.shown, shows=partial(show, names=("before.json", "after.json")))


def by_device(report: ComparisonReport) -> dict[str, Change]:
    return {device.device: device.change for device in report.devices}


def test_a_run_against_itself_shows_nothing() -> None:
    for run in (made_up.cpu_wins(), sweeps.widths(), systems.report()):
        report = compare_reports(run, run)
        assert set(by_device(report).values()) == {Change.NOT_SHOWN}
        assert {time.ratio for time in report.times} == {1.0}
        assert report.facts == report.steps == report.claims == ()
        assert report.findings_gone == report.findings_new == ()
        assert report.only_before == report.only_after == report.incomparable == ()
        assert {c.shift for c in report.crossovers} <= {
            CrossoverShift.NOT_SHOWN,
            CrossoverShift.NONE,
        }


def test_only_changes_beyond_the_intervals_count() -> None:
    report = compare_reports(made_up.cpu_wins(), changed_check())
    assert by_device(report) == {
        "RTX 3060": Change.NOT_SHOWN,
        "T4": Change.FASTER,
        made_up.CPU_NAME: Change.SLOWER,
        "RTX 4090": Change.NOT_SHOWN,
    }
    (cpu,) = (time for time in report.times if time.point.device == made_up.CPU_NAME)
    assert cpu.ratio == pytest.approx(1.2)
    assert 1 < cpu.low < 1.2 < cpu.high
    assert [name.device for name in report.only_before] == ["A100 SXM4 80GB"]
    assert [name.device for name in report.only_after] == ["L4"]


@given(factor=st.floats(min_value=0.01, max_value=100))
def test_swapping_the_runs_inverts_the_ratios(factor: float) -> None:
    before, after = sweeps.batch_sizes(), changed_sweep(factor)
    there, back = compare_reports(before, after), compare_reports(after, before)
    opposite = {
        Change.FASTER: Change.SLOWER,
        Change.SLOWER: Change.FASTER,
        Change.NOT_SHOWN: Change.NOT_SHOWN,
    }
    for one in there.times:
        (other,) = (time for time in back.times if time.point == one.point)
        assert other.ratio == pytest.approx(1 / one.ratio)
        assert other.low == pytest.approx(1 / one.high)
        assert other.change is opposite[one.change]


def with_compiled(step_ns: float, mode: str = "default") -> CheckReport:
    """Return a check whose step was predicted compiled on one of its GPUs too."""
    result = CompiledResult(
        device="T4", step_ns=step_ns, low_ns=0.9 * step_ns, high_ns=1.1 * step_ns,
        bound=Bound.LAUNCH, speedup=2.0, pays_after_steps=None,
    )  # fmt: skip
    steps = CompiledSteps(
        mode=mode, is_asked_for_by_script=False, num_graphs=2, num_kernels=9, breaks=(),
        compile_ns=8.6e9, results=(result,),
    )  # fmt: skip
    return replace(made_up.cpu_wins(), compiled=steps)


def test_compiled_steps_are_compared_beside_the_eager_ones() -> None:
    report = compare_reports(with_compiled(1e6), with_compiled(2e6, mode="max-autotune"))
    compiled = [device for device in report.devices if device.variant]
    assert [(one.device, one.variant, one.num_points) for one in compiled] == [
        ("T4", "compiled", 1)
    ]
    assert compiled[0].ratio == pytest.approx(2.0)
    assert compiled[0].change is Change.SLOWER
    lines = shown(report).splitlines()
    assert "  torch.compile: default → max-autotune" in lines
    assert "Of 5 devices: 5 unclear." in lines
    assert "Of 1 compiled step: 1 slower." in lines
    (eager,) = (number for number, line in enumerate(lines) if line.startswith("T4 "))
    assert lines[eager + 1].startswith("T4, compiled ")


def test_step_and_circumstances() -> None:
    report = compare_reports(made_up.cpu_wins(), changed_check())
    assert [(fact.name, fact.before, fact.after) for fact in report.facts] == [
        ("torch", "2.13.0", "2.14.0")
    ]
    steps = {count.name: (count.before, count.after) for count in report.steps}
    assert steps == {"num_ops": (112, 111), "num_syncs": (1, 0), "d2h_bytes": (4, 0)}


def test_a_finding_whose_line_moved_is_the_same() -> None:
    report = compare_reports(made_up.cpu_wins(), changed_check())
    assert [finding.code for finding in report.findings_gone] == ["SYNC001"]
    assert [finding.code for finding in report.findings_new] == ["COPY001"]


def test_of_two_findings_of_one_rule_the_one_on_another_line_is_gone() -> None:
    before = made_up.cpu_wins()
    sync = before.findings[0]
    twice = replace(before, findings=(replace(sync, line=12), sync))
    report = compare_reports(twice, replace(before, findings=(sync,)))
    assert [finding.line for finding in report.findings_gone] == [12]
    assert report.findings_new == ()


@pytest.mark.parametrize("file", ["model.py", "C:\\new\\rnn_stream.py", "a/b/rnn_stream.py"])
def test_findings_of_a_renamed_file_are_the_same(file: str) -> None:
    before = made_up.cpu_wins()
    renamed = tuple(replace(one, file=one.file and file) for one in before.findings)
    report = compare_reports(before, replace(before, findings=renamed[::-1]))
    assert report.findings_gone == report.findings_new == ()


FOUND = Crossover(axis="n", device="T4", value=100, low=80, high=120, searched=(1, 1_000))
NONE = NoCrossover(none_because="the CPU wins", axis="n", searched=(1, 1_000))


@pytest.mark.parametrize(
    ("before", "after", "shift"),
    [
        (FOUND, replace(FOUND, value=40, low=30, high=79), CrossoverShift.EARLIER),
        (FOUND, replace(FOUND, value=200, low=121, high=None), CrossoverShift.LATER),
        (FOUND, replace(FOUND, value=90, low=70, high=110), CrossoverShift.NOT_SHOWN),
        (replace(FOUND, high=None), replace(FOUND, low=300, value=400), CrossoverShift.NOT_SHOWN),
        (FOUND, NONE, CrossoverShift.LOST),
        (NONE, FOUND, CrossoverShift.FOUND),
        (NONE, NONE, CrossoverShift.NONE),
    ],
)
def test_shifts_of_crossovers(
    before: Crossover | NoCrossover, after: Crossover | NoCrossover, shift: CrossoverShift
) -> None:
    run = made_up.cpu_wins()
    (change,) = compare_reports(
        replace(run, crossover=before), replace(run, crossover=after)
    ).crossovers
    assert change.shift is shift


def test_sweeps_are_compared_point_by_point() -> None:
    report = compare_reports(sweeps.batch_sizes(), changed_sweep())
    t4 = next(device for device in report.devices if device.device == "T4")
    assert (t4.num_points, t4.num_faster, t4.num_slower) == (13, 13, 0)
    assert t4.ratio == pytest.approx(0.4)
    assert t4.change is Change.FASTER
    (missing,) = report.only_before
    assert (missing.device, missing.settings) == ("A100 SXM4 80GB", {"batch_size": 65_536})


def test_the_order_of_the_axes_does_not_matter() -> None:
    before = sweeps.grid()
    points = tuple(
        replace(p, settings=dict(reversed(list(p.settings.items())))) for p in before.points
    )
    report = compare_reports(before, replace(before, points=points))
    assert len(report.times) == len(before.points)


def test_systems_are_compared_by_their_tables_and_claims() -> None:
    before = systems.report()
    system = before.systems[0]
    table = system.tables[0]
    rows = (*table.rows[:2], replace(table.rows[2], cells=("T4", systems.estimate(9), 1, 1, 1)))
    claim = replace(system.claims[0], outcome=ClaimOutcome.DISAGREES, ours="3×")
    after = replace(
        before,
        systems=(
            replace(system, tables=(replace(table, rows=rows),), claims=(claim,)),
            *before.systems[1:],
        ),
    )
    report = compare_reports(before, after)
    slower = [time for time in report.times if time.change is Change.SLOWER]
    assert [(t.point.group, t.point.device) for t in slower] == [("rnn-stream", "T4")]
    (change,) = report.claims
    assert (change.before, change.after) == (ClaimOutcome.AGREES, ClaimOutcome.DISAGREES)


def _of_table(
    columns: tuple[tuple[str, ColumnKind], ...], *rows: tuple[Cell, ...]
) -> SystemsReport:
    table = SystemTable(
        title="Times",
        columns=tuple(TableColumn(name=name, kind=kind) for name, kind in columns),
        rows=tuple(TableRow(source=RowSource.PREDICTED, cells=cells) for cells in rows),
    )
    return replace(systems.report(), systems=(systems.system(tables=(table,), claims=()),))


def test_rows_of_a_table_are_told_apart_by_their_size() -> None:
    columns = (("size", ColumnKind.BYTES), ("time", ColumnKind.TIME_NS))
    copies = _of_table(columns, (4_000, systems.estimate(1)), (64_000, systems.estimate(2)))
    report = compare_reports(copies, copies)
    assert [time.point.device for time in report.times] == ["4,000 bytes", "64,000 bytes"]


def test_a_count_beside_the_figures_may_change() -> None:
    columns = (
        ("device", ColumnKind.TEXT), ("time", ColumnKind.TIME_NS), ("launches", ColumnKind.COUNT)
    )  # fmt: skip
    before = _of_table(columns, ("T4", systems.estimate(1), 9_000))
    after = _of_table(columns, ("T4", systems.estimate(9), 9_100))
    report = compare_reports(before, after)
    assert [(t.point.device, t.change) for t in report.times] == [("T4", Change.SLOWER)]
    assert not report.only_before


def test_a_time_of_zero_is_set_apart() -> None:
    before = sweeps.batch_sizes()
    first, *others = before.points
    zero = replace(first, step_ns=0.0, low_ns=0.0, high_ns=0.0)
    report = compare_reports(before, replace(before, points=(zero, *others)))
    assert [name.device for name in report.incomparable] == [first.device]
    assert "Not to be compared" in shown(report)


def test_golden_at_80_columns(check_golden: Callable[[str, str], None]) -> None:
    check = shown(compare_reports(made_up.cpu_wins(), changed_check()))
    sweep = shown(compare_reports(sweeps.batch_sizes(), changed_sweep()))
    check_golden("terminal_compare.txt", f"{check}\n{'=' * 80}\n\n{sweep}")


def test_the_command_compares_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    before, after, sweep = (tmp_path / name for name in ("a.json", "b.json", "sweep.json"))
    before.write_bytes(to_json(made_up.cpu_wins()))
    after.write_bytes(to_json(changed_check()))
    sweep.write_bytes(to_json(sweeps.widths()))
    assert main(["compare", str(before), str(after)]) == 0
    assert "Of 4 devices: 1 faster, 1 slower, 2 unclear." in capsys.readouterr().out
    assert main(["compare", str(before), str(after), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["verdicts"]["after"]["choice"] == "gpu"
    assert main(["compare", str(before), str(sweep)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "of breakeven check" in captured.err
    assert "of breakeven sweep" in captured.err
    assert main(["compare", str(before)]) == 2
    assert main(["compare", str(before), str(tmp_path / "absent.json")]) == 3


def _on_t4(
    step_ns: float, bound: Bound = Bound.MEMORY, *, host: str = "cpu", num_layers: int = 4
) -> CheckReport:
    report = made_up.cpu_wins()
    result = made_up.gpu("T4", step_ns, step_ns / 1.5, step_ns * 1.5, bound)
    return replace(
        report,
        results=(report.results[0], result),
        host=replace(report.host, name=host),
        recording=record(_step(["mm", "relu"] * num_layers), steps.HOST),
    )


def _step(names: list[str]) -> StepTrace:
    return StepTrace(events=tuple(steps.op(1.0, name=name) for name in names))


def _t4_change(before: CheckReport, after: CheckReport) -> tuple[float, Change]:
    found = next(t for t in compare_reports(before, after).times if t.point.device == "T4")
    return found.high / found.ratio, found.change


def test_similar_predictions_for_one_gpu_share_most_of_their_error() -> None:
    independent = math.exp(math.hypot(math.log(1.5), math.log(1.5)))
    before, similar = _on_t4(1e6), _on_t4(1.6e6, num_layers=8)
    width, change = _t4_change(before, similar)
    assert width < independent**0.7
    assert change is Change.SLOWER
    recording = similar.recording
    assert recording is not None
    of_t4 = similar.results[1]
    for after in (
        _on_t4(1.6e6, Bound.COMPUTE),
        _on_t4(1.6e6, host="another"),
        _on_t4(2.1e6),
        _on_t4(1.6e6, num_layers=9),
        replace(similar, recording=None),
        replace(similar, recording=replace(recording, calibration="another")),
        replace(similar, results=(similar.results[0], replace(of_t4, precision="fp16"))),
        replace(similar, results=(similar.results[0], replace(of_t4, calibrated_on="2026-11-28"))),
    ):
        assert _t4_change(before, after)[0] == pytest.approx(independent)
    assert _t4_change(before, _on_t4(1.6e6, Bound.COMPUTE))[1] is Change.NOT_SHOWN
    # Each run measured its host, which limits these steps.
    fed = _on_t4(1e6, Bound.LAUNCH)
    assert _t4_change(fed, fed)[0] == pytest.approx(independent)


def test_recordings_without_a_calibration_are_independent() -> None:
    older = _on_t4(1e6)
    assert older.recording is not None
    older = replace(older, recording=replace(older.recording, calibration=""))
    independent = math.exp(math.hypot(math.log(1.5), math.log(1.5)))
    assert _t4_change(older, older)[0] == pytest.approx(independent)


def test_operators_are_common_by_name_as_often_as_both_have_them() -> None:
    # Two of mm and one of relu, of the five operators of the longer step.
    one, other = _step(["mm", "mm", "relu"]), _step(["mm", "mm", "mm", "relu", "sum"])
    assert common_fraction(one, other) == common_fraction(other, one) == 0.6
    assert common_fraction(one, one) == 1
    assert common_fraction(one, _step(["conv"])) == common_fraction(one, _step([])) == 0
    assert common_fraction(_step([]), _step([])) == 0

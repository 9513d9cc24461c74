from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from breakeven.advise import Diagnosis, Match
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.errors import BreakevenError, StoredDataError
from breakeven.report import ExplainReport, PlanStep, record, to_json
from breakeven.simulate import CAPTURED, Edit, Finding, Severity, build_program
from breakeven.studies import explain_run, full_timeline
from breakeven.studies.comparison import compare_devices
from breakeven.studies.explanation import cumulative_plan
from breakeven.trace import (
    Copy,
    Event,
    HostWork,
    ModelCall,
    Op,
    Phase,
    RunFacts,
    SourceText,
    StepTrace,
    Sync,
    TensorSpec,
)
from factories.reports import MS, cpu, cpu_wins
from factories.steps import at
from factories.sweeps import widths

DEVICE_TENSOR = TensorSpec(shape=(64, 1024), dtype="float32", device="cuda:0", storage=1)
WEIGHT = TensorSpec(shape=(1024, 1024), dtype="float32", device="cuda:0", storage=2)
RESULT = TensorSpec(shape=(64, 1024), dtype="float32", device="cuda:0", storage=3)
TRACE = StepTrace(
    events=(
        Copy(source="cpu", destination="cuda:0", num_bytes=262_144, location=at(3), storage=1),
        Op(
            name="aten.mm.default",
            inputs=(DEVICE_TENSOR, WEIGHT),
            outputs=(RESULT,),
            location=at(4),
            module="Net.layer",
        ),
        Op(name="aten.relu.default", inputs=(RESULT,), outputs=(RESULT,), location=at(4)),
        Sync(kind="item", num_bytes=4, location=at(5), phase=Phase.FORWARD),
    ),
    batch_size=64,
    num_parameters=1024 * 1024,
    peak_memory_bytes=10_000_000,
)


def stored_check(tmp_path: Path, **changes: Any) -> Path:
    recording = record(TRACE, reference_host(), sources=(SourceText(path="t.py", text="x = 1\n"),))
    report = msgspec.structs.replace(cpu_wins(), recording=recording, **changes)
    path = tmp_path / "run.json"
    path.write_bytes(to_json(report, with_recording=True))
    return path


def test_a_stored_check_is_explained_on_its_devices(tmp_path: Path) -> None:
    report = explain_run(stored_check(tmp_path))

    assert isinstance(report, ExplainReport)
    assert {"T4", "RTX 4090"} <= {result.device for result in report.results}
    assert len(report.results) == len(cpu_wins().results)
    assert sum(part.time_ns for part in report.attribution.parts) == report.attribution.step_ns
    assert report.attribution.step_ns == round(report.step_ns)
    assert {finding.line for finding in report.findings if finding.code == "SYNC001"} == {5}


def test_other_devices_can_be_asked_for_and_the_first_is_taken_apart(tmp_path: Path) -> None:
    report = explain_run(stored_check(tmp_path), devices=("H100 SXM5 80GB", "T4"))

    assert report.device == "H100 SXM5 80GB"
    names = [result.device for result in report.results if result.source == "predicted"]
    assert names == ["H100 SXM5 80GB", "T4"]


def test_an_explanation_can_be_stored_and_explained_again(tmp_path: Path) -> None:
    first = explain_run(stored_check(tmp_path), devices=("T4",))
    path = tmp_path / "explained.json"
    path.write_bytes(to_json(first, with_recording=True))

    assert explain_run(path) == first


def test_only_findings_of_the_rules_asked_for_are_left(tmp_path: Path) -> None:
    everything = explain_run(stored_check(tmp_path))
    one = explain_run(stored_check(tmp_path), rules=("sync_item",))

    assert {finding.code for finding in one.findings} == {"SYNC001"}
    assert one.num_suppressed == len(everything.findings) - len(one.findings)


def test_an_unknown_rule_is_an_error_with_close_names(tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match="no rule 'SYNC_ITEMS'") as raised:
        explain_run(stored_check(tmp_path), rules=("SYNC_ITEMS",))

    assert "SYNC_ITEM" in (raised.value.hint or "")


def test_the_plan_begins_with_the_step_as_it_is_and_each_fix_shortens_it(tmp_path: Path) -> None:
    report = explain_run(stored_check(tmp_path), devices=("T4",))

    first, *fixes = report.plan
    times = [step.results[-1].step_ns for step in report.plan]
    assert (first.code, first.results) == ("", report.results)
    assert fixes
    assert times == sorted(times, reverse=True)
    assert {step.code for step in fixes} <= {finding.code for finding in report.findings}


def test_the_timeline_names_what_happens_and_some_of_it_is_critical(tmp_path: Path) -> None:
    report = explain_run(stored_check(tmp_path))

    assert {"aten.mm.default", "wait (item)"} <= {span.name for span in report.timeline}
    assert any(span.is_critical for span in report.timeline)
    assert full_timeline(report) == report.timeline
    assert all(0 <= span.start_ns <= span.end_ns for span in report.timeline)


def test_a_run_without_a_recording_says_where_to_get_one(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_bytes(to_json(cpu_wins()))

    with pytest.raises(StoredDataError, match="holds no recorded step") as raised:
        explain_run(path)

    assert "-o FILE" in (raised.value.hint or "")


@pytest.mark.parametrize("length", [0.2, 0.5, 0.9, 0.999])
def test_a_file_cut_off_is_an_error(tmp_path: Path, length: float) -> None:
    path = stored_check(tmp_path)
    document = path.read_bytes()
    path.write_bytes(document[: int(len(document) * length)])

    with pytest.raises(StoredDataError, match=r"cut off|not JSON"):
        explain_run(path)


def _edited(path: Path, change: Any) -> Path:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["recording"]["trace"]["events"].pop(),
        lambda d: d["recording"]["trace"]["events"][1]["inputs"][0].update(shape=[1, 1]),
        lambda d: d["recording"]["sources"][0].update(text="y = 2"),
        lambda d: d["recording"]["host"].update(op_ns=1.0),
        lambda d: d["recording"].update(sha256="0" * 64),
    ],
    ids=["event", "shape", "source", "host", "digest"],
)
def test_a_recording_edited_by_hand_is_an_error(tmp_path: Path, change: Any) -> None:
    with pytest.raises(StoredDataError, match="edited or damaged"):
        explain_run(_edited(stored_check(tmp_path), change))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["recording"]["trace"]["events"][1].update(type="oq"),
        lambda d: d["recording"]["trace"]["events"][1].update(inputs=3),
        lambda d: d["recording"].update(trace=None),
    ],
    ids=["tag", "inputs", "trace"],
)
def test_a_recording_that_breaks_its_schema_is_an_error(tmp_path: Path, change: Any) -> None:
    with pytest.raises(StoredDataError, match="edited or damaged"):
        explain_run(_edited(stored_check(tmp_path), change))


def test_a_recording_of_another_version_is_an_error(tmp_path: Path) -> None:
    def newer(document: Any) -> None:
        document["recording"]["version"] = 99

    with pytest.raises(StoredDataError, match="recorded in version 99"):
        explain_run(_edited(stored_check(tmp_path), newer))


def test_a_forged_recording_is_an_error_and_no_crash(tmp_path: Path) -> None:
    odd = TensorSpec(shape=(3,), dtype="float33", device="cuda:0", storage=9)
    forged = msgspec.structs.replace(
        TRACE, events=(Op(name="aten.mm.default", inputs=(odd,), outputs=(odd,)),)
    )
    report = msgspec.structs.replace(cpu_wins(), recording=record(forged, reference_host()))
    path = tmp_path / "forged.json"
    path.write_bytes(to_json(report, with_recording=True))

    with pytest.raises(StoredDataError, match="cannot be simulated"):
        explain_run(path)


def test_attribution_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "explained.json"
    path.write_bytes(to_json(explain_run(stored_check(tmp_path)), with_recording=True))

    def longer(document: Any) -> None:
        document["attribution"]["parts"][0]["time_ns"] += 1

    with pytest.raises(StoredDataError, match="do not add up"):
        explain_run(_edited(path, longer))


def test_a_sweep_is_no_recorded_step(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_bytes(to_json(widths()))

    with pytest.raises(StoredDataError, match="records no step"):
        explain_run(path)


HOST = reference_host()
T4 = find_device("T4")


def product(width: int) -> Op:
    sides = TensorSpec(shape=(width, width), dtype="float32", device="cuda:0")
    return Op(name="aten.mm.default", inputs=(sides, sides), outputs=(sides,))


PRODUCTS = StepTrace(
    events=(product(4096), product(4096), HostWork(kind="script", duration_ns=20_000_000))
)


def fix(
    code: str, replaced: dict[int, tuple[Event, ...]], severity: Severity = Severity.HIGH,
    **options,
) -> Diagnosis:  # fmt: skip
    return Diagnosis(
        finding=Finding(
            code=code, cause=code, title=code, file="t.py", line=3, share_fraction=0.5,
            gain_fraction=0.5, fix="", severity=severity, fixed_ns=1.0,
        ),
        match=Match(title=code, fix="", edit=Edit(replaced=replaced), **options),
    )  # fmt: skip


def plan(*fixes: Diagnosis, again: Sequence[Diagnosis] = ()) -> tuple[PlanStep, ...]:
    measured = (cpu(60 * MS, 59 * MS, 61 * MS),)
    step = compare_devices(build_program(PRODUCTS), (T4,), HOST, measured)
    return cumulative_plan(step, fixes, again=lambda *_: again)


def times(steps: tuple[PlanStep, ...]) -> list[float]:
    return [step.results[-1].step_ns for step in steps]


def test_fixes_of_different_events_are_applied_together() -> None:
    steps = plan(fix("A", {0: ()}), fix("B", {1: ()}))

    assert [step.code for step in steps] == ["", "A", "B"]
    as_is, one, both = times(steps)
    assert as_is > one > both


def test_a_fix_of_changed_events_is_found_again_in_the_changed_step() -> None:
    # A halves the first product, B was to fuse both into one: what is left of B is asked anew.
    fused = product(1024)
    steps = plan(
        fix("A", {0: (product(2048),)}),
        fix("B", {0: (fused,), 1: ()}),
        again=(fix("B", {0: (fused,), 1: (), 2: ()}),),
    )

    assert [step.code for step in steps] == ["", "A", "B"]
    (alone,) = plan(fix("C", {0: (fused,), 1: (), 2: ()}))[1:]
    assert times(steps)[-1] == pytest.approx(alone.results[-1].step_ns)


@pytest.mark.parametrize("again", [(), (fix("B", {0: ()}, Severity.INFO),)])
def test_a_finding_that_is_gone_is_no_part_of_the_plan(again: tuple[Diagnosis, ...]) -> None:
    steps = plan(fix("A", {0: ()}), fix("B", {0: (product(8),), 1: ()}), again=again)

    assert [step.code for step in steps] == ["", "A"]


def test_work_of_the_host_that_a_fix_removes_is_taken_off_the_cpu_too() -> None:
    steps = plan(fix("A", {2: ()}), fix("B", {1: ()}))

    cpus = [step.results[0] for step in steps]
    assert [result.step_ns / MS for result in cpus] == pytest.approx([60, 40, 40])
    assert [result.source for result in cpus] == ["measured", "predicted", "predicted"]


def test_a_step_that_is_captured_stays_so() -> None:
    steps = plan(fix("A", {}, scenario=CAPTURED), fix("B", {1: ()}))

    assert times(steps)[1] < times(steps)[0]
    assert times(steps)[2] < times(steps)[1]


def test_findings_without_a_simulated_gain_are_left_out() -> None:
    gone = fix("A", {0: ()})
    wrong = Diagnosis(finding=replace(gone.finding, severity=Severity.ERROR), match=gone.match)
    assert [step.code for step in plan(wrong)] == [""]


def test_calls_of_models_are_where_their_events_are() -> None:
    call = ModelCall(
        model="Net", location=None, stack=-1, is_training=False, has_grad=False,
        is_used_in_backward=False, first_event=1, num_events=2,
    )  # fmt: skip
    trace = replace(PRODUCTS, facts=RunFacts(model_calls=(call,)))

    (moved,) = Edit(replaced={0: (), 2: ()}).apply(trace).facts.model_calls
    assert (moved.first_event, moved.num_events) == (0, 1)
    (moved,) = Edit(replaced={0: (product(1),) * 3}).apply(trace).facts.model_calls
    assert (moved.first_event, moved.num_events) == (3, 2)

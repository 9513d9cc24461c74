from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from breakeven.cost import reference_host
from breakeven.errors import BreakevenError, StoredDataError
from breakeven.report import read_report, to_json
from breakeven.simulate import Severity
from breakeven.studies import explain_run, full_timeline
from breakeven.trace import Copy, Op, Phase, SourceText, StepTrace, Sync, TensorSpec
from breakeven.verdict import CheckReport, ExplainReport, record
from factories.reports import cpu_wins
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


def test_the_json_document_holds_no_recording(tmp_path: Path) -> None:
    report = explain_run(stored_check(tmp_path))

    assert json.loads(to_json(report))["recording"] is None


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


def test_severity_follows_from_the_gain(tmp_path: Path) -> None:
    for finding in explain_run(stored_check(tmp_path)).findings:
        assert finding.gain_low_fraction <= finding.gain_fraction <= finding.gain_high_fraction
        if finding.severity is Severity.HIGH:
            assert finding.gain_fraction >= 0.2
        if finding.severity is Severity.INFO:
            assert finding.gain_fraction < 0.01


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


def test_a_stored_check_keeps_its_type(tmp_path: Path) -> None:
    assert isinstance(read_report(stored_check(tmp_path)), CheckReport)

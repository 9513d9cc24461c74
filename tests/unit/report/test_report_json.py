"""Documents of all kinds as JSON, their schemas, and what is read back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from breakeven.device import load_catalogue, load_host_cpus
from breakeven.money import shipped_prices
from breakeven.report import (
    all_rule_pages,
    compare_reports,
    json_schema,
    kinds_by_schema,
    stored_calibration,
    stored_devices,
    stored_hosts,
    stored_rules,
    to_json,
)
from breakeven.report.shown import encode_document
from factories import explanations, normals, reports, sweeps, systems, tunings
from factories.accuracy import mixed
from factories.hosts import calibration

FOLDER = Path(__file__).parents[3] / "docs" / "schema"
# By the name of the schema; of a validation there is one below, which needs a folder.
DOCUMENTS: dict[str, list[Any]] = {
    "check": [make() for make in reports.ALL.values()],
    "explain": [make() for make in explanations.ALL.values()],
    "normal": [normals.all_paces()],
    "sweep": [make() for name, make in sweeps.ALL.items() if name != "hostile"],
    "tune": [make() for make in tunings.ALL.values()],
    "workloads": [systems.report()],
    "compare": [compare_reports(reports.cpu_wins(), reports.gpu_wins())],
    "calibrate": [
        stored_calibration(
            calibration(op=1_000.0),
            single_thread_speed=2.0,
            is_remembered=True,
            other_load_fraction=0.0,
        )
    ],
    "devices": [stored_devices(load_catalogue())],
    "hosts": [stored_hosts(load_host_cpus())],
    "prices": [shipped_prices()],
    "rules": [stored_rules(all_rule_pages())],
}


def published(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.schema.json").read_bytes())


def ensure_follows(report: Any, name: str) -> dict[str, Any]:
    """Check a document against its published schema, and return it."""
    schema = published(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    text = to_json(report)
    document = json.loads(text)
    validator.validate(document)
    root = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    assert document.keys() <= root["properties"].keys()
    for key in root["required"]:
        without = {name: value for name, value in document.items() if name != key}
        assert not validator.is_valid(without), key
    assert not validator.is_valid({**document, "schema_version": 9})
    assert text.endswith(b"}\n")
    return document


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_follow_their_schema_and_are_read_back(name: str) -> None:
    for report in DOCUMENTS[name]:
        ensure_follows(report, name)
        assert msgspec.json.decode(to_json(report), type=type(report)) == report


def test_a_validation_follows_its_schema(tmp_path: Path) -> None:
    ensure_follows(mixed(tmp_path / "t.csv"), "validate")


def test_every_schema_is_published_as_it_is_generated() -> None:
    names = kinds_by_schema()
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.schema.json" for name in names}
    for name in names:
        written = (FOLDER / f"{name}.schema.json").read_bytes()
        assert written == encode_document(json_schema(name)), "see breakeven/report/schema.py"
    command = [sys.executable, "-m", "breakeven.report.schema"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert printed == (FOLDER / "check.schema.json").read_bytes()


@pytest.mark.parametrize("name", kinds_by_schema())
def test_every_key_is_described(name: str) -> None:
    for definition, content in published(name)["$defs"].items():
        if definition in ("Location", "Estimate"):  # whose names say it
            continue
        for key, value in content.get("properties", {}).items():
            is_told = {"description", "const", "enum", "$ref"} & value.keys()
            assert is_told, f"{definition}.{key}"


def test_descriptions_and_limits_come_from_the_types() -> None:
    definitions = json_schema()["$defs"]
    assert definitions["Finding"]["properties"]["share_fraction"]["maximum"] == 1.0
    assert definitions["Verdict"]["properties"]["speedup"]["description"] == (
        "Step time of ``over`` divided by that of ``device``."
    )


def test_the_schema_of_an_explanation_leaves_the_recording_open() -> None:
    definitions = json_schema("explain")["$defs"]
    assert "StepTrace" not in definitions
    recording = definitions["ExplainReport"]["properties"]["recording"]
    assert recording["anyOf"] == [{"type": "object"}, {"type": "null"}]


def test_golden_document(check_golden: Callable[[str, str], None]) -> None:
    check_golden("report_cpu_wins.json", to_json(reports.cpu_wins()).decode())


BROKEN = {
    "share_fraction": replace(
        reports.cpu_wins(),
        findings=(replace(reports.cpu_wins().findings[0], share_fraction=1.2),),
    ),
    "gain_fraction": replace(
        explanations.launch_bound(),
        findings=(replace(explanations.FINDINGS[0], gain_fraction=1.5),),
    ),
    "step_ns": replace(
        sweeps.batch_sizes(), points=(replace(sweeps.batch_sizes().points[0], step_ns=-1.0),)
    ),
    "speedup": replace(tunings.faster(), speedup=float("nan")),
}


@pytest.mark.parametrize("key", BROKEN)
def test_a_report_that_breaks_its_schema_is_refused(key: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        to_json(BROKEN[key])


def test_bytes_of_a_name_that_are_not_utf_8_do_not_break_the_document() -> None:
    report = explanations.with_names(explanations.launch_bound(), "caf\udce9.py")
    document = json.loads(to_json(report))
    assert document["target"] == document["findings"][0]["file"] == "caf\ufffd.py"

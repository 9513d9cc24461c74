"""The published schemas of documents that are no reports, and the documents that follow them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from breakeven.device import load_catalogue, load_host_cpus
from breakeven.report import (
    all_rule_pages,
    json_schema,
    kinds_by_schema,
    stored_calibration,
    stored_devices,
    stored_hosts,
    stored_rules,
    to_json,
)
from breakeven.report.shown import encode_document
from breakeven.verdict import compare_reports
from factories import reports as made_up
from factories.hosts import calibration

FOLDER = Path(__file__).parents[3] / "docs" / "schema"

Document = dict[str, Any]
DOCUMENTS: Mapping[str, Callable[[], bytes]] = {
    "calibrate": lambda: to_json(
        stored_calibration(
            calibration(op=1_000.0),
            single_thread_speed=2.0,
            is_remembered=True,
            other_load_fraction=0.0,
        )
    ),
    "compare": lambda: to_json(
        compare_reports(made_up.cpu_wins(), replace(made_up.gpu_wins(), findings=()))
    ),
    "devices": lambda: to_json(stored_devices(load_catalogue())),
    "hosts": lambda: to_json(stored_hosts(load_host_cpus())),
    "rules": lambda: to_json(stored_rules(all_rule_pages())),
}


def published(name: str) -> Document:
    return json.loads((FOLDER / f"{name}.schema.json").read_bytes())


def test_every_schema_is_published() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        f"{name}.schema.json" for name in kinds_by_schema()
    }


@pytest.mark.parametrize("name", kinds_by_schema())
def test_a_published_schema_is_the_generated_one(name: str) -> None:
    written = (FOLDER / f"{name}.schema.json").read_bytes()
    assert written == encode_document(json_schema(name)), "see breakeven/report/schema.py"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_follows_its_schema(name: str) -> None:
    schema = published(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(DOCUMENTS[name]())
    validator.validate(document)
    root = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    assert document.keys() == root["properties"].keys()
    for key in root["required"]:
        without = {name: value for name, value in document.items() if name != key}
        assert not validator.is_valid(without), key
    assert not validator.is_valid({**document, "schema_version": 9})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_key_of_a_document_is_described(name: str) -> None:
    for definition, content in published(name)["$defs"].items():
        for key, value in content.get("properties", {}).items():
            assert {"description", "const", "enum"} & value.keys(), f"{definition}.{key}"

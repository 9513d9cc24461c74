"""The JSON document, its schema, and reports on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import pytest

from breakeven.errors import BreakevenError, StoredDataError
from breakeven.report import json_schema, read_report, to_json
from breakeven.store import ensure_writable, write_document
from breakeven.verdict import CheckReport
from factories import reports as made_up

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "schema" / "check.schema.json"


def test_schema_file_is_the_generated_schema() -> None:
    command = [sys.executable, "-m", "breakeven.report.schema"]
    generated = subprocess.run(command, capture_output=True, check=True).stdout
    assert SCHEMA_FILE.read_bytes() == generated, "run the command in breakeven/report/schema.py"


@pytest.mark.parametrize("name", made_up.ALL)
def test_document_validates_against_the_schema_file(name: str) -> None:
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(to_json(made_up.ALL[name]()))
    validator.validate(document)
    document["schema_version"] = 9
    assert not validator.is_valid(document)


def test_schema_describes_every_field() -> None:
    definitions = json_schema()["$defs"]
    assert definitions["Finding"]["properties"]["share_fraction"]["maximum"] == 1.0
    assert definitions["Verdict"]["properties"]["speedup"]["description"] == (
        "Step time of ``over`` divided by that of ``device``."
    )
    assert definitions["DeviceResult"]["properties"]["fits"]["description"] == (
        "Whether that fits the device; null where unknown."
    )


def test_golden_document(check_golden: Callable[[str, str], None]) -> None:
    check_golden("report_cpu_wins.json", to_json(made_up.cpu_wins()).decode())


def test_document_is_one_object_with_the_agreed_keys() -> None:
    text = to_json(made_up.cpu_wins()).decode()
    assert text.endswith("}\n")
    document = json.loads(text)
    assert set(document) >= {
        "schema_version",
        "target",
        "host",
        "step",
        "results",
        "verdict",
        "crossover",
        "findings",
    }
    assert document["schema_version"] == 3
    assert document["crossover"]["outcome"] == "found"
    assert document["results"][0]["bound"] == "launch"
    assert json.loads(to_json(made_up.too_close()))["crossover"]["outcome"] == "none"


def test_a_report_that_breaks_its_schema_is_refused() -> None:
    report = made_up.cpu_wins()
    broken = msgspec.structs.replace(report.findings[0], share_fraction=1.2)
    with pytest.raises(msgspec.ValidationError, match="share_fraction"):
        to_json(msgspec.structs.replace(report, findings=(broken,)))


def test_undecodable_bytes_of_a_name_do_not_break_the_document() -> None:
    report = msgspec.structs.replace(made_up.cpu_wins(), target="caf\udce9.py")
    assert json.loads(to_json(report))["target"] == "caf\ufffd.py"


@pytest.mark.parametrize("name", made_up.ALL)
def test_written_reports_are_read_back(name: str, tmp_path: Path) -> None:
    report = made_up.ALL[name]()
    path = tmp_path / "report.json"
    write_document(path, to_json(report), force=False)
    assert read_report(path) == report
    assert read_report(str(path)) == report
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def stored(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(to_json(made_up.cpu_wins())))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document[: len(document) // 2], "is cut off"),
        (lambda _: b"", "is cut off: it is empty"),
        (lambda document: document.replace(b'": ', b'"= '), "is not JSON"),
        (lambda document: document.replace(b'"launch"', b'"magic"'), "results.*bound"),
        (
            lambda document: document.replace(b'"share_fraction": 0.26', b'"share_fraction": 26'),
            "was edited or damaged.*share_fraction",
        ),
        (
            lambda document: document.replace(b'"schema_version": 3', b'"schema_version": 7'),
            "has schema version 7; this breakeven reads version 3",
        ),
        (lambda _: b"[1, 2]", "is no report of breakeven"),
        (lambda _: b'{"name": 1}', "is no report of breakeven"),
        (lambda _: b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_damaged_reports_are_refused_with_the_reason(
    change: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = stored(tmp_path / "report.json", change)
    with pytest.raises(StoredDataError, match=message):
        read_report(path)


def test_absent_report(tmp_path: Path) -> None:
    with pytest.raises(StoredDataError, match="No such file"):
        read_report(tmp_path / "absent.json")


@pytest.mark.parametrize("step", [ensure_writable, write_document])
def test_existing_file_needs_force(step: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("mine")
    document = () if step is ensure_writable else (b"{}\n",)
    with pytest.raises(BreakevenError, match="exists and is not overwritten") as caught:
        step(path, *document, force=False)
    assert "--force" in (caught.value.hint or "")
    assert path.read_text() == "mine"
    step(path, *document, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match="there is no folder"):
        ensure_writable(tmp_path / "absent" / "report.json", force=False)
    with pytest.raises(BreakevenError, match="it is a folder"):
        ensure_writable(tmp_path, force=True)
    with pytest.raises(BreakevenError, match="not a regular file"):
        ensure_writable(Path(os.devnull), force=True)
    with pytest.raises(BreakevenError, match="File name too long"):
        write_document(tmp_path / ("x" * 300), b"{}", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real = tmp_path / "folder" / "report.json"
    real.write_text("old")
    link = tmp_path / "latest.json"
    link.symlink_to(real)
    write_document(link, b"{}\n", force=True)
    assert link.is_symlink()
    assert real.read_text() == "{}\n"


def test_round_trip_type() -> None:
    document = to_json(made_up.gpu_wins())
    assert msgspec.json.decode(document, type=CheckReport) == made_up.gpu_wins()

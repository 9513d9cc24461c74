"""A stored run that is handed on: nothing of the script's text or of its folders is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.cost import reference_host
from breakeven.report import CheckReport, record, to_json, without_source
from breakeven.studies import explain_run
from breakeven.trace import (
    Copy,
    FileChange,
    FileWrite,
    FileWrites,
    Location,
    SourceText,
    StepTrace,
    Sync,
    WriteProtection,
)
from factories.reports import cpu_wins

SECRET = "learning_rate = 0.0123  # nobody's business"


def stored(*files: str, target: str = "train.py") -> CheckReport:
    """Return a check whose step has an event on line 3 of each file."""
    places = [Location(file=file, line=3, function="main") for file in files]
    trace = StepTrace(
        events=(
            Copy(source="cpu", destination="cuda:0", num_bytes=64, location=places[0], storage=1),
            Sync(kind="item", num_bytes=4, location=places[-1], stack=0),
        ),
        stacks=(tuple(places),),
    )
    sources = tuple(SourceText(path=file, text=f"{SECRET}\n") for file in files)
    report = cpu_wins()
    (finding, *_) = report.findings
    return replace(
        report,
        target=target,
        findings=(replace(finding, file=files[0], evidence=f"seen at {files[0]}:3"),),
        recording=record(trace, reference_host(), sources=sources),
    )


def test_neither_text_nor_folders_are_left() -> None:
    report = stored("/home/me/lab/train.py", "/home/me/lab/parts/net.py")
    document = to_json(without_source(report), with_recording=True).decode()
    assert SECRET in to_json(report, with_recording=True).decode()
    assert SECRET not in document
    assert "/home" not in document


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("/home/me/train.py",), ["train.py"]),
        (("/home/me/train.py", "/home/me/parts/net.py"), ["train.py", "parts/net.py"]),
        (("/lab/scripts/train.py", "/lab/net.py"), ["scripts/train.py", "net.py"]),
        # The name of one begins with that of the other.
        (("/lab/net.py", "/lab/net.pyx/train.py"), ["net.py", "net.pyx/train.py"]),
        (("train.py",), ["train.py"]),
    ],
)
def test_files_are_named_within_the_folder_that_holds_them_all(
    files: tuple[str, ...], names: list[str]
) -> None:
    report = without_source(stored(*files))
    assert report.recording is not None
    assert [place.file for place in report.recording.trace.stacks[0]] == names
    (finding,) = report.findings
    assert finding.file == names[0]
    assert finding.evidence == f"seen at {names[0]}:3"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("/home/me/train.py", "train.py"),
        ("/home/me/train.py:step", "train.py:step"),
        ("train.py", "train.py"),
        ("lab.train", "lab.train"),
    ],
)
def test_target_is_named_alike(target: str, name: str) -> None:
    assert without_source(stored("/home/me/net.py", target=target)).target == name


def test_what_the_script_wrote_elsewhere_has_its_name_alone() -> None:
    written = ("/home/me/lab/runs/log.txt", "/scratch/me/model.pt")
    writes = FileWrites(
        protection=WriteProtection.OVERLAY,
        files=tuple(FileWrite(path=path, change=FileChange.CREATED) for path in written),
    )
    report = without_source(replace(stored("/home/me/lab/train.py"), writes=writes))
    assert report.writes is not None
    assert [file.path for file in report.writes.files] == ["runs/log.txt", "model.pt"]
    assert report.findings[0].file == "train.py"


def test_run_without_a_recording_is_the_same_run() -> None:
    assert without_source(cpu_wins()) == cpu_wins()


def test_such_a_run_is_explained_and_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    report = stored("/home/me/train.py")
    codes: list[list[str]] = []
    for each in (report, without_source(report)):
        path.write_bytes(to_json(each, with_recording=True))
        explained = explain_run(path, devices=("T4",))
        codes.append([caveat.code for caveat in explained.caveats])
        assert explained.attribution.step_ns > 0
    assert [count.count("no-source") for count in codes] == [0, 1]
    # Once more: it is said once.
    path.write_bytes(to_json(without_source(explained), with_recording=True))
    again = explain_run(path)
    assert [caveat.code for caveat in again.caveats].count("no-source") == 1

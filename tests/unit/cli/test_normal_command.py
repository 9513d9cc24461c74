"""The command that judges a speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from breakeven.cli import main
from breakeven.device import FOLDER_VARIABLE
from breakeven.report import to_json
from factories import normals


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "calibrations"))
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "run.json"
    path.write_bytes(to_json(normals.stored_run(normals.small_step()), with_recording=True))
    return path


def test_a_stored_run_is_judged_written_and_shown_again(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = tmp_path / "normal.json"
    arguments = ["normal", str(run_file), "--measured", "T4: 12 ms", "-o", str(answer)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Too slow: T4 should take")
    assert "a slow host" in shown
    assert "breakeven explain" in shown
    assert json.loads(answer.read_bytes())["speeds"][0]["pace"] == "slow"
    assert main(["report", str(answer)]) == 0
    assert capsys.readouterr().out.startswith("Too slow: T4 should take")
    page = tmp_path / "page.html"
    assert main(["report", str(answer), "-o", str(page)]) == 0
    assert "Too slow: T4 should take" in page.read_text("utf-8")
    # A second time, the file is in the way.
    assert main(arguments) == 3


def test_json_is_the_only_output(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["normal", str(run_file), "--measured", "colab T4: 100 it/s", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["speeds"][0]["measured"]["value_ns"] == 1e7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no speed to judge"),
        (("--measured", "T4: 9 bananas"), "no number above 0 with a unit"),
        (("--measured", "T4: 9 ms", "--host", "cloud"), "takes neither --host"),
        (("--measured", "T4: 9 ms", "--", "--epochs", "1"), "arguments after --"),
    ],
)
def test_wrong_command_lines(
    run_file: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["normal", str(run_file), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_stored_run_is_judged_without_torch(run_file: Path) -> None:
    program = (
        "import sys; from breakeven.cli import main; "
        f"code = main(['normal', {str(run_file)!r}, '--measured', 'T4: 9 ms', '--json']); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr

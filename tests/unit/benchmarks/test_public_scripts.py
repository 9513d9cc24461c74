"""The benchmark that tries public scripts: its table, the data it fakes, and its runs."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factories.loaded_scripts import load_benchmark
from factories.processes import is_running, wait_until

TABLE: Any = load_benchmark("public_table")
RUNS: Any = load_benchmark("public_runs")
MAIN: Any = load_benchmark("public_scripts")
DATA: Any = load_benchmark("public_data")

LIMITS = RUNS.Limits(native=20.0, command=20.0, run=10.0)
REPORT = {
    "verdict": {"choice": "cpu"},
    "step": {"num_ops": 12},
    "results": [
        {"kind": "cpu", "device": "some", "step_ns": 2e6},
        {"kind": "gpu", "device": "T4", "step_ns": 5e6},
        {"kind": "gpu", "device": "L4", "step_ns": 4e6},
    ],
    "findings": [
        {"code": "DEV001", "file": "/tmp/a/train.py", "line": 7, "title": "on a GPU this raises"},
        {"code": "SYNC001", "file": None, "line": None, "title": "it waits"},
    ],
    "caveats": [{"code": "uncosted-op", "message": "..."}],
}
# Stands in for breakeven: the harness runs whatever `python -m breakeven` is on the path.
ANSWERS = f"import sys, json; print({json.dumps(REPORT)!r})\n"
FAILS = (
    "import sys; sys.stderr.write('''error: train.py raised KeyError: 'x' at train.py:3\n"
    "  at /tmp/train.py:3\n  the script's last output:\n  | Traceback\n"
    "hint: check that the script runs without breakeven: python train.py\n'''); sys.exit(3)\n"
)


def run_script(
    tmp_path: Path, code: str, breakeven: str = ANSWERS, limits: Any = LIMITS, **keys: Any
) -> Any:
    """Return the outcome of a row whose script has this code."""
    checkout = tmp_path / "repositories" / "owner" / "name"
    checkout.mkdir(parents=True)
    (checkout / "train.py").write_text(code)
    package = tmp_path / "tree" / "src" / "breakeven"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(breakeven)
    runner = RUNS.Runner(
        repositories=tmp_path / "repositories",
        source=tmp_path / "tree",
        commands=("check",),
        limits=limits,
        kept=tmp_path / "kept",
    )
    keys = {"name": "one", "repository": "owner/name", "script": "train.py"} | keys
    return runner.run(TABLE.Script(**keys))


def test_the_table_that_ships_is_read_and_says_which_commits_were_tried() -> None:
    table = TABLE.read_tables([MAIN.TABLE])
    assert len(table.script) > 80
    for script in table.script:
        assert len(table.commits[script.repository]) == 40


ROW = '[[script]]\nname = "a"\nrepository = "o/n"\nscript = "t.py"\n'


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ('[[script]]\nname = "a"\n', "repository"),
        (ROW + "argument = []\n", "argument"),
        (ROW * 2, "two rows are named a"),
        (ROW + 'data = [{ kind = "moon", to = "x" }]\n', "a `kind` of alias, any_checksum"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_with_what_is_wrong(
    tmp_path: Path, rows: str, complaint: str
) -> None:
    (tmp_path / "rows.toml").write_text(rows)
    with pytest.raises(TABLE.TableError, match=complaint):
        TABLE.read_tables([tmp_path / "rows.toml"])


def test_a_script_that_ends_with_0_runs_by_itself_and_its_answer_is_read(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, "print('trained')")
    assert outcome.is_native
    assert outcome.native.exit_code == 0
    answer = outcome.answers["check"]
    assert outcome.is_answered
    assert (answer.verdict, answer.cpu_step_ns, answer.best_gpu) == ("cpu", 2e6, ("L4", 4e6))
    assert answer.raising_lines == ("train.py:7: on a GPU this raises",)
    assert answer.findings == ("DEV001 train.py:7", "SYNC001 -")


def test_a_script_that_still_runs_when_its_time_is_over_runs_by_itself_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    outcome = run_script(tmp_path, code, limits=RUNS.Limits(native=3.0, command=20.0, run=10.0))
    assert outcome.is_native
    assert outcome.native.exit_code is None
    child = int((tmp_path / "kept" / "one" / "checkout" / "name" / "child").read_text())
    wait_until(lambda: not is_running(child))


def test_a_script_that_fails_by_itself_is_not_asked_about(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, "raise ValueError('no data')")
    assert not outcome.is_native
    assert outcome.native.last_words == "ValueError: no data"
    assert outcome.answers == {}
    assert "fails by itself: ValueError: no data" in MAIN.lines(outcome)


def test_an_error_is_joined_and_said_to_blame_the_script(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, "pass", breakeven=FAILS)
    answer = outcome.answers["check"]
    assert not outcome.is_answered
    assert answer.exit_code == 3
    assert answer.blames_script
    assert answer.error == "train.py raised KeyError: 'x' at train.py:3 at /tmp/train.py:3"
    assert "BLAMES THE SCRIPT" in MAIN.lines(outcome)
    assert "not answered: one" in MAIN.summary([outcome])


def test_a_script_gets_its_arguments_its_variables_its_path_and_what_runs_before(
    tmp_path: Path,
) -> None:
    code = (
        "import os, sys, pathlib\n"
        "if sys.argv[1] == 'prepare': pathlib.Path('prepared').touch(); sys.exit()\n"
        "assert sys.argv[1:] == ['--epochs', '1'] and os.environ['COLOUR'] == 'red'\n"
        "assert str(pathlib.Path('library').resolve()) in sys.path\n"
        "assert pathlib.Path('prepared').exists()\n"
        "assert os.environ['TORCH_HOME'] != '' and sys.stdin.read() == ''\n"
    )
    outcome = run_script(
        tmp_path,
        code,
        arguments=("--epochs", "1"),
        environment={"COLOUR": "red"},
        path=("library",),
        before=(("train.py", "prepare"),),
    )
    assert outcome.is_native, outcome.native.last_words


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"skip": "needs 8 GPUs"}, "needs 8 GPUs"),
        ({"packages": ("no_such_module",)}, "not installed: no_such_module"),
        ({"repository": "owner/other"}, "no folder .*other"),
        ({"script": "test.py"}, "no file .*test.py"),
    ],
)
def test_a_row_that_cannot_run_is_left_out_with_the_reason(
    tmp_path: Path, keys: dict[str, Any], reason: str
) -> None:
    outcome = run_script(tmp_path, "pass", **keys)
    assert outcome.native is None
    assert not outcome.answers
    assert re.search(reason, outcome.left_out)


def test_outcomes_are_written_after_each_row_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "repositories").mkdir()
    rows = (ROW.replace('"a"', f'"a-{n}"') + f'skip = "reason {n}"\n' for n in (1, 2))
    (tmp_path / "rows.toml").write_text("".join(rows))
    found = tmp_path / "found.json"
    options = [str(tmp_path / "repositories"), "--table", str(tmp_path / "rows.toml")]
    assert MAIN.main([*options, "--json", str(found), "--only", "a-1"]) == 0
    (outcome,) = json.loads(found.read_text())
    assert outcome["left_out"] == "reason 1"
    found.write_text(json.dumps([outcome | {"left_out": "kept from the first run"}]))
    assert MAIN.main([*options, "--json", str(found), "--resume"]) == 0
    assert "kept from the first run" in capsys.readouterr().out
    assert [row["name"] for row in json.loads(found.read_text())] == ["a-1", "a-2"]


def test_an_interrupted_run_leaves_no_process_and_no_outcome_of_what_it_ended(
    tmp_path: Path,
) -> None:
    checkout = tmp_path / "o" / "n"
    checkout.mkdir(parents=True)
    code = "import os, time; open(os.environ['PID'], 'w').write(str(os.getpid())); time.sleep(60)"
    (checkout / "t.py").write_text(code)
    pid_file, found = tmp_path / "pid", tmp_path / "found.json"
    (tmp_path / "rows.toml").write_text(f'{ROW}environment = {{ PID = "{pid_file}" }}\n')
    options = ["--table", str(tmp_path / "rows.toml"), "--json", str(found)]
    harness = subprocess.Popen(
        [sys.executable, str(MAIN.__file__), str(tmp_path), *options], stderr=subprocess.PIPE
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    harness.terminate()
    _, complaints = harness.communicate(timeout=20)
    assert harness.returncode == 130
    assert b"interrupted" in complaints
    wait_until(lambda: not is_running(int(pid_file.read_text())))
    assert not found.exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "FOLDER is missing"),
        (["no-such-folder"], "there is no folder"),
        ([".", "--only", "nothing"], "no row is named nothing"),
        ([".", "--resume"], "--resume needs"),
        ([".", "--breakeven-source", "."], "there is no"),
        ([".", "--table", "missing.toml"], "missing.toml"),
    ],
)
def test_a_wrong_command_line_is_told(
    options: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        MAIN.main(options)
    assert complaint in capsys.readouterr().err


def fake(tmp_path: Path, kind: str, to: str, **keys: Any) -> Path:
    """Fake data relative to a folder; return where they are."""
    (tmp_path / "folder").mkdir(exist_ok=True)
    DATA.fake({"kind": kind, "to": to, **keys}, tmp_path / "folder", {"HOOKS": str(tmp_path)})
    return tmp_path / "folder" / to


def test_pictures_are_faked_as_their_readers_know_them(tmp_path: Path) -> None:
    folder = fake(tmp_path, "mnist", "../data/raw", num_train=5, num_test=3)
    images = (folder / "train-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">IIII", images[:16]) == (2051, 5, 28, 28)
    assert len(images) == 16 + 5 * 28 * 28
    labels = (folder / "t10k-labels-idx1-ubyte").read_bytes()
    assert struct.unpack(">II", labels[:8]) == (2049, 3)
    folder = fake(tmp_path, "cifar10", "cifar-10-batches-py", num_per_batch=4)
    batch = pickle.loads((folder / "data_batch_5").read_bytes())
    assert (batch["data"].shape, len(batch["labels"])) == ((4, 3 * 32 * 32), 4)


def test_a_table_of_numbers_is_faked_by_columns(tmp_path: Path) -> None:
    columns = {"date": "day", "kind": "red|blue", "load": "number", "age": "3..5"}
    path = fake(tmp_path, "csv", "table.csv", columns=columns, num_rows=2)
    header, first, second = path.read_text().splitlines()
    assert header == "date,kind,load,age"
    assert first.startswith("2016-07-01,")
    day, kind, load, age = second.split(",")
    assert day == "2016-07-02"
    assert kind in {"red", "blue"}
    assert float(load) == pytest.approx(float(load))
    assert 3 <= int(age) <= 5


def test_a_download_is_answered_from_a_faked_file(tmp_path: Path) -> None:
    """In a process of its own: the hook changes what Python imports."""
    address = "https://example.invalid/names.txt"
    DATA.fake(
        {
            "kind": "download",
            "to": "$HOOKS/names.txt",
            "url": address,
            "data": {"kind": "names", "count": 3},
        },
        tmp_path,
        {"HOOKS": str(tmp_path / "hooks")},
    )
    code = (
        "import urllib.request, requests\n"
        f"words = urllib.request.urlopen({address!r}).read().decode().split()\n"
        f"assert requests.get({address!r}).text.split() == words and len(words) == 3\n"
        "try: urllib.request.urlopen('https://example.invalid/other')\n"
        "except OSError: print('asked the network')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "hooks"), "NO_PROXY": "*"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "asked the network\n", done.stderr

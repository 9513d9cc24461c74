"""``breakeven tune``: options, files, exit codes, and what goes where."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.capture import KEEP_NOTHING, Keep
from breakeven.cli import main
from breakeven.cli.options import duration_s
from breakeven.cli.tune import DEFAULT_FILE
from breakeven.errors import ScriptError
from breakeven.store import TUNED_FILE_NAME, machine_lock, read_tuned
from breakeven.verdict import Numerics, Outcome
from factories import tunings as made_up

TARGET = "train.py"


class FakeTune:
    """Stands in for the tuner: records its arguments, and returns or raises."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.outcome: object = replace(made_up.faster(), target=TARGET)
        self.during: Callable[[], object] = lambda: None

    def __call__(self, target: str, **options: Any) -> object:
        self.calls.append({"target": target, **options})
        options["progress"].begin("trying threads=1", 5.0)
        options["progress"].end()
        self.during()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTune:
    fake = FakeTune()
    module = types.ModuleType("breakeven.tune")
    module.tune_target = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "breakeven.tune", module)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return fake


def files() -> list[str]:
    return sorted(file.name for file in Path().iterdir())


def test_the_file_that_run_looks_for_is_the_one_that_is_written() -> None:
    assert str(DEFAULT_FILE) == TUNED_FILE_NAME


def test_defaults_and_the_answer(tune: FakeTune, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", TARGET]) == 0
    (call,) = tune.calls
    progress = call.pop("progress")
    assert progress is not None
    assert call == {
        "target": TARGET,
        "arguments": (),
        "is_module": False,
        "device": "",
        "budget_s": 0.0,
        "num_steps": 0,
        "is_exact_only": False,
        "tries_batch_size": False,
        "uses_fast_step": True,
        "time_limit_s": 300.0,
        "keep": KEEP_NOTHING,
    }
    said = capsys.readouterr()
    assert said.out.startswith("1.84× faster (1.79–1.90×): 168 µs a step")
    assert "Train with it: breakeven run train.py   (settings: breakeven.toml)" in said.out
    assert said.err == "trying threads=1 (about 5.0 s)\n"
    tuned = read_tuned("breakeven.toml")
    assert tuned.target == TARGET
    assert tuned.configuration == made_up.faster().configuration
    assert files() == ["breakeven.toml"]


def test_every_option_reaches_the_tuner(tune: FakeTune) -> None:
    words = (
        "tune package.train -m --device gpu --budget 2m --steps 200,000 --exact --batch-size "
        "--no-fast-step "
        "--time-limit 90 --keep-writes -o fast.toml -q -- --lr 0.1"
    )
    assert main(words.split()) == 0
    (call,) = tune.calls
    del call["progress"]
    assert call == {
        "target": "package.train",
        "arguments": ("--lr", "0.1"),
        "is_module": True,
        "device": "gpu",
        "budget_s": 120.0,
        "num_steps": 200_000,
        "is_exact_only": True,
        "tries_batch_size": True,
        "uses_fast_step": False,
        "time_limit_s": 90.0,
        "keep": Keep(writes=True),
    }
    assert files() == ["fast.toml"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60.0),
        ("90s", 90.0),
        ("2m", 120.0),
        ("1.5 min", 90.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
    ],
)
def test_budgets(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "option",
    [
        ["--budget", "0"],
        ["--budget", "-5"],
        ["--budget", "soon"],
        ["--budget", "9" * 400],
        ["--budget", "nan"],
        ["--steps", "0"],
        ["--steps", "1.5"],
        ["--steps", ""],
        ["--steps", "_"],
        ["--steps", "9" * 5000],
        ["--device", "tpu"],
        ["--time-limit", "0"],
        ["--nonsense"],
        ["-o", "same", "--write-patch", "./same"],
    ],
)
def test_what_makes_no_sense_is_refused(
    tune: FakeTune, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", TARGET, *option]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not tune.calls
    assert files() == []


def test_json_is_one_document_and_the_file_is_written_too(
    tune: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", TARGET, "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["speedup"] == 1.842
    assert document["trials"][0]["candidate"] == "threads=1"
    assert "breakeven: wrote breakeven.toml" in said.err
    assert read_tuned("breakeven.toml").evidence.speedup == 1.842


def test_that_of_another_target_is_not(tune: FakeTune, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", TARGET]) == 0
    before = Path("breakeven.toml").read_bytes()
    assert main(["tune", "other.py"]) == 3
    assert "holds the settings of train.py" in capsys.readouterr().err
    assert len(tune.calls) == 1
    assert Path("breakeven.toml").read_bytes() == before
    assert main(["tune", "other.py", "--force"]) == 0
    assert len(tune.calls) == 2


@pytest.mark.parametrize(
    "content", [b"", b"[tool.x]\nkey = 1\n", b"\xff\x00", b"schema_version = 1"]
)
def test_a_file_of_the_users_is_not_replaced(
    tune: FakeTune, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("breakeven.toml").write_bytes(content)
    assert main(["tune", TARGET]) == 3
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert not tune.calls
    assert Path("breakeven.toml").read_bytes() == content


@pytest.mark.parametrize("option", ["-o", "--write-patch"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    tune: FakeTune, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", TARGET, option, "missing/file"]) == 3
    assert "there is no folder" in capsys.readouterr().err
    assert not tune.calls
    assert files() == []


def test_the_change_of_the_script_is_written_where_asked_for(
    tune: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    tune.outcome = replace(made_up.with_fast_step(), target=TARGET)
    assert main(["tune", TARGET]) == 0
    assert "patch -p0: --write-patch FILE" in capsys.readouterr().out
    assert main(["tune", TARGET, "--write-patch", "my faster.diff"]) == 0
    assert Path("my faster.diff").read_text() == made_up.DIFF
    assert "Train so with python: patch -p0 < 'my faster.diff'" in capsys.readouterr().out
    # It may have been edited: it is not replaced unasked, as breakeven.toml is.
    assert main(["tune", TARGET, "--write-patch", "my faster.diff"]) == 3
    assert main(["tune", TARGET, "--write-patch", "my faster.diff", "--force"]) == 0


def test_without_a_change_there_is_no_patch_and_the_exit_code_says_so(
    tune: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    tune.outcome = replace(made_up.nothing_found(), target=TARGET)
    assert main(["tune", TARGET, "--write-patch", "faster.diff"]) == 1
    assert "faster.diff is not written" in capsys.readouterr().err
    assert files() == ["breakeven.toml"]


@pytest.mark.parametrize(
    ("outcome", "exit_code"),
    [
        (ScriptError("train.py raised ValueError", hint="run it with python"), 3),
        (KeyboardInterrupt(), 130),
        (RuntimeError("a bug"), 3),
    ],
)
def test_where_tuning_fails_nothing_is_left(
    tune: FakeTune, outcome: BaseException, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", TARGET]) == 0
    before = Path("breakeven.toml").read_bytes()
    capsys.readouterr()
    tune.outcome = outcome
    assert main(["tune", TARGET, "--write-patch", "faster.diff"]) == exit_code
    assert capsys.readouterr().out == ""
    assert Path("breakeven.toml").read_bytes() == before
    assert files() == ["breakeven.toml"]
    # The machine is free again.
    with machine_lock(lambda: pytest.fail("the lock was kept")):
        pass


def test_two_tunings_at_once_take_turns_and_say_so(
    tune: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    has_lock, may_go = threading.Event(), threading.Event()

    def other() -> None:
        with machine_lock():
            has_lock.set()
            assert may_go.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert has_lock.wait(30)
    order: list[str] = []

    def free_soon() -> None:
        order.append("free")
        may_go.set()

    timer = threading.Timer(0.3, free_soon)
    timer.start()
    tune.during = lambda: order.append("tune")
    try:
        assert main(["tune", TARGET]) == 0
    finally:
        may_go.set()
        thread.join()
        timer.join()
    assert order == ["free", "tune"]
    err = capsys.readouterr().err
    assert err.startswith("the machine is busy: waiting for another breakeven to finish\n")


def test_hints_follow_the_answer_and_the_options(
    tune: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", TARGET, "-o", "fast one.toml", "--", "--lr", "0.1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "breakeven run train.py --config 'fast one.toml' -- --lr 0.1" in out
    assert "To decide the rest, allow more time: --budget 120s" in out
    assert "For a run of more than 1,823,000 steps: --steps N" in out
    assert "For results that are bit for bit the same: --exact" in out

    trials = tuple(
        trial
        for trial in made_up.TRIALS
        if trial.outcome not in (Outcome.OUT_OF_BUDGET, Outcome.NOT_WORTH_IT)
    )
    tune.outcome = replace(made_up.faster(), trials=trials, numerics=Numerics.EXACT)
    assert main(["tune", made_up.TARGET]) == 0
    out = capsys.readouterr().out
    for absent in ("--budget", "--steps", "--exact"):
        assert absent not in out


def test_a_notebook_is_tuned_but_not_run(
    tune: FakeTune, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "train.ipynb"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Train with it" not in said
    assert "jupyter nbconvert --to script train.ipynb, and tune that" in said

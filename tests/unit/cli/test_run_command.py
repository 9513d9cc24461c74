"""``breakeven run`` until the script takes over: what is taken, refused, tuned and said."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

import breakeven.capture
import breakeven.tune
from breakeven.capture import EndRequest, go_on_as_script
from breakeven.cli import main
from breakeven.cli.dispatch import TakesOver
from breakeven.store import this_machine, write_tuned
from breakeven.trace import Configuration
from breakeven.verdict import Numerics, TuneReport
from factories.tuned import report


@dataclass(frozen=True)
class Started:
    """What the script takes over with."""

    request: EndRequest
    target: str
    arguments: tuple[str, ...]


class Replaced(BaseException):
    """Stands in for a process that has taken the place of this one."""

    def __init__(self, request: EndRequest, target: str, arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.started = Started(request, target, arguments)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, in which train.py is."""

    def become_script(request: EndRequest, target: str, arguments: tuple[str, ...]) -> NoReturn:
        raise Replaced(request, target, arguments)

    monkeypatch.setattr(breakeven.capture, "become_script", become_script, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('not to be run here')")
    shutil.copy("train.py", "other.py")
    return tmp_path


@pytest.fixture
def never_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune_target(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("nothing is to be tuned here")

    monkeypatch.setattr(breakeven.tune, "tune_target", tune_target, raising=False)


def start(*arguments: str) -> Started:
    """Start a script that takes over this process."""
    with pytest.raises(TakesOver) as taken:
        main(["run", *arguments])
    script = taken.value.script
    assert isinstance(script, partial)
    assert script.func is go_on_as_script
    return Started(*script.args)


def start_anew(*arguments: str) -> Started:
    """Start a script in a process of its own."""
    with pytest.raises(Replaced) as replaced:
        main(["run", *arguments])
    return replaced.value.started


def write(path: str = "breakeven.toml", **changes: Any) -> None:
    values = {"machine": this_machine(gpu=""), "caveats": (), **changes}
    Path(path).parent.mkdir(exist_ok=True)
    write_tuned(Path(path), report(**values), force=True)


@pytest.mark.usefixtures("never_tuned")
def test_takes_the_file_of_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    started = start("./train.py", "--steps", "50_000", "--", "--lr", "0.1", "-q")
    assert started.request == EndRequest(
        is_module=False,
        device="cpu",
        has_cuda=False,
        configuration=report().configuration,
        num_steps=50_000,
        is_quiet=False,
    )
    # As it was typed: the script sees it in sys.argv.
    assert (started.target, started.arguments) == ("./train.py", ("--lr", "0.1", "-q"))
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        "num_threads=1, optimizer=fused, gathers_batches=true (from breakeven.toml of" in output.err
    )
    assert "1.5× as fast, numbers reordered" in output.err


@pytest.mark.usefixtures("never_tuned")
def test_takes_the_file_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write("tuned/server.toml", configuration=Configuration(), target="package.train")
    Path("package").mkdir()
    started = start("-m", "package.train", "--config", "tuned/server.toml")
    assert started.request.is_module
    assert started.request.configuration == Configuration()
    assert "nothing was faster than the script as it is" in capsys.readouterr().err


@pytest.mark.usefixtures("never_tuned")
@pytest.mark.parametrize(
    ("name", "then", "said"),
    [
        ("processor", "Other CPU", "processor was Other CPU, and is "),
        ("num_cores", 4096, "num_cores was 4096, and is "),
        ("torch_version", "1.0", "torch_version was 1.0, and is "),
        ("python_version", "2.7", "python_version was 2.7, and is "),
        ("breakeven_version", "0.0.1", "breakeven_version was 0.0.1, and is "),
    ],
)
def test_refuses_what_no_longer_holds(
    name: str, then: str | int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(machine=replace(this_machine(gpu=""), **{name: then}))
    assert main(["run", "train.py", "--", "--lr", "1"]) == 3
    errors = capsys.readouterr().err
    assert "breakeven.toml is out of date: " + said in errors
    assert errors.count(" was ") == 1
    assert "breakeven tune train.py --force -- --lr 1" in errors
    assert "python train.py --lr 1" in errors


@pytest.mark.usefixtures("never_tuned")
def test_refuses_another_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    write(device="gpu", machine=this_machine(gpu="NVIDIA H200"))
    assert main(["run", "train.py"]) == 3
    assert "gpu was NVIDIA H200, and is none here" in capsys.readouterr().err
    # torch has been imported to ask for it: the script starts anew.
    write(device="gpu", machine=this_machine(gpu=""))
    assert start_anew("train.py").request.device == "gpu"
    # Which GPU is here, and whether there is one, is nothing to a step on the CPU.
    write(device="cpu")
    assert start("train.py").request.device == "cpu"


@pytest.mark.usefixtures("never_tuned")
def test_refuses_a_named_file_of_another_target(capsys: pytest.CaptureFixture[str]) -> None:
    write(target="other.py")
    assert main(["run", "train.py", "--config", "breakeven.toml"]) == 3
    errors = capsys.readouterr().err
    assert "breakeven.toml is for other.py, not for train.py" in errors
    assert "breakeven tune train.py" in errors


@pytest.mark.usefixtures("never_tuned")
def test_refuses_a_damaged_file(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    text = Path("breakeven.toml").read_text()
    Path("breakeven.toml").write_text(text.replace("num_threads = 1", "num_threads = 1.5"))
    assert main(["run", "train.py"]) == 3
    assert "configuration.num_threads" in capsys.readouterr().err


@pytest.mark.usefixtures("never_tuned")
def test_exact_refuses_other_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert main(["run", "train.py", "--exact"]) == 3
    assert "their class is reordered" in capsys.readouterr().err
    write(numerics=Numerics.EXACT)
    assert start("train.py", "--exact").target == "train.py"


@pytest.mark.usefixtures("never_tuned")
@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["absent.py"], 3, "there is no file 'absent.py'"),
        (["train.py:step"], 2, "train.py:step is a function"),
        (["train.py", "--config", "absent.toml"], 3, "cannot read absent.toml"),
        (["train.py", "--steps", "0"], 2, "'0' is not a whole number above 0"),
        (["train.py", "--steps", "-5"], 2, "--steps"),
        (["train.py", "--budget", "soon"], 2, "'soon' is not a time above 0"),
        (["train.py", "--budget", "0s"], 2, "'0s' is not a time above 0"),
        (["train.py", "--lr", "1"], 2, "breakeven run train.py -- --lr 1"),
    ],
)
def test_refuses_a_wrong_command_line(
    arguments: list[str], exit_code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == exit_code
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err


@pytest.mark.parametrize("other", [None, "other.py"])
def test_tunes_where_there_is_no_file_for_it(
    other: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if other is not None:
        write(target=other)
    files = sorted(Path().iterdir())
    asked: dict[str, Any] = {}

    def tune_target(target: str, **options: Any) -> TuneReport:
        options.pop("progress").begin("measuring the step")
        asked.update(options, target=target)
        return report(machine=this_machine(gpu=""), caveats=())

    monkeypatch.setattr(breakeven.tune, "tune_target", tune_target, raising=False)
    started = start_anew("train.py", "--budget", "1.5m", "--steps", "900", "--", "x")
    assert asked == {
        "target": "train.py",
        "arguments": ("x",),
        "is_module": False,
        "budget_s": 90.0,
        "num_steps": 900,
        "is_exact_only": False,
        "uses_fast_step": True,
    }
    assert started.request.configuration == report().configuration
    errors = capsys.readouterr().err
    assert (
        "there is no breakeven.toml for train.py here: tuning it first, for at most 90 s" in errors
    )
    assert "breakeven tune train.py -- x" in errors
    assert "(found now: 1.5× as fast" in errors
    # Files are written on demand alone.
    assert sorted(Path().iterdir()) == files

"""Awkward scripts and wrong command lines: a clear answer or a clear refusal, and nothing left.

That no traceback of breakeven's own, no process and no file is left behind is checked for every
run by the fixture ``run_check``.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from check_process import SCRIPTS, CheckRun, line_of

from factories.sampled import sampled

RunCheck = Callable[..., CheckRun]

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc"
)


def assert_refused(run: CheckRun, *expected: str, hint: str) -> None:
    """Assert exit code 3, and stderr with all of ``expected`` and a hint that matches ``hint``."""
    assert run.returncode == 3, run.stderr
    assert re.search(r"^error: ", run.stderr, re.MULTILINE), run.stderr
    for text in expected:
        assert text in run.stderr
    found = re.search(r"^hint: (.*)", run.stderr, re.MULTILINE | re.DOTALL)
    assert found is not None, run.stderr
    assert re.search(hint, found[1], re.IGNORECASE), found[1]


# Targets that are no script.


def test_a_script_that_does_not_exist(run_check: RunCheck, work_folder: Path) -> None:
    (work_folder / "train.py").touch()
    run = run_check("trian.py")
    assert_refused(run, "trian.py", hint="path|name|exist|did you mean|train.py")


def test_a_directory(run_check: RunCheck, work_folder: Path) -> None:
    (work_folder / "project").mkdir()
    run = run_check("project")
    assert_refused(run, "project", "director", hint=r"script|\.py|-m")


def test_a_module_that_does_not_exist(run_check: RunCheck) -> None:
    run = run_check("no_such_package.train", "-m")
    assert_refused(run, "no_such_package", hint="module|directory|folder|install")


# Scripts that fail by themselves.


def test_an_import_that_fails(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "import_fails.py")
    assert_refused(run, "ValueError", "the learning rate is missing", hint="python|run|fix")
    assert run.names_line(SCRIPTS / "broken_sibling.py", 1)


def test_a_syntax_error(run_check: RunCheck, work_folder: Path) -> None:
    script = work_folder / "train.py"
    script.write_text("import torch\n\nfor step in range(10)\n    print(step)\n")
    run = run_check("train.py")
    assert_refused(run, "SyntaxError", hint="python|syntax|fix")
    assert run.names_line(script, 3)


def test_an_exception_at_step_3(run_check: RunCheck) -> None:
    script = SCRIPTS / "raises_at_step_3.py"
    run = run_check(script)
    assert_refused(run, "ZeroDivisionError", "no step after the third", hint="python|run|fix")
    assert run.names_line(script, line_of(script, "raise ZeroDivisionError"))


def test_an_absent_module(run_check: RunCheck) -> None:
    script = SCRIPTS / "absent_module.py"
    run = run_check(script)
    assert_refused(run, "wonderful_optimizers", hint="for this Python")
    assert run.names_line(script, line_of(script, "import wonderful_optimizers"))


def test_an_absent_data_file(run_check: RunCheck) -> None:
    script = SCRIPTS / "absent_data.py"
    run = run_check(script)
    assert_refused(run, "data/train.csv", hint="director|folder|path|file")
    assert run.names_line(script, line_of(script, 'Path("data/train.csv")'))


def test_more_memory_than_there_is(run_check: RunCheck) -> None:
    script = SCRIPTS / "too_much_memory.py"
    run = run_check(script)
    assert_refused(run, "memory", hint="memory|smaller")
    assert run.names_line(script, line_of(script, "cache = torch.empty"))


@pytest.mark.parametrize(("signal_name", "number"), [("SIGKILL", 9), ("SIGSEGV", 11)])
def test_a_script_that_dies_by_a_signal(run_check: RunCheck, signal_name: str, number: int) -> None:
    run = run_check(SCRIPTS / "kills_itself.py", arguments=(signal_name,))
    assert run.returncode == 3
    assert re.search(rf"{signal_name}|signal {number}\b", run.stderr), run.stderr
    assert "hint: " in run.stderr


# Scripts without a step.


def test_no_optimizer(run_check: RunCheck) -> None:
    """What updates its weights by hand has steps all the same, and the report says which."""
    run = run_check(SCRIPTS / "no_optimizer.py")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert "own-update" in [caveat["code"] for caveat in report["caveats"]]
    assert report["step"]["num_ops"] > 0


def test_sys_exit_before_any_step(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "exits_early.py")
    # What the script said last tells why.
    assert_refused(run, "step", "nothing to do", hint="argument|--|step|function")


@pytest.mark.parametrize("status", ["0", "7"])
def test_os_exit_before_any_step(run_check: RunCheck, status: str) -> None:
    run = run_check(SCRIPTS / "hard_exit.py", arguments=(status,))
    assert run.returncode == 3
    assert re.search(rf"(status|code) {status}\b", run.stderr), run.stderr
    assert "hint: " in run.stderr


def test_os_exit_after_some_steps(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "hard_exit.py", arguments=("0", "5"))
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    sampled(
        [("hangs.py", ()), ("ignores_signals.py", ("--hang",)), ("stands_deep.py", ())], "hangs.py"
    ),
)
def test_a_script_that_hangs(run_check: RunCheck, name: str, arguments: tuple[str, ...]) -> None:
    script = SCRIPTS / name
    run = run_check(script, "--time-limit", "5", arguments=arguments)
    assert_refused(run, "5 s", hint="--time-limit")
    assert run.names_line(script, line_of(script, "# here it stands"))
    assert run.elapsed_s < 120


def test_a_script_that_asks_at_the_terminal(run_check: RunCheck) -> None:
    script = SCRIPTS / "reads_stdin.py"
    run = run_check(script)
    assert_refused(run, hint="input|stdin|argument")
    assert run.names_line(script, line_of(script, "input("))
    assert run.elapsed_s < 30  # nobody answers; it does not wait for the time limit


# Several GPUs.


def test_a_second_gpu_is_answered_for_one(run_check: RunCheck) -> None:
    script = SCRIPTS / "second_device.py"
    run = run_check(script)
    assert run.returncode == 0, run.stderr
    (caveat,) = (one for one in run.document["caveats"] if one["code"] == "second-device")
    line = line_of(script, "second = nn.Linear")
    assert f"cuda:1 ({script}:{line})" in caveat["message"]


def test_a_script_for_torchrun_is_told_its_environment(run_check: RunCheck) -> None:
    script = SCRIPTS / "distributed.py"
    run = run_check(script)
    assert_refused(run, hint="RANK=0 LOCAL_RANK=0 WORLD_SIZE=1")
    assert run.names_line(script, line_of(script, 'os.environ["LOCAL_RANK"]'))


@pytest.mark.full
def test_a_script_for_torchrun_is_answered_for_one_gpu(
    run_check: RunCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    run = run_check(SCRIPTS / "distributed.py")
    assert run.returncode == 0, run.stderr
    assert "one-process" in {caveat["code"] for caveat in run.document["caveats"]}
    assert run.document["step"]["batch_size"] == 32


@pytest.mark.full
def test_a_data_set_that_needs_its_workers(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "needs_workers.py")
    assert run.returncode == 0, run.stderr
    assert run.document["step"]["batch_size"] == 32


def test_data_parallel_is_answered_for_one_gpu(run_check: RunCheck) -> None:
    script = SCRIPTS / "data_parallel.py"
    run = run_check(script)
    assert run.returncode == 0, run.stderr
    assert "one-device" in {caveat["code"] for caveat in run.document["caveats"]}
    (finding,) = (each for each in run.document["findings"] if each["cause"] == "DATAPARALLEL")
    assert finding["line"] == line_of(script, "nn.DataParallel")


@pytest.mark.slow
def test_a_tensor_on_the_wrong_device_is_a_finding(run_check: RunCheck) -> None:
    script = SCRIPTS / "wrong_device.py"
    run = run_check(script)
    assert run.returncode == 0, run.stderr
    (finding,) = (each for each in run.document["findings"] if each["code"] == "DEV001")
    assert Path(finding["file"]).samefile(script)
    assert finding["line"] == line_of(script, "cross_entropy(")
    assert finding["gain_fraction"] == 0  # it raises: there is no time to gain
    assert finding["fix"]


# Scripts that are odd but train.


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sampled(
        [
            "ignores_signals.py",
            "leaves_child.py",
            "loader_workers.py",
            "spawns.py",
            "swallows_exceptions.py",
            "threads.py",
        ],
        "leaves_child.py",
    ),
)
def test_odd_scripts_are_answered(run_check: RunCheck, name: str, marker: Path) -> None:
    run = run_check(SCRIPTS / name)
    assert run.returncode == 0, run.stderr
    assert run.document["step"]["num_ops"] > 0
    assert 1 <= len(run.cpus) <= 3
    assert run.cpus[0]["source"] == "measured"
    assert run.elapsed_s < 240


@pytest.mark.full
def test_exit_handlers_do_not_run_and_the_documentation_says_so(
    run_check: RunCheck, pytestconfig: pytest.Config
) -> None:
    run = run_check(SCRIPTS / "cleans_up.py")  # the fixture finds any file that is written
    assert run.returncode == 0, run.stderr
    pages = (pytestconfig.rootpath / "docs").glob("*.md")
    assert any("atexit" in page.read_text() for page in pages)


@pytest.mark.full
@needs_proc
def test_a_talkative_script_fills_no_memory(run_check: RunCheck) -> None:
    talkative = run_check(SCRIPTS / "prints_megabytes.py")
    assert talkative.returncode == 0, talkative.stderr
    assert "xxxx" not in talkative.stdout
    assert len(talkative.stderr) < 100_000
    assert talkative.elapsed_s < 240

    quiet = run_check(SCRIPTS / "leaves_marker.py")
    assert talkative.peak_rss_bytes is not None
    assert quiet.peak_rss_bytes is not None
    # At least 150 MB were printed.
    assert talkative.peak_rss_bytes - quiet.peak_rss_bytes < 50e6


def assert_stored(path: Path, run: CheckRun) -> None:
    """Assert that a file holds the answer, and the recorded step besides."""
    stored = json.loads(path.read_text())
    assert stored["recording"]["trace"]["events"]
    assert {**stored, "recording": None} == run.document


@pytest.mark.full
def test_a_script_that_changes_the_directory(run_check: RunCheck, work_folder: Path) -> None:
    # Both paths are relative to where the command was given.
    for name in ("changes_directory.py", "tiny_training.py"):
        shutil.copy(SCRIPTS / name, work_folder)
    run = run_check("changes_directory.py", "-o", "report.json", new_files=("report.json",))
    assert run.returncode == 0, run.stderr
    assert_stored(work_folder / "report.json", run)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_model_has_a_caveat(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "compiles.py")
    assert run.returncode == 0, run.stderr
    assert any("compile" in code for code in run.caveat_codes), run.caveat_codes


@pytest.mark.full
def test_slow_steps_are_answered_from_a_few(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "slow_steps.py")
    assert run.returncode == 0, run.stderr
    cpu = run.cpus[0]
    assert cpu["step_ns"] >= 2_000_000_000
    assert 1 <= cpu["num_samples"] <= 10
    assert run.elapsed_s < 240


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "terminal"])
@pytest.mark.parametrize(
    "name",
    sampled(
        [
            "tränïng (copy) 'x'.py",
            "\x1b[31mred\x1b]0;title\x07.py",
            "[bold]markup[/].py",
            "\udcff.py",
        ],
        "\x1b[31mred\x1b]0;title\x07.py",
    ),
    ids=["odd", "escapes", "markup", "not UTF-8"],
)
def test_odd_file_names(run_check: RunCheck, work_folder: Path, name: str, as_json: bool) -> None:
    try:
        shutil.copy(SCRIPTS / "leaves_marker.py", work_folder / name)
    except OSError:  # file systems that take UTF-8 only
        pytest.skip("this file system does not take the name")
    shutil.copy(SCRIPTS / "tiny_training.py", work_folder)
    run = run_check(name, as_json=as_json)
    assert run.returncode == 0, run.stderr
    for text in (run.stdout, run.stderr):
        assert "\x1b" not in text
        assert "\x07" not in text
    if name.startswith("["):
        assert "[bold]markup[/].py" in run.stdout


# Ctrl-C, and what else asks the command to end.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    sampled([("hangs.py", ()), ("ignores_signals.py", ("--hang",))], "ignores_signals.py"),
)
@pytest.mark.parametrize(
    "number", sampled([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], signal.SIGINT)
)
def test_ending_signal(
    run_check: RunCheck,
    marker: Path,
    name: str,
    arguments: tuple[str, ...],
    number: signal.Signals,
) -> None:
    run = run_check(SCRIPTS / name, arguments=arguments, interrupt_when=marker, interrupt_by=number)
    assert marker.exists()
    assert run.returncode == 128 + number
    assert run.elapsed_s < 120
    assert "Traceback" not in run.stderr


# Options: what is wrong is found before the script is run.


@pytest.mark.parametrize("output", ["absent/report.json", "a-file/report.json", "a-folder"])
def test_an_unwritable_output(
    run_check: RunCheck, work_folder: Path, marker: Path, output: str
) -> None:
    (work_folder / "a-file").touch()
    (work_folder / "a-folder").mkdir()
    run = run_check(SCRIPTS / "leaves_marker.py", "-o", output)
    assert run.returncode in (2, 3)
    assert output.split("/")[0] in run.stderr
    assert not marker.exists()


def test_an_output_that_exists_is_kept(
    run_check: RunCheck, work_folder: Path, marker: Path
) -> None:
    (work_folder / "report.json").write_text("precious")
    run = run_check(SCRIPTS / "leaves_marker.py", "-o", "report.json")
    assert run.returncode in (2, 3)
    assert "report.json" in run.stderr
    assert "--force" in run.stderr
    assert (work_folder / "report.json").read_text() == "precious"
    assert not marker.exists()


@pytest.mark.full
def test_an_output_that_exists_is_replaced_with_force(
    run_check: RunCheck, work_folder: Path
) -> None:
    (work_folder / "report.json").write_text("obsolete")
    run = run_check(SCRIPTS / "leaves_marker.py", "-o", "report.json", "--force")
    assert run.returncode == 0, run.stderr
    assert_stored(work_folder / "report.json", run)


def test_an_unknown_device(run_check: RunCheck, marker: Path) -> None:
    run = run_check(SCRIPTS / "leaves_marker.py", "--device", "RTX 4091")
    assert_refused(run, "RTX 4091", "RTX 4090", hint="breakeven devices")
    assert not marker.exists()


def test_a_known_device_does_not_excuse_an_unknown_one(run_check: RunCheck, marker: Path) -> None:
    run = run_check(SCRIPTS / "leaves_marker.py", "--device", "T4", "--device", "T5000 Ultra")
    assert_refused(run, "T5000 Ultra", hint="breakeven devices")
    assert not marker.exists()


@pytest.mark.full
def test_only_the_devices_asked_for_are_compared(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "leaves_marker.py", "--device", "t4", "--device", "rtx 4090")
    assert run.returncode == 0, run.stderr
    predicted = [result["device"] for result in run.gpus if result["source"] == "predicted"]
    assert len(predicted) == 2
    assert any("t4" in device.casefold() for device in predicted)
    assert any("4090" in device for device in predicted)


@pytest.mark.parametrize("limit", ["0", "-3", "soon", "nan"])
def test_a_time_limit_that_is_none(run_check: RunCheck, marker: Path, limit: str) -> None:
    run = run_check(SCRIPTS / "leaves_marker.py", f"--time-limit={limit}")
    assert run.returncode == 2
    assert "--time-limit" in run.stderr
    assert not marker.exists()


def test_arguments_of_the_script_without_dashes(run_check: RunCheck, marker: Path) -> None:
    run = run_check(SCRIPTS / "leaves_marker.py", "--lr", "3")
    assert run.returncode == 2
    assert "--lr" in run.stderr
    assert " -- " in run.stderr
    assert not marker.exists()

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

FULL = pytest.mark.full


def assert_refused(run: CheckRun, *expected: str, hint: str = "") -> None:
    """Assert exit code 3, and stderr with all of ``expected`` and a hint that matches ``hint``."""
    assert run.returncode == 3, run.stderr
    assert re.search(r"^error: ", run.stderr, re.MULTILINE), run.stderr
    for text in expected:
        assert re.search(text, run.stderr), run.stderr
    found = re.search(r"^hint: (.*)", run.stderr, re.MULTILINE | re.DOTALL)
    assert found is not None, run.stderr
    assert re.search(hint, found[1], re.IGNORECASE), found[1]


@pytest.mark.parametrize(
    ("target", "options", "expected", "hint"),
    [
        ("trian.py", (), "trian.py", "path|name|exist|did you mean|train.py"),
        ("project", (), "project.*director", r"script|\.py|-m"),
        ("no_such.train", ("-m",), "no_such", "module|directory|folder|install"),
        (f"{SCRIPTS / 'functions.py'}:on_step", (), "one_step", ""),
        (f"{SCRIPTS / 'functions.py'}:not_a_step", (), "factor", ""),
    ],
    ids=["no file", "a directory", "no module", "no function", "a function with an argument"],
)
def test_a_target_that_cannot_be_run(
    run_check: RunCheck,
    work_folder: Path,
    target: str,
    options: tuple[str, ...],
    expected: str,
    hint: str,
) -> None:
    (work_folder / "train.py").touch()
    (work_folder / "project").mkdir()
    assert_refused(run_check(target, *options), expected, hint=hint)


@pytest.mark.parametrize(
    ("name", "arguments", "expected", "hint", "text"),
    [  # what else ends a script is tried by the hostile ones
        ("raises_at_step_3.py", (), "ZeroDivisionError.*no step after the third",
         "python|run|fix", "raise ZeroDivisionError"),
        ("absent_module.py", (), "wonderful_optimizers", "for this Python",
         "import wonderful_optimizers"),
        ("too_much_memory.py", (), "memory", "memory|smaller", "cache = torch.empty"),
        ("kills_itself.py", ("SIGKILL",), r"SIGKILL|signal 9\b", "", ""),
        # What the script said last tells why.
        ("exits_early.py", (), "(?s)step.*nothing to do", "argument|--|step|function", ""),
        ("reads_stdin.py", (), "", "input|stdin|argument", "input("),
    ],
)  # fmt: skip
def test_a_script_that_fails_by_itself(
    run_check: RunCheck, name: str, arguments: tuple[str, ...], expected: str, hint: str, text: str
) -> None:
    run = run_check(SCRIPTS / name, arguments=arguments)
    assert_refused(run, expected, hint=hint)
    assert not text or run.names_line(SCRIPTS / name, line_of(SCRIPTS / name, text))
    if name == "reads_stdin.py":
        assert run.elapsed_s < 30  # nobody answers; it does not wait for the time limit


def test_what_fails_before_the_script_runs(run_check: RunCheck, work_folder: Path) -> None:
    run = run_check(SCRIPTS / "import_fails.py")
    assert_refused(run, "ValueError", "the learning rate is missing", hint="python|run|fix")
    assert run.names_line(SCRIPTS / "broken_sibling.py", 1)
    script = work_folder / "train.py"
    script.write_text("import torch\n\nfor step in range(10)\n    print(step)\n")
    run = run_check("train.py")
    assert_refused(run, "SyntaxError", hint="python|syntax|fix")
    assert run.names_line(script, 3)


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


# Scripts that are odd but train. What is recorded of each is in its own test elsewhere.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "caveat", "batch_size"),
    sampled(
        [
            ("threads.py", (), "", None),
            ("needs_workers.py", ("spawn",), "", 32),
            ("needs_workers.py", ("fork",), "", 32),
            ("hard_exit.py", ("0", "5"), "", None),
            # What updates its weights by hand has steps all the same, and the report says which.
            ("no_optimizer.py", (), "own-update", None),
            ("compiles.py", (), "compile-ignored", None),
        ],
        "no_optimizer.py",
    ),
)
def test_odd_scripts_are_answered(
    run_check: RunCheck,
    name: str,
    arguments: tuple[str, ...],
    caveat: str,
    batch_size: int | None,
) -> None:
    run = run_check(SCRIPTS / name, arguments=arguments)
    assert run.returncode == 0, run.stderr
    assert run.document["step"]["num_ops"] > 0
    assert batch_size is None or run.document["step"]["batch_size"] == batch_size
    assert 1 <= len(run.cpus) <= 3
    assert run.cpus[0]["source"] == "measured"
    assert not caveat or caveat in run.caveat_codes


@pytest.mark.slow
def test_several_gpus_are_answered_for_one(
    run_check: RunCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SCRIPTS / "second_device.py"
    run = run_check(script)
    (caveat,) = (one for one in run.document["caveats"] if one["code"] == "second-device")
    line = line_of(script, "second = nn.Linear")
    assert f"cuda:1 ({script}:{line})" in caveat["message"]

    script = SCRIPTS / "data_parallel.py"
    run = run_check(script)
    assert "one-device" in run.caveat_codes
    (finding,) = (each for each in run.document["findings"] if each["cause"] == "DATAPARALLEL")
    assert finding["line"] == line_of(script, "nn.DataParallel")

    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}
    for name, value in {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    run = run_check(SCRIPTS / "distributed.py")
    assert "one-process" in run.caveat_codes
    assert run.document["step"]["batch_size"] == 32


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


@FULL
def test_a_talkative_script_fills_no_memory(run_check: RunCheck) -> None:
    talkative = run_check(SCRIPTS / "prints_megabytes.py")
    assert talkative.returncode == 0, talkative.stderr
    assert "xxxx" not in talkative.stdout
    assert len(talkative.stderr) < 100_000
    quiet = run_check(SCRIPTS / "leaves_marker.py")
    if talkative.peak_rss_bytes is not None and quiet.peak_rss_bytes is not None:
        # At least 150 MB were printed.
        assert talkative.peak_rss_bytes - quiet.peak_rss_bytes < 50e6


@FULL
def test_slow_steps_are_answered_from_a_few(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "slow_steps.py")
    assert run.returncode == 0, run.stderr
    cpu = run.cpus[0]
    assert cpu["step_ns"] >= 2_000_000_000
    assert 1 <= cpu["num_samples"] <= 10
    assert run.elapsed_s < 240


@pytest.mark.slow
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
def test_odd_file_names(run_check: RunCheck, work_folder: Path, name: str) -> None:
    try:
        shutil.copy(SCRIPTS / "leaves_marker.py", work_folder / name)
    except OSError:  # file systems that take UTF-8 only
        pytest.skip("this file system does not take the name")
    shutil.copy(SCRIPTS / "tiny_training.py", work_folder)
    for as_json in (True, False):
        run = run_check(name, as_json=as_json)
        assert run.returncode == 0, run.stderr
        assert not re.search("[\x1b\x07]", run.stdout + run.stderr)
        assert not name.startswith("[") or "[bold]markup[/].py" in run.stdout


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


@pytest.mark.parametrize(
    ("options", "codes", "said"),
    [
        (("-o", "absent/report.json"), (2, 3), ["absent"]),
        (("-o", "a-file/report.json"), (2, 3), ["a-file"]),
        (("-o", "a-folder"), (2, 3), ["a-folder"]),
        (("-o", "report.json"), (2, 3), ["report.json", "--force"]),
        (("--device", "RTX 4091"), (3,), ["RTX 4091", "RTX 4090", "hint: .*breakeven devices"]),
        (("--device", "T4", "--device", "T5 Ultra"), (3,), ["T5 Ultra", "hint: .*breakeven dev"]),
        (("--device", "i9-10941X"), (3,), ["Core i9-10940X", "breakeven devices --hosts"]),
        (("--device", "EPYC 7313"), (3,), ["cannot predict a step for the CPU EPYC 7313",
                                           "EPYC 7R13"]),
        *(((f"--time-limit={limit}",), (2,), ["--time-limit"])
          for limit in ("0", "-3", "soon", "nan")),
        # Arguments of the script without dashes.
        (("--lr", "3"), (2,), ["--lr", " -- "]),
    ],
)  # fmt: skip
def test_a_wrong_option_is_found_before_the_script_runs(
    run_check: RunCheck,
    work_folder: Path,
    marker: Path,
    options: tuple[str, ...],
    codes: tuple[int, ...],
    said: list[str],
) -> None:
    (work_folder / "a-file").touch()
    (work_folder / "a-folder").mkdir()
    (work_folder / "report.json").write_text("precious")
    run = run_check(SCRIPTS / "leaves_marker.py", *options)
    assert run.returncode in codes
    for text in said:
        assert re.search(text, run.stderr), run.stderr
    assert (work_folder / "report.json").read_text() == "precious"
    assert not marker.exists()


@FULL
def test_a_report_is_written_where_the_command_was_given(
    run_check: RunCheck, work_folder: Path
) -> None:
    """The script changes the directory; both paths are relative to the first one."""
    for name in ("changes_directory.py", "tiny_training.py"):
        shutil.copy(SCRIPTS / name, work_folder)
    (work_folder / "old.json").write_text("obsolete")
    devices = ("--device", "t4", "--device", "rtx 4090")
    run = run_check(
        "changes_directory.py", "-o", "report.json", *devices, new_files=["report.json"]
    )
    again = run_check("changes_directory.py", "-o", "old.json", "--force")
    for name, answered in {"report.json": run, "old.json": again}.items():
        assert answered.returncode == 0, answered.stderr
        stored = json.loads((work_folder / name).read_text())
        assert stored["recording"]["trace"]["events"]
        assert {**stored, "recording": None} == answered.document
    predicted = [result["device"] for result in run.gpus if result["source"] == "predicted"]
    assert sorted(predicted) == ["RTX 4090", "T4"]

"""The pairs part for a machine with a GPU: its figures on made-up rows, its path on the CPU."""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breakeven.capture import record_steps
from breakeven.trace import GraphLaunch
from factories.loaded_scripts import load_script
from factories.processes import wait_until

GPU = Path(__file__).parents[3] / "benchmarks" / "gpu"


@pytest.fixture
def pair_steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(GPU.parent))
    monkeypatch.syspath_prepend(str(GPU))
    return load_script(GPU / "pair_steps.py", "gpu_pair_steps")


def row(name: str, where: str, value_ms: float, **more: object) -> dict[str, str]:
    cells: dict[str, object] = {
        "gpu": "H100", "kind": "network", "name": name, "where": where, "value_ms": value_ms,
        "note": "",
    } | dict.fromkeys((f"{host}_{cell}" for host in ("absent", "present")
                       for cell in ("ms", "low_ms", "high_ms", "choice")), "")  # fmt: skip
    return {column: str(cell) for column, cell in (cells | more).items()}


def predicted(ms: float, low: float, high: float, choice: str) -> dict[str, object]:
    cells = {"ms": ms, "low_ms": low, "high_ms": high, "choice": choice}
    return {f"absent_{column}": cell for column, cell in cells.items()}


ROWS = [
    row("a", "CPU", 1.0), row("a", "GPU eager", 2.0, **predicted(2.0, 1.5, 3.0, "cpu")),
    row("b", "CPU", 1.0), row("b", "GPU eager", 4.0, **predicted(0.5, 0.4, 0.8, "gpu")),
    row("c", "CPU", 1.0), row("c", "GPU eager", 0.9, **predicted(0.9, 0.6, 2.4, "too_close")),
    row("d", "CPU", 9.0), row("d", "GPU eager", 1.0, **predicted(2.0, 0.8, 3.2, "gpu")),
    row("d", "GPU captured", 0.1, **predicted(0.1, 0.05, 0.2, "gpu")),
    row("e", "CPU", 9.0), row("e", "GPU eager", "", note="out of memory"),  # type: ignore[arg-type]
]  # fmt: skip


def test_the_rate_counts_what_is_too_close_on_its_own(pair_steps: Any) -> None:
    from summary import pair_lines  # the folder is on the path

    lines = list(pair_lines(ROWS))
    # The GPU takes 2, 4, 0.9 and 1/9 of the CPU's time, and captured 1/90.
    assert "| network, GPU eager | 4 | 2 | 1.45 |" in lines
    assert "| network, GPU captured | 1 | 0 | 0.01 |" in lines
    assert "| network | the GPU absent | 4 | 2 (50 %) | 1 (25 %) | 1 (25 %) |" in lines
    # Three of four hold; the widths are 2, 2, 4 and 4, the ratios 1, 1/8, 1 and 2.
    eager = "| network, GPU eager | the GPU absent | 4 | 3 (75 %) | 3.0 | 1.00 |"
    assert eager in lines
    assert "| network, GPU captured | the GPU absent | 1 | 1 (100 %) | 4.0 | 1.00 |" in lines
    assert lines[-1] == "- e, GPU eager: out of memory"
    (line,) = pair_lines([{**each, "gpu": "dry run"} for each in ROWS])
    assert "no rate" in line


@pytest.fixture
def new_book(pair_steps: Any, tmp_path: Path) -> Callable[..., Any]:
    def made(*, until: float = float("inf"), again: bool = False) -> Any:
        args = argparse.Namespace(out=tmp_path, until=until, only=None, dry_run=True, again=again)
        return pair_steps.Book(args)

    return made


def test_each_row_is_kept_at_once_and_a_failure_is_one_with_the_reason(
    pair_steps: Any, new_book: Callable[..., Any]
) -> None:
    def aborts() -> dict[str, object]:
        raise KeyboardInterrupt

    book = new_book()
    assert not book.add("network", "a", "CPU", lambda: {"value_ms": 1.0})
    assert book.add("network", "b", "CPU", lambda: {"value_ms": 1 / 0})
    with pytest.raises(KeyboardInterrupt):
        book.add("network", "c", "CPU", aborts)
    notes = {each["name"]: each["note"] for each in new_book().rows}
    assert notes.pop("c").startswith("the process was ended")
    assert notes == {"a": "", "b": "ZeroDivisionError: division by zero"}
    # In the same call it is left alone; the next call tries it again, and nothing else.
    assert new_book().has("c", "CPU")
    later = new_book(again=True)
    assert (later.has("b", "CPU"), later.has("c", "CPU")) == (True, False)
    # No row is begun when the time is over.
    with pytest.raises(pair_steps.TimeOverError):
        new_book(until=0.0).add("network", "d", "CPU", lambda: {"value_ms": 1.0})


@pytest.mark.parametrize("name", ["MLP 11-32-32-1, Adam", "language model"])
def test_a_captured_step_is_one_replay(pair_steps: Any, name: str) -> None:
    with record_steps() as recording:
        training = pair_steps.create(name, "cuda")
        assert pair_steps.make_capturable(training)
        replay = pair_steps.captured_step(training)
        for _ in range(3):
            replay()
    assert [type(event) for event in recording.trace.events if not hasattr(event, "inputs")] == [
        GraphLaunch
    ]


def test_the_names_are_those_of_the_networks_and_scripts(pair_steps: Any) -> None:
    assert len(set(pair_steps.NAMES)) == len(pair_steps.NAMES) == 30
    scripts = {path.stem for path in (GPU.parents[1] / "tests" / "cases").glob("*.py")}
    assert set(pair_steps.CASES) == scripts


def pairs(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, str(GPU / "pairs.py"), *options),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_the_whole_part_runs_on_the_cpu(tmp_path: Path) -> None:
    wanted = ("--out", str(tmp_path), "--only", "disc, depth 2")
    first = pairs("--dry-run", *wanted)
    assert first.returncode == 0, first.stderr
    assert "no rate" in first.stdout
    with (tmp_path / "pairs.csv").open(newline="") as stream:
        rows = {(each["name"], each["where"]): each for each in csv.DictReader(stream)}
    assert {each["gpu"] for each in rows.values()} == {"dry run"}
    for where in ("CPU", "GPU eager"):
        assert float(rows["disc, depth 2", where]["value_ms"]) > 0
    for where in ("GPU captured", "GPU compiled"):
        assert rows["disc, depth 2", where]["note"] == "dry run"
    for host in ("absent", "present"):
        step = rows["disc, depth 2", "GPU eager"]
        low, value, high = (float(step[f"{host}{cell}"]) for cell in ("_low_ms", "_ms", "_high_ms"))
        assert low <= value <= high
        assert step[f"{host}_choice"]
    assert float(rows["item", "GPU"]["value_ms"]) > 0
    assert "accelerator" in rows["H2D pinned 4 bytes, synchronize", "GPU"]["note"]
    # Predicted anew from the two files alone.
    again = pairs("--predict", *wanted)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interrupted_says_what_is_left(ending: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "pair_steps.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(os.getpid()))\n"
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(GPU)!r}); import pairs, pathlib;"
        f"pairs.HERE = pathlib.Path({str(tmp_path)!r});"
        f"sys.exit(pairs.main(['--dry-run', '--out', {str(tmp_path)!r}]))"
    )
    with subprocess.Popen(
        (sys.executable, "-c", program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        child = tmp_path / "child"
        wait_until(lambda: child.exists() and child.read_text())
        process.send_signal(ending)
        out, told = process.communicate(timeout=60)
    assert process.returncode == 1, told
    assert out == "left: gpu, cpu, first compiled, cases, compiled; the same command goes on\n"
    assert not told
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.read_text()), 0)


@pytest.mark.slow
def test_a_wrong_command_line_is_told(tmp_path: Path) -> None:
    found = pairs("--dry-run", "--out", str(GPU.parent / "data"))
    assert found.returncode == 2
    assert "no measurement" in found.stderr
    found = pairs("--dry-run", "--out", str(tmp_path / "out"), "--only", "disc, depth 3")
    assert found.returncode == 1
    assert found.stderr.count("no network or case is called 'disc, depth 3'") == 1

"""Run ``breakeven check`` and check what is true of every run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from check_process import BREAKEVEN, TAG_NAME, CheckRun, end_leftovers, list_files, run_process
from headless_browser import Browser

import breakeven

# Microcode takes ten times as long and more.
_LEAST_SLOWDOWN = 3.0

_PACKAGE = str(Path(breakeven.__file__).parent)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where caches go: out of the user's home, and kept from test to test."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def slow_subnormals() -> None:
    """Skip where the processor computes with subnormal numbers as fast as with others."""
    slowdown = _multiplying_s(1e-39) / _multiplying_s(1.0)
    if slowdown < _LEAST_SLOWDOWN:
        pytest.skip(f"subnormal numbers cost this processor {slowdown:.2f} times the time")


def _multiplying_s(value: float) -> float:
    factors = torch.full((64, 512), value)
    times_s: list[float] = []
    for _ in range(50):
        begun_s = time.perf_counter()
        torch.mul(factors, 0.99)
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)


@pytest.fixture
def work_folder(tmp_path: Path) -> Path:
    """Return the working directory of the command."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return the file that a script touches to show that it ran (``MARKER_FILE``)."""
    folder = tmp_path / "marked"
    folder.mkdir()
    return folder / "marker"


@pytest.fixture
def run_check(
    tmp_path: Path,
    work_folder: Path,
    marker: Path,
    cache_folder: Path,
    request: pytest.FixtureRequest,
) -> Callable[..., CheckRun]:
    """Return a function that runs ``breakeven check`` and checks what is true of every run.

    Whatever the outcome: no traceback of breakeven's own, no process left, no new file in the
    working directory or among the temporary files, an answer on stdout only if there is one.
    Processes are looked for on systems with ``/proc`` alone.
    """
    # Short, since sockets are made in it, whose paths may have 107 characters.
    temp_folder = Path(tempfile.mkdtemp(prefix="t-"))
    request.addfinalizer(lambda: shutil.rmtree(temp_folder))  # noqa: PT021 - beside its making

    def run(
        target: str | Path,
        *options: str,
        arguments: Sequence[str] = (),
        as_json: bool = True,
        timeout_s: float = 240.0,
        interrupt_when: Path | None = None,
        interrupt_by: signal.Signals = signal.SIGINT,
        new_files: Sequence[str] = (),
    ) -> CheckRun:
        command = [str(BREAKEVEN), "check", str(target), *options]
        command += ["--keep-writes-in", str(marker.parent)]
        if as_json:
            command.append("--json")
        if arguments:
            command += ["--", *arguments]
        tag = f"{tmp_path}-{time.monotonic_ns()}"
        variables = {
            **os.environ,
            "TMPDIR": str(temp_folder),
            "XDG_CACHE_HOME": str(cache_folder),
            "TORCHINDUCTOR_CACHE_DIR": str(cache_folder / "inductor"),
            "TRITON_CACHE_DIR": str(cache_folder / "triton"),
            "MARKER_FILE": str(marker),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            TAG_NAME: tag,
        }
        before = list_files(work_folder, temp_folder)
        try:
            ended = run_process(
                command,
                work_folder,
                variables,
                tmp_path,
                timeout_s,
                interrupt_when,
                interrupt_by,
            )
        finally:
            left = end_leftovers(tag)

        assert _PACKAGE not in ended.stderr, ended.stderr
        assert "bug in breakeven" not in ended.stderr, ended.stderr
        assert left == []
        assert list_files(work_folder, temp_folder) - before == {
            work_folder / name for name in new_files
        }
        if ended.returncode not in (0, 1):  # 1: the answer meets a condition of --fail-if
            assert ended.stdout == ""
        elif as_json:
            return ended._replace(document=json.loads(ended.stdout))
        return ended

    return run


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser for the tests of a file."""
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()

"""Run scripts and store the answers of their processes, for the tests of the reports.

    python tests/frozen/freeze.py [NAME ...]

Freezes the runs of `QUESTIONS` with these names, or all, to ``tests/frozen/runs``. A run takes ten
to sixty seconds on two cores; then ``pytest tests/frozen --update-frozen`` makes the reports.
Freeze a run again only after a change of its script, or of the recording or timing. A frozen run
tests all later processing. One case needs pillow.
"""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS)]

import msgspec  # noqa: E402
import pytest  # noqa: E402

from breakeven.calibrate.here import kind_here  # noqa: E402
from breakeven.capture import HostRun, Launcher, RunRequest  # noqa: E402
from breakeven.device import HostCalibration  # noqa: E402
from breakeven.errors import BreakevenError  # noqa: E402
from breakeven.processor import has_half_hardware  # noqa: E402
from breakeven.simulate import CpuRates  # noqa: E402
from breakeven.store import read_host  # noqa: E402
from breakeven.studies import batch_sizes  # noqa: E402
from frozen.documents import differences  # noqa: E402
from frozen.questions import QUESTIONS  # noqa: E402
from frozen.replay import (  # noqa: E402
    Answer,
    FrozenRun,
    Machine,
    Question,
    key_of,
    replayed,
    reports_of,
)

RUNS = Path(__file__).parent / "runs"
# Replaces the folder of the scripts in frozen documents.
PROJECT = "/project"


class FreezingLauncher(Launcher):
    """Does each request once, and stores the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Answer] = {}
        self.host: HostRun | None = None
        self.rates: CpuRates | None = None

    def run(self, request: RunRequest, tell: Callable[[str], None] = lambda _: None) -> Answer:
        key = key_of(request)
        if key not in self.answers:
            self.answers[key] = super().run(request, tell)
        return self.answers[key]

    def remembered_host(self, key: Mapping[str, str]) -> HostCalibration | None:
        found = read_host(key)
        if found is not None:
            self.host = HostRun(calibration=found, other_load_fraction=0.0)
        return found

    def measure_host(self, num_rounds: int) -> HostRun:
        self.host = self.host or super().measure_host(num_rounds)
        return self.host

    def measure_cpu_rates(self) -> CpuRates:
        self.rates = self.rates or super().measure_cpu_rates()
        return self.rates


# Source folders of the questions' targets, by the first part of a target.
SCRIPTS = {
    "examples": TESTS.parent / "examples",
    "cases": TESTS / "cases",
    "corpus": TESTS / "corpus",
    "scripts": TESTS / "e2e" / "scripts",
}


def main(names: list[str]) -> int:
    """Freeze the runs of these names, or all."""
    RUNS.mkdir(exist_ok=True)
    failed: list[str] = []
    for name in names or QUESTIONS:
        begun_s = monotonic()
        try:
            size = freeze(name, QUESTIONS[name])
        except BreakevenError as error:
            failed.append(name)
            print(f"{name}: no answer: {error}", flush=True)
            continue
        print(f"{name}: {size / 1000:.0f} kB, {monotonic() - begun_s:.0f} s", flush=True)
    return 1 if failed else 0


def path_of(name: str) -> Path:
    """Return the file of a frozen run."""
    return RUNS / f"{name}.json.gz"


def freeze(name: str, question: Question) -> int:
    """Run a script, store the answers of its processes, and return the file's size in bytes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve() / "project"
        for name_there, scripts in SCRIPTS.items():
            shutil.copytree(scripts, folder / name_there)
        os.chdir(folder)
        run, reports = run_and_report(question)
        neutral = {str(folder): PROJECT, sys.prefix: "/python", sys.base_prefix: "/python"}
        os.chdir(TESTS)
    document = neutrally(msgspec.json.encode(run), neutral)
    found = replayed(msgspec.json.decode(document, type=FrozenRun))
    # Use the replayed terminal lines: the folder's name changes the line breaks.
    told = msgspec.json.decode(neutrally(reports, neutral)) | {"terminal": found["terminal"]}
    for difference in differences(told, found):
        raise AssertionError(f"{name} is replayed as another answer: {difference}")
    path_of(name).write_bytes(gzip.compress(document, mtime=0))
    return path_of(name).stat().st_size


def run_and_report(question: Question) -> tuple[FrozenRun, bytes]:
    """Return the process answers of a check and an explanation, and their reports as JSON."""
    with pytest.MonkeyPatch.context() as patch, FreezingLauncher() as launcher:
        patch.setenv("BREAKEVEN_CALIBRATIONS", "")
        patch.setattr("breakeven.calibrate.here.read_host", launcher.remembered_host)
        patch.setattr("breakeven.studies.engine.read_run", lambda *_: None)
        patch.setattr("breakeven.studies.engine.write_run", lambda *_: None)
        patch.setattr("breakeven.studies.study.Launcher", lambda _: nullcontext(launcher))
        reports = reports_of(question)
        assert launcher.host is not None
        half_formats = tuple(name for name in ("bf16", "fp16") if has_half_hardware(name))
        run = FrozenRun(
            question=question,
            machine=Machine(
                date=datetime.now(UTC).date().isoformat(),
                python=platform.python_version(),
                kind=kind_here().id,
                half_formats=half_formats,
                memory_bytes=batch_sizes._memory_bytes(),
            ),
            ready=launcher.ready(),
            host=launcher.host,
            rates=launcher.rates,
            answers=launcher.answers,
            writes=launcher.writes,
        )
    return run, msgspec.json.encode(reports)


def neutrally(document: bytes, neutral: dict[str, str]) -> bytes:
    """Return a document with neutral folder names in place of this machine's."""
    for folder, other in neutral.items():
        document = document.replace(folder.encode(), other.encode())
    return document


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

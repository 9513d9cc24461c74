"""Make the reports of a frozen run: process its stored answers with today's package.

This starts no processes. If the package changes, then adapt only this file: the name of a request
(`key_of`), its answers (`FrozenLauncher`), the facts of the machine (`frozen_machine`), and the
calls that make reports (`reports_of`). If a stored field is renamed, then let `read_run` rename it.
"""

from __future__ import annotations

import gzip
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest

from breakeven.capture import HostRun, PlainRun, RunFailure, RunRequest, TracedRun
from breakeven.capture.messages import Ready
from breakeven.device import find_kind
from breakeven.report import to_json
from breakeven.simulate import CompileMode, CpuRates
from breakeven.studies import (
    TrainingLength,
    check_target,
    explain_target,
    parse_axis,
    sweep_target,
)
from breakeven.trace import FileWrites
from factories.terminal import shown

Answer = TracedRun | PlainRun | RunFailure


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of the machine that the package reads outside the processes of a run.

    Args:
        date: The day of the run.
        python: Version of Python.
        kind: Name of the kind of machine: ``cloud``, ``desktop``, ...
        half_formats: The formats of ``bf16`` and ``fp16`` that the CPU computes in hardware.
        memory_bytes: Memory that a run may use.
    """

    date: str
    python: str
    kind: str
    half_formats: tuple[str, ...]
    memory_bytes: int


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's request: the target, and the options of the command line.

    With axes it asks for a sweep, else for a check and an explanation.
    """

    target: str
    arguments: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    host: str = "auto"
    measured: tuple[str, ...] = ()
    steps: int | None = None
    epochs: int | None = None
    compile_mode: str = ""
    tries_cpu: bool = True
    axes: tuple[str, ...] = ()


class FrozenRun(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of the processes of one question about a script.

    Args:
        question: The user's request.
        machine: The machine of the run.
        ready: The first process's facts about torch and the machine.
        host: Costs of the host per operator.
        rates: Compute and memory rates of a CPU core; None if they were not requested.
        answers: The answers by the name of the request.
        writes: The files that the script wrote.
    """

    question: Question
    machine: Machine
    ready: Ready
    host: HostRun
    rates: CpuRates | None
    answers: dict[str, Answer]
    writes: FileWrites | None


def read_run(path: Path) -> FrozenRun:
    """Return the frozen run in a file."""
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=FrozenRun)


def key_of(request: RunRequest) -> str:
    """Return the name of a request, which is unique within a check."""
    after = request.records_after
    what = ("record after" if after else "record") if request.is_traced else "time"
    parts: dict[str, object] = {
        "moved": request.is_moved and request.is_traced,
        "longer": request.records_longer and request.is_traced,
        "update": after,
        "batch": request.new_batch_size,
        # A plain run at the script's own batch size answers with and without generated code.
        "generated": request.tries_generated and request.new_batch_size > 0,
        "cuda": request.has_cuda,
        "gpu": request.on_gpu,
        "arguments": "/".join(request.target.arguments),
        **request.configuration.changes,
    }
    return " ".join([what, *(f"{name}={value}" for name, value in parts.items() if value)])


class FrozenLauncher:
    """Returns the answers of a frozen run; starts no processes."""

    def __init__(self, run: FrozenRun) -> None:
        self._run = run
        self.output = ""
        self.writes = run.writes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ready(self) -> Ready:
        return self._run.ready

    def run(self, request: RunRequest, _: Callable[[str], None] = lambda _: None) -> Answer:
        key, answers = key_of(request), self._run.answers
        assert key in answers, (
            f"{key!r} is asked for, and {self._run.question.target} was frozen with answers to "
            f"{sorted(answers)}: adapt key_of, or freeze the run again (tests/frozen/freeze.py)"
        )
        return answers[key]

    def measure_host(self, _: int) -> HostRun:
        return self._run.host

    def measure_cpu_rates(self) -> CpuRates:
        assert self._run.rates is not None, "the run was frozen without the rates of the CPU"
        return self._run.rates


@contextmanager
def frozen_machine(run: FrozenRun) -> Iterator[None]:
    """Simulate the machine of a frozen run, in a folder with an empty file for its script."""
    machine, target = run.machine, run.question.target
    clock = SimpleNamespace(now=lambda _: datetime.fromisoformat(machine.date))
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        chdir(folder),
    ):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
        patch.setenv("BREAKEVEN_CALIBRATIONS", "")
        # Disable all caches of measurements.
        patch.setattr("breakeven.calibrate.here.read_host", lambda _: None)
        patch.setattr("breakeven.calibrate.here.write_host", lambda *_: None)
        patch.setattr("breakeven.studies.engine.read_run", lambda *_: None)
        patch.setattr("breakeven.studies.engine.write_run", lambda *_: None)
        patch.setattr("breakeven.studies.engine.machine_lock", lambda _: nullcontext())
        patch.setattr("breakeven.studies.study.Launcher", lambda _: FrozenLauncher(run))
        patch.setattr("breakeven.calibrate.here.kind_here", lambda: find_kind(machine.kind))
        patch.setattr("breakeven.calibrate.elsewhere.datetime", clock)
        patch.setattr("breakeven.studies.batch_sizes._memory_bytes", lambda: machine.memory_bytes)
        patch.setattr("breakeven.studies.runner.cpu_name", lambda: run.ready.processor)
        has_half_hardware = machine.half_formats.__contains__
        patch.setattr("breakeven.studies.runner.has_half_hardware", has_half_hardware)
        patch.setattr("breakeven.studies.explain.has_half_hardware", has_half_hardware)
        patch.setattr(platform, "python_version", lambda: machine.python)
        yield


def reports_of(question: Question) -> dict[str, Any]:
    """Return the reports of `check` and `explain`, or of `sweep`."""
    asked: dict[str, Any] = {"arguments": question.arguments, "host": question.host}
    if question.axes:
        axes = [parse_axis(text) for text in question.axes]
        sweep = sweep_target(question.target, devices=question.devices, axes=axes, **asked)
        return _documents(sweep=sweep)
    asked["measured"] = question.measured
    check = check_target(
        question.target,
        devices=question.devices,
        length=TrainingLength(num_steps=question.steps, num_epochs=question.epochs),
        compile_mode=CompileMode(question.compile_mode) if question.compile_mode else None,
        **asked,
    )
    gpus = [name for name in question.devices if " cores of " not in name]
    explain = explain_target(question.target, devices=gpus, tries_cpu=question.tries_cpu, **asked)
    return _documents(check=check, explain=explain)


def _documents(**reports: msgspec.Struct) -> dict[str, Any]:
    """Return reports as JSON documents, and the terminal lines of each."""
    terminal = {
        name: [line.rstrip() for line in shown(report).splitlines()]
        for name, report in reports.items()
    }
    documents = {name: msgspec.json.decode(to_json(report)) for name, report in reports.items()}
    return {**documents, "terminal": terminal}


def replayed(run: FrozenRun) -> dict[str, Any]:
    """Return the reports that today's package makes of a frozen run."""
    with frozen_machine(run):
        return reports_of(run.question)

"""One public script: by itself, then under `breakeven check` and `explain`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import msgspec
from public_data import fake
from public_table import Script

COMMANDS = ("check", "explain")
# Processes under way, each the first of its session; once it is over, no thread starts another.
_RUNNING: set[subprocess.Popen[bytes]] = set()
_IS_OVER = Event()
# What an error says that takes the script to be at fault; only scripts that run are asked about.
BLAMING = ("check that the script runs without breakeven",)
# Nothing that a script asks of the world is answered here: it is to fail at once, not to wait.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "Agg",
    "SDL_VIDEODRIVER": "dummy",
}


class NativeRun(msgspec.Struct, frozen=True, kw_only=True):
    """How a script did by itself.

    Args:
        trained: It ended with 0, or still ran when its time was over.
        seconds: How long it ran.
        exit_code: None where its time was over.
        last_words: Of stderr, else of stdout, where it failed.
    """

    trained: bool
    seconds: float
    exit_code: int | None
    last_words: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a command of breakeven said of a script.

    Args:
        answered: It ended with 0 and printed one document.
        seconds: How long it took.
        exit_code: None where its time was over.
        error: The error's lines up to the script's output, in one.
        blames_script: The error says that the script itself does not run.
        verdict: ``cpu``, ``gpu`` or ``too_close``.
        cpu_step_ns: Of the step on this CPU.
        best_gpu: The fastest GPU, and its step.
        num_ops: Of the recorded step.
        raising_lines: Of each finding DEV001, place and title.
        findings: Codes of all findings, at their lines.
        caveats: Codes.
        command: Repeats it, in ``folder``.
    """

    answered: bool
    seconds: float
    exit_code: int | None
    error: str = ""
    blames_script: bool = False
    verdict: str = ""
    cpu_step_ns: float | None = None
    best_gpu: tuple[str, float] | None = None
    num_ops: int | None = None
    raising_lines: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    command: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a row.

    Args:
        name: Of the row.
        left_out: Why it was not run, else empty.
        native: By itself; None where it needs a GPU, or was left out.
        answers: By command; empty where it does not run by itself.
    """

    name: str
    left_out: str = ""
    native: NativeRun | None = None
    answers: dict[str, Answer] = {}

    @property
    def is_native(self) -> bool:
        """Whether the script trains here by itself."""
        return self.native is not None and self.native.trained

    @property
    def is_answered(self) -> bool:
        """Whether every command that was run answered."""
        return bool(self.answers) and all(answer.answered for answer in self.answers.values())


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: of a script by itself, of a command, and of one run of the script within it."""

    native: float
    command: float
    run: float


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """Runs rows.

    Args:
        repositories: Folder of ``owner/name``.
        source: Tree of breakeven whose ``src`` is used; the installed one without.
        commands: Of breakeven.
        limits: How long things may take.
        packages: Where the folders of ``own_packages`` are.
        kept: Where working folders are left, each under its row's name; removed without.
    """

    repositories: Path
    source: Path | None
    commands: tuple[str, ...]
    limits: Limits
    packages: Path | None = None
    kept: Path | None = None

    def run(self, script: Script) -> Outcome:
        """Return what became of a row."""
        if reason := self._reason_to_leave_out(script):
            return Outcome(name=script.name, left_out=reason)
        if self.kept is None:
            place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        else:
            shutil.rmtree(self.kept / script.name, ignore_errors=True)
            (self.kept / script.name).mkdir(parents=True)
            place = nullcontext(str(self.kept / script.name))
        with place as name:
            folder, environment = self._prepare(script, Path(name))
            for arguments in script.before:
                # What is missing then shows in the script's own run.
                run_for(self.limits.native, [sys.executable, *arguments], folder, environment)
            native = None
            if not script.needs_gpu:
                native = self._run_natively(script, folder, environment)
            answers = {}
            if native is None or native.trained:
                for command in self.commands:
                    answers[command] = self._ask(command, script, folder, environment)
        return Outcome(name=script.name, native=native, answers=answers)

    def _reason_to_leave_out(self, script: Script) -> str:
        if script.skip:
            return script.skip
        checkout = self.repositories / script.repository
        if not checkout.is_dir():
            return f"no folder {checkout}"
        entry = checkout / script.folder / script.script
        if not script.module and not entry.is_file():
            return f"no file {entry}"
        own = script.own_packages
        if own and (self.packages is None or not (self.packages / own).is_dir()):
            return f"--packages has no folder {own}"
        missing = [name for name in script.packages if find_spec(name) is None]
        return f"not installed: {', '.join(missing)}" if missing else ""

    def _prepare(self, script: Script, place: Path) -> tuple[Path, dict[str, str]]:
        """Copy the checkout and fake its data; return where the script runs, and its variables."""
        checkout = place / "checkout" / Path(script.repository).name
        shutil.copytree(
            self.repositories / script.repository, checkout, ignore=shutil.ignore_patterns(".git")
        )
        folder = (checkout / script.folder).resolve()
        folders = {name: str(place / name.lower()) for name in ("TORCH_HOME", "HF_HOME", "HOOKS")}
        for entry in script.data:
            fake(entry, folder, folders)
        path = [folders["HOOKS"], *(str((folder / name).resolve()) for name in script.path)]
        if script.own_packages:
            assert self.packages is not None, "else the row was left out"
            path.append(str(self.packages / script.own_packages))
        environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            **OFFLINE,
            "TORCH_HOME": folders["TORCH_HOME"],
            "HF_HOME": folders["HF_HOME"],
            "PYTHONPATH": os.pathsep.join(path),
            **script.environment,
        }
        return folder, environment

    def _run_natively(
        self, script: Script, folder: Path, environment: Mapping[str, str]
    ) -> NativeRun:
        option = ["-m"] if script.module else []
        command = [sys.executable, *option, script.script, *script.arguments]
        limit_s = script.native_seconds or self.limits.native
        exit_code, seconds, output, complaints = run_for(
            limit_s, command, folder, environment, has_terminal=script.terminal
        )
        trained = exit_code in (None, 0)
        return NativeRun(
            trained=trained,
            seconds=round(seconds, 1),
            exit_code=exit_code,
            last_words="" if trained else last_line(complaints) or last_line(output),
        )

    def _ask(
        self, command: str, script: Script, folder: Path, environment: Mapping[str, str]
    ) -> Answer:
        option = ["-m"] if script.module else []
        asked = [
            *("-m", "breakeven", command, *option, script.script, "--json", "-q"),
            *("--time-limit", f"{self.limits.run:g}", "--", *script.arguments),
        ]
        if self.source is not None:
            path = os.pathsep.join([str(self.source / "src"), environment["PYTHONPATH"]])
            environment = {**environment, "PYTHONPATH": path}
        exit_code, seconds, output, complaints = run_for(
            self.limits.command,
            [sys.executable, *asked],
            folder,
            environment,
            has_terminal=script.terminal,
        )
        known = {"seconds": round(seconds, 1), "exit_code": exit_code, "command": " ".join(asked)}
        if exit_code == 0:
            try:
                return read_answer(json.loads(output), known)
            except json.JSONDecodeError:
                complaints = f"error: printed no document: {output[:100]!r}"
        blames_script = any(words in complaints for words in BLAMING)
        error = error_of(complaints) if exit_code is not None else "did not end in time"
        return Answer(answered=False, error=error, blames_script=blames_script, **known)


def run_for(
    limit_s: float,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    has_terminal: bool = False,
) -> tuple[int | None, float, str, str]:
    """Run a command and end it, with all that it started, when its time is over.

    Returns:
        Its status, or None where its time was over; its seconds; its stdout; its stderr.
    """
    started_s = monotonic()
    # Files: a pipe stays open as long as any process that the script left behind.
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as complaints,
        terminal() if has_terminal else nullcontext(subprocess.DEVNULL) as typed,
    ):
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=typed,
            stdout=output,
            stderr=complaints,
            start_new_session=True,
        )
        _RUNNING.add(process)
        if _IS_OVER.is_set():
            end_group(process)
        try:
            exit_code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            _RUNNING.discard(process)
            end_group(process)
        seconds = monotonic() - started_s
        written = []
        for file in (output, complaints):
            file.seek(0)
            written.append(file.read().decode(errors="replace"))
    return exit_code, seconds, written[0], written[1]


@contextmanager
def terminal() -> Iterator[int]:
    """Give a terminal of 80 x 24 characters, at which nobody types."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its session that are left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_all() -> None:
    """End what is under way in all threads, for good."""
    _IS_OVER.set()
    for process in tuple(_RUNNING):
        end_group(process)


def is_over() -> bool:
    """Return whether all was ended, so that what ended now is no outcome."""
    return _IS_OVER.is_set()


def read_answer(report: dict[str, Any], known: dict[str, Any]) -> Answer:
    """Return what a report says, in short."""
    cpu = [result for result in report["results"] if result["kind"] == "cpu"]
    gpus = [result for result in report["results"] if result["kind"] == "gpu"]
    best = min(gpus, key=lambda result: result["step_ns"]) if gpus else None
    return Answer(
        answered=True,
        verdict=report["verdict"]["choice"],
        cpu_step_ns=cpu[0]["step_ns"] if cpu else None,
        best_gpu=(best["device"], best["step_ns"]) if best else None,
        num_ops=report["step"]["num_ops"],
        raising_lines=tuple(
            f"{place(finding)}: {finding['title']}"
            for finding in report["findings"]
            if finding["code"] == "DEV001"
        ),
        findings=tuple(f"{found['code']} {place(found)}" for found in report["findings"]),
        caveats=tuple(caveat["code"] for caveat in report["caveats"]),
        **known,
    )


def place(finding: Mapping[str, Any]) -> str:
    """Return the file's name and the line of a finding."""
    return f"{Path(finding['file']).name}:{finding['line']}" if finding["file"] else "-"


def error_of(complaints: str) -> str:
    """Return the lines from ``error:`` to the script's output, joined."""
    _, found, rest = complaints.rpartition("error: ")
    if not found:
        return last_line(complaints) or "said nothing"
    kept = []
    for line in rest.splitlines():
        if line.startswith("  the script's last output:"):
            break
        kept.append(line.strip())
    return " ".join(kept)


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""

"""Everything that is to be done where a GPU is at hand, in one command that goes on where it ended.

    python benchmarks/gpu/run.py --out DIR

Each call takes at most ``--seconds`` (450) and ends with what is left; call it until nothing is.
README.md beside it says what each part does, what it needs, and which files it writes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PARTS = ("pairs", "calibrate", "steps", "tests", "doctor", "auto", "tune", "examples", "systems")
# Faults that cost most on most GPUs, one of a kind; the others come after all else.
_FAULTS_FIRST = (
    "sync_item", "h2d_pageable", "opt_loop", "per_sample_loop", "no_tf32_amp", "cpu_roundtrip",
    "sync_metrics", "h2d_create",
)  # fmt: skip
_NEEDED = ("msgspec", "tomlkit", "platformdirs", "rich", "jinja2", "filelock", "numpy", "torch")
# A command is not begun where less than this is left of the time.
_LEAST_S = 25.0
_PAIRS_S = 360.0
_CALIBRATE_S = {False: 360.0, True: 60.0}
# Tracing and predicting all steps, where no trace is known.
_PREDICT_S = 60.0
# What did not end within the time is tried once more.
_MOST_TRIES = 2
# For a command to end what it started.
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of breakeven, or of the tests, whose answer is kept.

    Args:
        part: One of `PARTS`.
        name: Unique.
        arguments: After ``python``.
        is_calibrated: Whether predictions use what was measured of the GPU.
        about_s: Seconds that it may take.
    """

    part: str
    name: str
    arguments: tuple[str, ...] = ()
    is_calibrated: bool
    about_s: float = 0.0

    @property
    def key(self) -> str:
        """Return what tells it from the others."""
        return f"{self.part} {self.name} {'after' if self.is_calibrated else 'before'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what there is time for; return 0 when nothing is left, 1 when something is."""
    args = _parse(argv)
    args.out = args.out.resolve()  # commands run in another folder
    args.out.mkdir(parents=True, exist_ok=True)
    prepare_path(args)
    run = Run(args)
    if args.dry_run:
        for text in run.pending():
            print(text)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of `timeout`: as Ctrl-C
    with suppress(KeyboardInterrupt):  # it ends as when its time is over
        run.go()
    left = list(run.pending())
    run.write_summary(left)
    print("nothing is left" if not left else f"{len(left)} left; the same command goes on")
    return 1 if left else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of at most 8 files")
    parser.add_argument("--seconds", type=float, default=450.0, help="of this call (450)")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--device", default="auto", help="as breakeven calibrate --device")
    parser.add_argument("--quick", action="store_true", help="the short calibration")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that the machine lacks")
    parser.add_argument("--dry-run", action="store_true", help="list what would be done")
    parser.add_argument(
        "--tiny", action="store_true", help="sizes for a CPU, to try the path: --device cpu"
    )
    return parser.parse_args(argv)


def prepare_path(args: argparse.Namespace) -> None:
    """Let this process and its children import breakeven from the tree, and carried wheels.

    Raises:
        SystemExit: A package is missing.
    """
    paths = [str(ROOT / "src"), str(Path(__file__).parent), str(ROOT / "benchmarks")]
    if args.wheels is not None:
        site = args.wheels.resolve() / "unpacked"
        for wheel in sorted(args.wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        paths.append(str(site))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *([before] if before else [])])
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}; carry their wheels: --wheels DIR")


class Run:
    """The work of one call.

    Args:
        args: Of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from breakeven.calibrate.gpu import find_gpu

        self._args = args
        self._until_s = time.monotonic() + args.seconds
        self._folder = args.out / "calibrations"
        self._steps = args.out / "steps.csv"
        self._reports = args.out / "reports.jsonl"
        is_stand_in = args.tiny and args.device == "cpu"
        device = torch.device("cpu") if is_stand_in else find_gpu(args.device)
        if device is None:
            sys.exit("torch sees no GPU here")
        self._device = device

    def pending(self) -> Iterator[str]:
        """Yield what is left to do, in order."""
        yield from (command.key for command in self._pending_commands(are_first=True))
        if self._needs_calibration():
            yield "calibrate"
        if "steps" in self._args.part:
            yield from (f"steps {step.name}" for step in self._pending_steps())
            if self._needs_prediction():
                yield "steps predicted"
        yield from (command.key for command in self._pending_commands(are_first=False))

    def go(self) -> None:
        """Do what there is time for."""
        self._do_commands(are_first=True)
        if self._needs_calibration():
            self._calibrate()
        if "steps" in self._args.part:
            self._measure_steps()
            if self._needs_prediction() and self._left_s() > _PREDICT_S:
                self._predict_steps()
        self._do_commands(are_first=False)

    def _do_commands(self, *, are_first: bool) -> None:
        for command in list(self._pending_commands(are_first=are_first)):
            if self._left_s() > max(_LEAST_S, command.about_s):
                self._do(command)

    def _left_s(self) -> float:
        return self._until_s - time.monotonic()

    def _calibration_file(self) -> Path | None:
        return next(iter(sorted(self._folder.glob("*.json"))), None)

    def _calibration(self) -> Any:
        from breakeven.cost import read_calibration

        file = self._calibration_file()
        return None if file is None else read_calibration(file.read_bytes(), str(file))

    def _needs_calibration(self) -> bool:
        """Return whether there is none, or something was measured last and something is left."""
        if "calibrate" not in self._args.part:
            return False
        last = [answer["answer"] for answer in self._answers() if answer["part"] == "calibrate"]
        if not last or self._calibration_file() is None:
            return True
        return bool(last[-1]["num_new"] and last[-1]["num_left"])

    def _host(self, *, is_calibrated: bool) -> Any:
        """Return this machine, measured, with what its GPU's steps showed or without."""
        from breakeven.calibrate import find_host
        from breakeven.capture import Launcher
        from breakeven.cost import read_calibrations_again
        from breakeven.device import FOLDER_VARIABLE, HERE

        before = os.environ.get(FOLDER_VARIABLE)
        os.environ[FOLDER_VARIABLE] = str(self._folder) if is_calibrated else ""
        read_calibrations_again()
        try:
            with Launcher() as launcher:
                return find_host(HERE, launcher)
        finally:
            os.environ.pop(FOLDER_VARIABLE)
            if before is not None:
                os.environ[FOLDER_VARIABLE] = before
            read_calibrations_again()

    def _calibrate(self) -> None:
        from breakeven.calibrate.gpu import GpuRequest, calibrate_gpu, calibration_bytes
        from breakeven.store import write_document

        class Told:
            def begin(self, stage: str, expected_s: float | None = None) -> None:
                print(stage, flush=True)

            def detail(self, text: str) -> None:
                pass

            def end(self) -> None:
                pass

        begun_s = time.monotonic()
        host = self._host(is_calibrated=False)
        request = GpuRequest(
            device=self._device,
            is_quick=self._args.quick,
            is_tiny=self._args.tiny,
            budget_s=min(_CALIBRATE_S[self._args.quick], self._left_s()),
        )
        result = calibrate_gpu(request, Told(), host=host)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{result.calibration.device}.json"
        write_document(path, calibration_bytes(result.calibration), force=True)
        answer = {"num_new": result.num_new, "num_left": result.num_left}
        self._keep(Command(part="calibrate", name="gpu", is_calibrated=False), begun_s, answer)

    def _pending_steps(self) -> Iterator[Any]:
        from whole_steps import ENDED, read_rows, step_of, wanted_steps

        known = {step_of(row).name for row in read_rows(self._steps) if row["note"] != ENDED}
        for step in wanted_steps(is_tiny=self._args.tiny):
            if step.name not in known:
                yield step

    def _measure_steps(self) -> None:
        """Measure steps, and keep each; one that leaves a broken GPU behind ends the call.

        So does one that ends the process, which is tried once more.

        Raises:
            BreakevenError: The GPU answers no more.
        """
        from whole_steps import (
            ENDED_TWICE,
            described_row,
            read_rows,
            step_of,
            timed_cells,
            wanted_steps,
            write_rows,
        )

        from breakeven.calibrate.gpu.machine import check_gpu

        wanted = wanted_steps(is_tiny=self._args.tiny)
        for step in list(self._pending_steps()):
            if self._left_s() < step.about_s + _LEAST_S:
                continue
            before: list[Any] = read_rows(self._steps)
            rows = [row for row in before if step_of(row).name != step.name]
            row = described_row(step, self._device, number=wanted.index(step) + 1)
            if len(rows) < len(before):
                row["note"] = ENDED_TWICE
            # A library that aborts leaves this behind: later calls go on after the step.
            write_rows(self._steps, [*rows, row])
            try:
                row |= timed_cells(step, self._device)
            except BaseException:
                write_rows(self._steps, before)
                raise
            print(step.name, row.get("value_ms", row["note"]), flush=True)
            write_rows(self._steps, [*rows, row])
            if row["note"]:
                check_gpu(self._device)

    def _needs_prediction(self) -> bool:
        """Return whether a row has none, or one from before the last calibration."""
        from whole_steps import digest, read_rows

        file = self._calibration_file()
        if file is None:
            return False
        told_by = digest(file.read_bytes())
        rows = read_rows(self._steps)
        return any(row["calibration"] != told_by and not row["note"] for row in rows)

    def _predict_steps(self) -> None:
        """Set what is predicted beside every row, anew."""
        from whole_steps import Place, digest, read_rows, set_predicted, write_rows

        from breakeven.device import find_device

        rows: list[dict[str, Any]] = [dict(row) for row in read_rows(self._steps)]
        file, calibration = self._calibration_file(), self._calibration()
        assert file is not None
        told_by = digest(file.read_bytes())
        for row in rows:
            row["calibration"] = told_by
        device = calibration.spec or find_device(calibration.device)
        for when, own in (("before", None), ("after", calibration)):
            host = self._host(is_calibrated=own is not None)
            set_predicted(rows, when, Place(device=device, calibration=own, host=host))
        write_rows(self._steps, rows)

    def _commands(self) -> Iterator[Command]:
        seconds = min(_PAIRS_S, self._left_s() - _END_S)
        pairs = (
            "benchmarks/gpu/pairs.py",
            "--out",
            str(self._args.out),
            "--seconds",
            f"{seconds:.0f}",
        )
        dry = ("--dry-run", "--only", "disc, depth 2") if self._args.tiny else ()
        yield Command(
            part="pairs", name="small steps", arguments=(*pairs, *dry), is_calibrated=False
        )
        calibration = self._calibration()
        if calibration is None:
            return
        gpu = calibration.spec.name if calibration.spec else calibration.machine.gpu
        breakeven = ("-m", "breakeven")
        check = (*breakeven, "check", "--json", "-q", "--device", gpu)
        # Before it was measured, nothing is known of a GPU that the catalogue lacks.
        whens = (False, True) if calibration.spec is None else (True,)
        if self._args.tiny:
            arguments = (*check, "examples/disc_mlp.py")
            yield from _commands("examples", "disc_mlp", arguments, whens, 30)
            yield Command(
                part="tests", name="gpu", is_calibrated=False, about_s=20,
                arguments=("-m", "pytest", "-q", "-m", "gpu", "tests/e2e/test_gpu.py"),
            )  # fmt: skip
            return
        yield Command(
            part="tests", name="gpu", is_calibrated=False, about_s=120,
            arguments=("-m", "pytest", "-q", "-m", "gpu", "--require-gpu", "tests"),
        )  # fmt: skip
        script = "tests/e2e/scripts/fixes.py"
        checked = (*check, script)
        for cause in _FAULTS_FIRST:
            yield from _fault_commands(cause, checked)
        yield Command(
            part="auto", name="regret", arguments=("benchmarks/auto_regret.py", "--json"),
            is_calibrated=True, about_s=330,
        )  # fmt: skip
        for example in ("mnist_mlp", "small_cnn", "tiny_transformer", "amp_unet"):
            yield Command(
                part="tune",
                name=example,
                arguments=(*breakeven, "tune", f"examples/{example}.py", "--json", "-q"),
                is_calibrated=True,
                about_s=150,
            )
        for example in sorted((ROOT / "examples").glob("*.py")):
            arguments = (*check, f"examples/{example.name}")
            yield from _commands("examples", example.stem, arguments, whens, 60)
        from breakeven.systems import main_systems

        for entry in main_systems():
            arguments = (*breakeven, "workloads", entry.name, "--json", "-q")
            about_s = max(60, entry.about_s)
            yield from _commands("systems", entry.name, arguments, (False, True), about_s)
        text = (ROOT / script).read_text("utf-8")
        causes = [line[4:].partition("(")[0] for line in text.splitlines()
                  if line.startswith("def ") and "():" in line]  # fmt: skip
        for cause in causes:
            if cause not in _FAULTS_FIRST:
                yield from _fault_commands(cause, checked)

    def _pending_commands(self, *, are_first: bool) -> Iterator[Command]:
        """Yield the commands that come before the calibration, or all others."""
        tries: Counter[str] = Counter()
        for answer in self._answers():
            tries[answer["key"]] += _MOST_TRIES if answer["exit_code"] is not None else 1
        for command in self._commands():
            is_left = command.part in self._args.part and tries[command.key] < _MOST_TRIES
            if is_left and (command.part == "pairs") == are_first:
                yield command

    def _answers(self) -> list[dict[str, Any]]:
        if not self._reports.exists():
            return []
        lines = self._reports.read_text("utf-8").splitlines()
        return [answer for line in lines if isinstance(answer := _parsed(line), dict)]

    def _do(self, command: Command) -> None:
        """Run a command, and keep what it said; one that runs out of time says so."""
        folder = str(self._folder) if command.is_calibrated else ""
        begun_s, limit_s = time.monotonic(), self._left_s()
        process = subprocess.Popen(
            (sys.executable, *command.arguments),
            cwd=ROOT,
            env=os.environ | {"BREAKEVEN_CALIBRATIONS": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that all of it can be ended
        )
        try:
            out, told = process.communicate(timeout=limit_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code, out, told = None, "", f"no end within {limit_s:.0f} s"
        finally:
            end_command(process)
        self._keep(command, begun_s, _parsed(out), exit_code=code, told=told[-2000:])

    def _keep(
        self,
        command: Command,
        begun_s: float,
        answer: Any,
        *,
        exit_code: int | None = 0,
        told: str = "",
    ) -> None:
        kept = {
            "key": command.key,
            "part": command.part,
            "name": command.name,
            "is_calibrated": command.is_calibrated,
            "exit_code": exit_code,
            "seconds": round(time.monotonic() - begun_s, 1),
            "told": told,
            "answer": answer,
        }
        print(command.key, "exit code", exit_code, flush=True)
        before = self._reports.read_text("utf-8") if self._reports.exists() else ""
        with self._reports.open("a", encoding="utf-8") as stream:
            # On a line of its own, where the one before was broken off too.
            stream.write(("\n" if before and not before.endswith("\n") else "") + json.dumps(kept))
            stream.write("\n")

    def write_summary(self, left: Sequence[str]) -> None:
        """Write what was found for people: errors before and after, gains, failures."""
        from summary import summary_text
        from whole_steps import read_rows

        text = summary_text(self._calibration(), read_rows(self._steps), self._answers(), left)
        (self._args.out / "summary.md").write_text(text, "utf-8")


def _commands(
    part: str, name: str, arguments: tuple[str, ...], whens: Sequence[bool], about_s: float
) -> Iterator[Command]:
    """Yield a command without and with the calibration, as ``whens`` says."""
    for is_calibrated in whens:
        yield Command(
            part=part,
            name=name,
            arguments=arguments,
            is_calibrated=is_calibrated,
            about_s=about_s,
        )


def _fault_commands(cause: str, checked: tuple[str, ...]) -> Iterator[Command]:
    """Yield the check of a fault as written, and as mended."""
    for name, options in ((cause, ()), (f"{cause} mended", ("--fixed",))):
        yield Command(
            part="doctor",
            name=name,
            arguments=(*checked, "--", cause.upper(), *options),
            is_calibrated=True,
            about_s=40,
        )


def end_command(process: subprocess.Popen[Any]) -> None:
    """End a command and all that it started: as Ctrl-C does, then at once."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _parsed(out: str) -> Any:
    """Return a document as such, and anything else as its last lines."""
    try:
        return json.loads(out)
    except ValueError:
        return out[-4000:]


if __name__ == "__main__":
    sys.exit(main())

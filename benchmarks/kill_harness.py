"""What breakeven leaves behind when it is ended at any moment.

    python benchmarks/kill_harness.py
    python benchmarks/kill_harness.py --runs 40 --commands check tune --signals KILL --seed 7

Starts commands on small scripts, one of which starts helpers that would outlive it, and sends a
signal at a random moment of their usual duration: SIGTERM, SIGINT, SIGHUP or SIGKILL to the
command, SIGKILL to the process that runs the script for it, or SIGTERM to every process at once as
schedulers do. Counts processes that are there five seconds later, temporary files, files in
/dev/shm, and files that are not whole. 1 where there is any. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")
_PLAIN = ROOT / "examples" / "disc_mlp.py"
_HELPERS = ROOT / "tests" / "e2e" / "scripts" / "leaves_helpers.py"
_MARK = "BREAKEVEN_KILL_HARNESS"
_SERVER = b"breakeven.capture.process.server"
_GRACE_S = 5.0
_END_LIMIT_S = 30.0
_RUN_LIMIT_S = 180.0
# Compiled kernels are kept for later runs on purpose.
_KEPT = "torchinductor_"

# The script that `run` becomes is the user's own process, with whatever it leaves.
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[Path | None, ...]]] = {
    "check": (("check", "TARGET", "-q", "-o", "report.json"), (_PLAIN, _HELPERS)),
    "sweep": (
        ("sweep", "TARGET", "--over", "threads=1,2", "-q", "-o", "sweep.json"),
        (_PLAIN, _HELPERS),
    ),
    "tune": (("tune", "TARGET", "--budget", "4s", "-q", "-o", "tuned.toml"), (_PLAIN, _HELPERS)),
    "run": (("run", "TARGET", "--budget", "2s", "-q", "--", "--epochs", "20"), (_PLAIN,)),
    "calibrate": (("calibrate",), (None,)),
}
SIGNALS = ("TERM", "INT", "HUP", "KILL", "KILL-server", "TERM-all")


@dataclass(frozen=True, slots=True)
class Case:
    """One run to be ended.

    Args:
        command: Key of `COMMANDS`.
        script: Its target, where it has one.
        ending: One of `SIGNALS`; empty to let it run.
        moment: When, as a share of the usual duration.
    """

    command: str
    script: Path | None
    ending: str = ""
    moment: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a case."""

    case: Case
    exit_code: int
    duration_s: float
    ending_s: float = 0.0
    orphans: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    corrupt: tuple[str, ...] = ()
    stderr: str = ""

    @property
    def was_in_time(self) -> bool:
        """Return whether the signal came before the end."""
        return self.ending_s > 0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and what was left."""
    parser = argparse.ArgumentParser(prog="python benchmarks/kill_harness.py", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="(200)")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=tuple(COMMANDS))
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=SIGNALS)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="at a time (2)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGHUP):
        # As where it is started in the background, or by `nohup`: so would be what it starts.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    shared_before = _shared_memory()
    with ThreadPoolExecutor(args.jobs) as pool:
        whole = {
            (done.case.command, done.case.script): done
            for done in pool.map(run_case, _all_cases(args.commands))
        }
        for done in whole.values():
            print(f"{_name(done.case)}: {done.duration_s:.1f} s, exit code {done.exit_code}")
        cases = draw_cases(args.runs, args.commands, args.signals, args.seed)
        ended = pool.map(
            lambda case: run_case(case, whole[case.command, case.script].duration_s), cases
        )
        outcomes: list[Outcome] = []
        for outcome in ended:
            outcomes.append(outcome)
            print(f"\r{len(outcomes)} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    time.sleep(1.0)
    shared = sorted(_shared_memory() - shared_before)
    print(table(outcomes))
    for outcome in (*whole.values(), *outcomes):
        for what in ("orphans", "left", "corrupt"):
            for each in getattr(outcome, what):
                print(f"{what}: {each} ({_name(outcome.case)} at {outcome.case.moment:.3f})")
        if outcome.exit_code not in _expected_codes(outcome):
            print(f"exit code {outcome.exit_code} ({_name(outcome.case)}): {outcome.stderr[-400:]}")
    for name in shared:
        print(f"left in {_SHARED_MEMORY}: {name}")
    return int(bool(shared) or any(each.orphans or each.left or each.corrupt for each in outcomes))


def draw_cases(
    num_runs: int, commands: Sequence[str], signals: Sequence[str], seed: int
) -> list[Case]:
    """Return so many cases, evenly over commands, scripts and signals, at random moments."""
    generator = random.Random(seed)
    kinds = [(each, ending) for ending in signals for each in _all_cases(commands)]
    generator.shuffle(kinds)
    drawn = (kinds[number % len(kinds)] for number in range(num_runs))
    return [Case(each.command, each.script, ending, generator.random()) for each, ending in drawn]


def run_case(case: Case, usual_s: float = 0.0) -> Outcome:
    """Start a command in a folder of its own, end it, and look what is left."""
    folder = Path(tempfile.mkdtemp(prefix="kill-"))
    mark = secrets.token_hex(8)
    work, temporary, cache = (folder / name for name in ("work", "t", "cache"))
    for each in (work, temporary, cache):
        each.mkdir()
    command = [str(case.script) if word == "TARGET" else word for word in COMMANDS[case.command][0]]
    begun_s = time.monotonic()
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "breakeven", *command],
            cwd=work,
            env={
                **os.environ,
                "TMPDIR": str(temporary),
                "XDG_CACHE_HOME": str(cache),
                "PYTHONDONTWRITEBYTECODE": "1",
                _MARK: mark,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        ending_s = _end(process, case, usual_s, mark)
    finally:
        duration_s = time.monotonic() - begun_s
        orphans = _orphans(mark)
    outcome = Outcome(
        case=case,
        exit_code=process.returncode,
        duration_s=duration_s,
        ending_s=ending_s,
        orphans=tuple(orphans),
        left=tuple(each.name for each in temporary.iterdir() if not each.name.startswith(_KEPT)),
        corrupt=tuple(_corrupt(work, cache)),
        stderr=(folder / "stderr").read_text(errors="replace"),
    )
    shutil.rmtree(folder)
    return outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return one line for each command and signal."""
    head = ("command", "signal", "runs", "in time", "orphans", "left", "corrupt", "slowest end")
    rows = [head]
    kinds = sorted({(each.case.command, each.case.ending) for each in outcomes})
    for command, ending in (*kinds, ("all", "")):
        some = [
            each
            for each in outcomes
            if command == "all" or (each.case.command, each.case.ending) == (command, ending)
        ]
        counts = Counter[str]()
        for each in some:
            counts["in time"] += each.was_in_time
            for what in ("orphans", "left", "corrupt"):
                counts[what] += len(getattr(each, what))
        slowest_s = max((each.ending_s for each in some), default=0.0)
        numbers = (len(some), *(counts[what] for what in head[3:7]))
        rows.append((command, ending, *map(str, numbers), f"{slowest_s:.2f} s"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _end(process: subprocess.Popen[bytes], case: Case, usual_s: float, mark: str) -> float:
    """Return how long the command took to end after the signal; 0 where it had ended before."""
    if not case.ending:
        process.wait(_RUN_LIMIT_S)
        return 0.0
    try:
        process.wait(case.moment * usual_s)
        return 0.0
    except subprocess.TimeoutExpired:
        sent_s = time.monotonic()
    name, _, whom = case.ending.partition("-")
    marked = dict(_marked(mark))
    receivers = {
        "": [process.pid],
        "all": list(marked),
        # Where there is none yet, nobody: the command goes on to its end.
        "server": [each for each, command in marked.items() if _SERVER in command][:1],
    }[whom]
    for each in receivers:
        with suppress(ProcessLookupError):
            os.kill(each, signal.Signals[f"SIG{name}"])
    try:
        process.wait(_END_LIMIT_S if receivers else _RUN_LIMIT_S)
    except subprocess.TimeoutExpired:  # it counts among the orphans
        print(f"still running: {_name(case)} at {case.moment:.3f}", file=sys.stderr)
    return time.monotonic() - sent_s if receivers else 0.0


def _orphans(mark: str) -> list[str]:
    """Return the command lines of processes that do not end by themselves, and kill them."""
    deadline_s = time.monotonic() + _GRACE_S
    while (left := dict(_marked(mark))) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return [command.replace(b"\0", b" ").decode(errors="replace") for command in left.values()]


def _marked(mark: str) -> Iterator[tuple[int, bytes]]:
    entry = f"{_MARK}={mark}".encode()
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or of another user
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "cmdline").read_bytes()


def _corrupt(*folders: Path) -> Iterator[str]:
    """Yield the files that are not whole."""
    readers = {".json": json.loads, ".toml": tomllib.loads}
    for folder in folders:
        for file in folder.rglob("*"):
            if file.suffix == ".partial":
                yield file.name
            if file.suffix in readers:
                try:
                    readers[file.suffix](file.read_text())
                except ValueError as error:
                    yield f"{file.relative_to(folder)}: {error}"


def _expected_codes(outcome: Outcome) -> set[int]:
    name = outcome.case.ending.partition("-")[0]
    if not outcome.was_in_time:
        return {0}
    number = int(signal.Signals[f"SIG{name}"])
    # 0: it was about to end; the negative number: before it could heed signals, or the script's.
    return {0, 128 + number, -number} | ({3} if outcome.case.ending == "KILL-server" else set())


def _all_cases(commands: Sequence[str]) -> list[Case]:
    return [Case(command, script) for command in commands for script in COMMANDS[command][1]]


def _name(case: Case) -> str:
    script = case.script.name if case.script else ""
    return " ".join(filter(None, (case.command, script, case.ending)))


def _shared_memory() -> set[str]:
    return {each.name for each in _SHARED_MEMORY.iterdir()}


if __name__ == "__main__":
    sys.exit(main())

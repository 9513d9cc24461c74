"""What other work on the machine does to the answers of ``breakeven check``.

    python benchmarks/busy_machine.py
    python benchmarks/busy_machine.py --neighbours 0 4 --runs 3 examples/disc_mlp.py

Checks scripts beside processes that do nothing but use a processor each, several times, and sets
the predicted step of a GPU, the CPU's own and the verdict beside those of the quiet machine. On a
machine that is quiet otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from breakeven.units import format_duration

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = (
    ROOT / "examples" / "disc_mlp.py",
    *(
        ROOT / "benchmarks" / "workloads" / name
        for name in ("tabular.py", "lstm_forecaster.py", "resnet18.py", "ppo_policy.py")
    ),
)
NEIGHBOURS = (0, 1, 2, 4, 8)
_SPIN = "while True: pass"
# Copies of 64 MB: more than a cache holds.
_COPY = "a = bytearray(1 << 26)\nwhile True: b = bytes(a)"
_SETTLED = ("cpu", "gpu")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one check said; times in nanoseconds, 0 where it said nothing."""

    script: str
    beside: int
    cpu_ns: float = 0.0
    gpu_ns: float = 0.0
    choice: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python benchmarks/busy_machine.py", description=__doc__)
    parser.add_argument("scripts", nargs="*", type=Path, default=SCRIPTS, help="(five)")
    parser.add_argument("--neighbours", nargs="+", type=int, default=NEIGHBOURS, metavar="N")
    parser.add_argument("--copying", action="store_true", help="they copy memory instead")
    parser.add_argument("--one-thread", action="store_true", help="with OMP_NUM_THREADS=1")
    parser.add_argument("--runs", type=int, default=10, help="of each (10)")
    parser.add_argument("--device", default="T4", help="GPU to predict (T4)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the answers to FILE")
    parser.add_argument(
        "--from", dest="files", metavar="FILE", nargs="+", type=Path, default=[],
        help="show what --json wrote, together, instead of checking anything",
    )  # fmt: skip
    options = parser.parse_args(argv)
    answers = [Answer(**row) for file in options.files for row in json.loads(file.read_text())]
    if not options.files:
        if options.one_thread:
            os.environ["OMP_NUM_THREADS"] = "1"
        program = _COPY if options.copying else _SPIN
        # The quiet machine first, before it is warm from everything else.
        for count in sorted({0, *options.neighbours}):
            for script in options.scripts:
                with _neighbours(count, program):
                    answers += [_check(script, count, options.device) for _ in range(options.runs)]
                print(f"{script.stem} beside {count}: done", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(answer) for answer in answers], indent=1))
    print(f"{'script':18}{'beside':>7}{'this CPU':>22}{'GPU':>22}{'ratio':>8}  verdicts")
    for script in dict.fromkeys(answer.script for answer in answers):
        for count in sorted({answer.beside for answer in answers if answer.script == script}):
            _print_row(script, count, answers)
    _print_targets(answers)
    return 0


@contextlib.contextmanager
def _neighbours(count: int, program: str) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    try:
        time.sleep(1.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _check(script: Path, beside: int, device: str) -> Answer:
    command = ("breakeven", "check", str(script.resolve()), "--device", device, "--json", "-q")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, capture_output=True, check=False
        )
    if done.returncode:
        return Answer(script.stem, beside)
    report = json.loads(done.stdout)
    times: dict[str, list[float]] = {kind: [] for kind in _SETTLED}
    for result in report["results"]:
        times[result["kind"]].append(result["step_ns"])
    choice = report["verdict"]["choice"]
    return Answer(script.stem, beside, min(times["cpu"]), min(times["gpu"]), choice)


def _of(answers: Sequence[Answer], script: str, beside: int) -> list[Answer]:
    """Return what was answered for a script beside so many neighbours."""
    return [a for a in answers if (a.script, a.beside) == (script, beside) and a.choice]


def _opposite(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers that settle what the quiet machine settled the other way round."""
    found: list[Answer] = []
    for answer in answers:
        quiet = {each.choice for each in _of(answers, answer.script, 0)} & set(_SETTLED)
        if answer.choice in _SETTLED and quiet and answer.choice not in quiet:
            found.append(answer)
    return found


def _print_row(script: str, beside: int, answers: Sequence[Answer]) -> None:
    found, usual = _of(answers, script, beside), _of(answers, script, 0)
    if not found or not usual:
        print(f"{script:18}{beside:>7}  no answer")
        return

    def cell(times_ns: list[float], usual_ns: list[float]) -> str:
        change = median(times_ns) / median(usual_ns) - 1
        spread = math.log(max(times_ns) / min(times_ns))
        return f"{format_duration(median(times_ns), 3)} {change:+.0%} ±{spread / 2:.0%}"

    cpu = cell([each.cpu_ns for each in found], [each.cpu_ns for each in usual])
    gpu = cell([each.gpu_ns for each in found], [each.gpu_ns for each in usual])
    ratio = median(each.cpu_ns / each.gpu_ns for each in found)
    choices = [each.choice for each in found]
    verdicts = ", ".join(f"{choices.count(each)} {each}" for each in sorted(set(choices)))
    opposite = len([each for each in _opposite(answers) if each in found])
    more = f"; {opposite} OPPOSITE" if opposite else ""
    print(f"{script:18}{beside:>7}{cpu:>22}{gpu:>22}{ratio:>8.2f}  {verdicts}{more}")


def _print_targets(answers: Sequence[Answer]) -> None:
    """Print what the answers are to hold, and what they do."""
    scripts = dict.fromkeys(answer.script for answer in answers)
    print(f"\n{len(answers)} runs, {sum(not a.choice for a in answers)} of them without an answer")
    print(f"opposite to the quiet verdict: {len(_opposite(answers))} (0)")
    for name, limit in (("gpu_ns", "median 10 %, worst 20 %"), ("cpu_ns", "15 %")):
        changes: list[float] = []
        for script in scripts:
            busy, quiet = _of(answers, script, 4), _of(answers, script, 0)
            if busy and quiet:
                times = [[getattr(each, name) for each in some] for some in (busy, quiet)]
                changes.append(abs(median(times[0]) / median(times[1]) - 1))
        if changes:
            what = f"{name.removesuffix('_ns').upper()}, 4 neighbours against quiet"
            print(f"{what}: median {median(changes):.0%}, worst {max(changes):.0%} ({limit})")
    one = [answer for script in scripts for answer in _of(answers, script, 1)]
    if one:
        share = sum(answer.choice == "undecided" for answer in one) / len(one)
        print(f"undecided beside 1: {share:.0%} (10 %)")
    differences = [
        abs(math.log((first.cpu_ns / first.gpu_ns) / (second.cpu_ns / second.gpu_ns)))
        for script in scripts
        for first, second in itertools.pairwise(_of(answers, script, 0))
    ]
    if differences:
        print(f"ratio of two quiet runs: {median(differences):.1%} apart in the median (8 %)")


if __name__ == "__main__":
    sys.exit(main())

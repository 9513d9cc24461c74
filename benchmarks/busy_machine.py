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
import json
import math
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
    """What one check said; times in nanoseconds."""

    cpu_ns: float
    gpu_ns: float
    choice: str


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python benchmarks/busy_machine.py", description=__doc__)
    parser.add_argument("scripts", nargs="*", type=Path, default=SCRIPTS, help="(five)")
    parser.add_argument("--neighbours", nargs="+", type=int, default=NEIGHBOURS, metavar="N")
    parser.add_argument("--copying", action="store_true", help="they copy memory instead")
    parser.add_argument("--runs", type=int, default=10, help="of each (10)")
    parser.add_argument("--device", default="T4", help="GPU to predict (T4)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the answers to FILE")
    options = parser.parse_args(argv)
    print(f"{'script':18}{'beside':>7}{'this CPU':>22}{'GPU':>22}{'ratio':>8}  verdicts")
    rows: list[dict[str, object]] = []
    for script in options.scripts:
        quiet: list[Answer | None] = []
        for count in sorted({0, *options.neighbours}):
            with _neighbours(count, _COPY if options.copying else _SPIN):
                answers = [_check(script, options.device) for _ in range(options.runs)]
            if not count:
                quiet = answers
            _print_row(script.stem, count, answers, quiet)
            rows += [
                {"script": script.stem, "beside": count, **(asdict(each) if each else {})}
                for each in answers
            ]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
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


def _check(script: Path, device: str) -> Answer | None:
    command = ("breakeven", "check", str(script.resolve()), "--device", device, "--json", "-q")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, capture_output=True, check=False
        )
    if done.returncode:
        return None
    report = json.loads(done.stdout)
    times = {kind: [] for kind in _SETTLED}
    for result in report["results"]:
        times[result["kind"]].append(result["step_ns"])
    return Answer(min(times["cpu"]), min(times["gpu"]), report["verdict"]["choice"])


def _print_row(
    name: str, count: int, answers: Sequence[Answer | None], quiet: Sequence[Answer | None]
) -> None:
    found = [answer for answer in answers if answer is not None]
    usual = [answer for answer in quiet if answer is not None]
    if not found or not usual:
        print(f"{name:18}{count:>7}  no answer in {len(answers)} runs")
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
    settled = {each.choice for each in usual if each.choice in _SETTLED}
    opposite = [each for each in choices if each in _SETTLED and settled and each not in settled]
    more = f"; {len(opposite)} OPPOSITE" if opposite else ""
    print(f"{name:18}{count:>7}{cpu:>22}{gpu:>22}{ratio:>8.2f}  {verdicts}{more}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""What ``tune_workloads.py`` measured: values, their statistics, the table, the file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from breakeven.errors import BreakevenError
from breakeven.timing import Speedup, compare_pairs, compare_runs
from breakeven.units import format_duration
from breakeven.verdict import Outcome, TuneReport

LEAST_RATIO = 0.98  # below it a workload has become slower
TARGET_MEAN = 3.0  # of all twelve together


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One workload: what the command said, and what was measured afterwards.

    Args:
        name: The workload.
        tune_s: Wall clock of the command.
        said: What it answered; null where it failed.
        failure: Why something failed; empty where nothing did.
        baseline_ns: Median step of each run as it is.
        tuned_ns: Median step of the run under the configuration that belongs to each. Both are
            empty where nothing was kept: the script is then the same program.
    """

    name: str
    tune_s: float
    said: TuneReport | None = None
    failure: str = ""
    baseline_ns: tuple[float, ...] = ()
    tuned_ns: tuple[float, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the names of the candidates that were kept."""
        trials = self.said.trials if self.said else ()
        return tuple(each.candidate for each in trials if each.outcome is Outcome.KEPT)

    @property
    def confirmed(self) -> Speedup:
        """Return the speed-up that was measured here; 1 where nothing was kept."""
        if not self.baseline_ns:
            return Speedup(value=1.0, low=1.0, high=1.0, num_pairs=0)
        return compare_pairs(list(map(compare_runs, self.baseline_ns, self.tuned_ns)))


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured, and where.

    Args:
        machine: Processor, its cores, and versions: results of two machines do not mix.
        budget: As given to the command; empty for its default.
        results: The workloads that are finished.
    """

    schema_version: int = 1
    machine: dict[str, str]
    budget: str
    results: tuple[Result, ...] = ()


def geometric_mean(results: Sequence[Result]) -> Speedup:
    """Return the geometric mean of the speed-ups, and its 95 % interval.

    The interval says how well the mean of these workloads is known, each of which has its own;
    of other workloads it says nothing. What was left unchanged is 1 and known exactly.

    Source: errors of independent measurements add in squares, here on logarithms.
    """
    speedups = [each.confirmed for each in results]
    middle = statistics.fmean(math.log(each.value) for each in speedups)
    halves = [(math.log(each.high) - math.log(each.low)) / 2 for each in speedups]
    half = math.hypot(*halves) / len(halves)
    return Speedup(
        value=math.exp(middle),
        low=math.exp(middle - half),
        high=math.exp(middle + half),
        num_pairs=sum(each.num_pairs for each in speedups),
    )


def render(results: Sequence[Result]) -> str:
    """Return the table of the results, and below it what they come to."""
    lines = [
        f"{'workload':<16}{'as it is':>12}{'tuned':>12}{'speed-up':>10}  {'95 % interval':<15}"
        f"{'tune says':>10}{'took':>8}  kept"
    ]
    done = [each for each in results if not each.failure and each.said]
    for each in results:
        if each.failure or each.said is None:
            lines.append(f"{each.name:<16}failed after {each.tune_s:.0f} s: {each.failure}")
            continue
        speedup = each.confirmed
        # Where nothing was kept, nothing was measured here: the command's own figure.
        as_it_is = statistics.median(each.baseline_ns or (each.said.baseline_step_ns,))
        tuned = statistics.median(each.tuned_ns or (each.said.baseline_step_ns,))
        interval = f"{speedup.low:.2f} to {speedup.high:.2f}" if speedup.num_pairs else "unchanged"
        lines.append(
            f"{each.name:<16}{format_duration(as_it_is):>12}{format_duration(tuned):>12}"
            f"{speedup.value:>9.2f}×  {interval:<15}{each.said.speedup:>9.2f}×{each.tune_s:>6.0f} s"
            f"  {', '.join(each.kept) or 'nothing'}"
        )
    if done:
        mean = geometric_mean(done)
        slowest = min(done, key=lambda each: each.confirmed.value)
        num_slower = sum(each.confirmed.value < LEAST_RATIO for each in done)
        lines += [
            "",
            f"geometric mean of {len(done)}: {mean.value:.3f}× ({mean.low:.3f} to {mean.high:.3f})",
            f"target for all twelve together: {TARGET_MEAN:g}×",
            f"least: {slowest.confirmed.value:.3f}× ({slowest.name}); "
            f"below {LEAST_RATIO}×: {num_slower}",
        ]
    if len(done) < len(results):
        lines.append(f"failed: {len(results) - len(done)} of {len(results)}")
    return "\n".join(lines)


def render_json(results: Results) -> str:
    """Return the results and what they come to, as one JSON document."""
    document = msgspec.to_builtins(results)
    for row, each in zip(document["results"], results.results, strict=True):
        row["confirmed"] = None if each.failure else msgspec.to_builtins(each.confirmed)
    done = [each for each in results.results if not each.failure]
    if done:
        document["geometric_mean"] = msgspec.to_builtins(geometric_mean(done))
        document["target_mean"] = TARGET_MEAN
        document["least"] = min(each.confirmed.value for each in done)
    return json.dumps(document, indent=2)


def load_results(path: Path | None, machine: dict[str, str], budget: str) -> Results:
    """Return the results that are finished already; none where there is no such file.

    Raises:
        BreakevenError: They are of another machine, other versions or another budget.
    """
    if path is None or not path.exists():
        return Results(machine=machine, budget=budget)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.DecodeError as error:
        raise BreakevenError(f"{path} holds no results: {error}", hint="name a new file") from error
    if (found.machine, found.budget) != (machine, budget):
        raise BreakevenError(
            f"{path} holds results of another machine, other versions or another budget",
            hint="name a new file",
        )
    return found


def save_results(path: Path | None, results: Results) -> None:
    """Write the results, whole or not at all."""
    if path is not None:
        partial = path.with_name(path.name + ".part")
        partial.write_bytes(msgspec.json.encode(results))
        partial.replace(path)

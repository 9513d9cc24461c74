"""Rules about the number of threads on the CPU."""

from __future__ import annotations

import ast
from typing import ClassVar, Final, final

from breakeven.doctor.cpu_trials import as_measured, faster_trial, measured_gain
from breakeven.doctor.rule import Case, Occurrence
from breakeven.doctor.source import dotted_name
from breakeven.doctor.source_lines import called_at
from breakeven.simulate import Side
from breakeven.timing import CpuTrial
from breakeven.trace import Location

_THREADS: Final = "threads="
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@final
class TooManyThreads:
    """CPU001: the step on the CPU is faster with fewer threads.

    What it does:
        Compares the step as it is with the same step on fewer intra-op threads, both measured on
        this machine.

    Why it costs time:
        torch splits each large enough operator over its threads, and waits for the last of them.
        For small operators waking and waiting takes longer than the work.

    Evidence:
        In public reports a step went from 3.1 to 0.4 s on 96 cores, another to half.

    Fix:
        Use fewer threads, 1 to 4 for small models.

        ```python
        train(model)
        ```

        ```python
        torch.set_num_threads(1)
        train(model)
        ```

    Known limits:
        Only a few numbers of threads are tried, on this machine and under its present load.
    """

    code: ClassVar[str] = "CPU001"
    cause: ClassVar[str] = "THREADS_SMALL"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when a measured step with fewer threads is faster."""
        cpu = case.cpu
        if cpu is None or _num_threads(case) > _num_cores(case):
            return ()
        trial = faster_trial(cpu, (t for t in cpu.trials if 0 < _threads_of(t) < cpu.num_threads))
        if trial is None:
            return ()
        return (
            Occurrence(
                title=f"on the CPU {_threads_of(trial)} of {cpu.num_threads} threads are faster",
                fix=f"torch.set_num_threads({_threads_of(trial)}) where it trains on the CPU",
                evidence=as_measured(cpu, trial),
                location=_line_of_threads(case),
                gain=measured_gain(cpu, trial),
                side=Side.CPU,
            ),
        )


@final
class MoreThreadsThanCores:
    """CPU002: torch runs more threads than the process has processors.

    What it does:
        Compares torch's intra-op threads with the processors that the process may use.

    Why it costs time:
        Threads take turns, and those that wait for the last one spin on processors that it needs.

    Evidence:
        In public reports steps took 2 to 8 times as long; a GPU starved since its host's threads
        fought for processors.

    Fix:
        Leave the number alone: torch takes one thread for each core. In containers set it to what
        the container may use.

        ```python
        torch.set_num_threads(32)
        ```

        ```python
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        ```

    Known limits:
        Threads of other libraries and of data loader workers are not counted: torch gives each
        worker one thread.
    """

    code: ClassVar[str] = "CPU002"
    cause: ClassVar[str] = "THREADS_OVER"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when there are more threads than processors."""
        num_threads, num_cores = _num_threads(case), _num_cores(case)
        if num_cores < 1 or num_threads <= num_cores:
            return ()
        cpu = case.cpu
        fewer = () if cpu is None else (t for t in cpu.trials if 0 < _threads_of(t) < num_threads)
        trial = None if cpu is None else faster_trial(cpu, fewer)
        measured = f"; {as_measured(cpu, trial)}" if cpu is not None and trial is not None else ""
        return (
            Occurrence(
                title=f"{num_threads} threads share {num_cores} processors",
                fix=f"at most {num_cores} threads: torch.set_num_threads, OMP_NUM_THREADS",
                evidence=f"torch has {num_threads} intra-op threads, the process may use "
                f"{num_cores} processors{measured}",
                location=_line_of_threads(case),
                gain=measured_gain(cpu, trial) if cpu is not None and trial is not None else None,
                side=Side.CPU,
            ),
        )


def _threads_of(trial: CpuTrial) -> int:
    """Return the threads of a trial; 0 where it changes something else."""
    number = trial.setting.removeprefix(_THREADS)
    return int(number) if trial.setting.startswith(_THREADS) and number.isdigit() else 0


def _num_threads(case: Case) -> int:
    return case.cpu.num_threads if case.cpu is not None else case.facts.num_threads


def _num_cores(case: Case) -> int:
    return case.cpu.num_cores if case.cpu is not None else case.facts.num_cores


def _line_of_threads(case: Case) -> Location | None:
    """Return the line that sets the number of threads; None where torch's default rules."""
    called = called_at(case, "set_num_threads")
    if called is not None:
        return called
    for source in case.sources:
        for node in source.nodes(ast.Assign):
            assert isinstance(node, ast.Assign)
            if any(map(_is_thread_variable, node.targets)):
                return source.location(node)
    return None


def _is_thread_variable(target: ast.expr) -> bool:
    """Return whether ``target`` is ``os.environ["OMP_NUM_THREADS"]``."""
    return (
        isinstance(target, ast.Subscript)
        and dotted_name(target).endswith("environ")
        and isinstance(target.slice, ast.Constant)
        and target.slice.value in _THREAD_VARIABLES
    )

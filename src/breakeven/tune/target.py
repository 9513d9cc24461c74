"""Tune a target: record its step, search for the fastest configuration, confirm it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Literal

from msgspec.structs import replace

from breakeven.calibrate import find_host
from breakeven.capture import (
    KEEP_NOTHING,
    Keep,
    Launcher,
    PlainRun,
    Target,
    TargetKind,
    TracedRun,
    find_target,
)
from breakeven.device import HERE, HostSpec
from breakeven.errors import BreakevenError
from breakeven.processor import has_half_hardware
from breakeven.progress import Progress, SilentProgress
from breakeven.rewrite import NoPatch, SourcePatch, propose_fast_step
from breakeven.settings import NO_SCRIPT, StepFacts, all_candidates
from breakeven.source import CONVERT
from breakeven.store import this_machine
from breakeven.studies import Runner, why_not_measured
from breakeven.tune import default_budget_s
from breakeven.tune.budget import WATCHED_S, RunLength, TimeBudget, watch_length
from breakeven.tune.confirm import confirm
from breakeven.tune.equivalence import EquivalenceCheck
from breakeven.tune.runs import TrialRuns
from breakeven.tune.search import search
from breakeven.units import NS_PER_S
from breakeven.verdict import TuneReport, is_undecided
from faststep.codegen.toolchain import CompilerError, find_compiler

Device = Literal["", "cpu", "gpu"]


def tune_target(
    target: str,
    *,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    device: Device = "",
    budget_s: float = 0.0,
    num_steps: int = 0,
    is_exact_only: bool = False,
    tries_batch_size: bool = False,
    uses_fast_step: bool = True,
    time_limit_s: float = 300.0,
    keep: Keep = KEEP_NOTHING,
    progress: Progress | None = None,
) -> TuneReport:
    """Find the fastest configuration of the training step of ``target``, and prove it.

    The target runs many times in child processes, each of which ends after enough steps. The files
    that it writes there are discarded, and the target itself is not changed.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run ``target`` as ``python -m`` does.
        device: Device to run the step on; empty for the GPU if there is one and the script uses
            it, else the CPU.
        budget_s: Time for all trials in seconds, without the preparation. 0 for a minute, or a
            hundredth of the run if that is longer, up to ten minutes.
        num_steps: Steps of the run to tune for; start-up is weighed against them. 0 to watch the
            script for some seconds, to see whether it ends.
        is_exact_only: Keep only candidates that change no bit of losses and gradients.
        tries_batch_size: Try larger batches, which change the training.
        uses_fast_step: Try the script's loop with its step as one compiled call.
        time_limit_s: Limit of each run, in seconds.
        keep: Side effects of the target that are real; by default none.
        progress: Progress callback.

    Raises:
        BreakevenError: If the target gives no answer, or this machine lacks the device.
    """
    started_ns = monotonic_ns()
    progress = progress or SilentProgress()
    found = find_target(target, arguments, is_module=is_module)
    with Launcher(keep) as launcher, Launcher(keep) as second:
        progress.begin("starting torch")
        ready = launcher.ready()
        host = find_host(HERE, launcher)
        runner = Runner(launcher, found, time_limit_s, progress, keeps_compile=True)
        traced = runner.record()
        if device == "gpu" and not ready.has_cuda:
            raise BreakevenError(
                "this machine has no GPU that torch can use",
                hint="tune for the CPU with --device cpu, or run the same command on a machine "
                "with a GPU",
            )
        is_on_cuda = device == "gpu" or (not device and ready.has_cuda and traced.trace.uses_device)
        plain = runner.time_on_gpu() if is_on_cuda else runner.time(watches_program=False)
        if plain is None:
            raise BreakevenError(
                f"{found.label} does not run on this machine's GPU",
                hint="run it with python to see why, or tune for the CPU with --device cpu",
            )
        request = replace(runner.request, on_gpu=is_on_cuda)
        patch = _proposed(found) if uses_fast_step else NoPatch(reason="--no-fast-step is given")
        reason = patch.reason if isinstance(patch, NoPatch) else ""
        facts = step_facts(traced, plain, host, is_on_cuda=is_on_cuda, no_fast_step=reason)
        length = RunLength(num_steps=num_steps)
        if not num_steps:
            progress.begin("watching for the end of the script", WATCHED_S)
            updates_per_step = len(traced.trace.facts.optimizers)
            length = watch_length(
                launcher, request, startup_ns=plain.startup_ns, updates_per_step=updates_per_step
            )
        run_s = length.num_steps * plain.measurement.median_ns / NS_PER_S
        budget = TimeBudget(budget_s or default_budget_s(run_s))
        # Two runs take turns unless worker processes would load during the other's turn, the runs
        # would share a GPU's memory, or both would not fit into this machine's memory.
        has_workers = plain.loader is not None and plain.loader.num_workers > 0
        is_small = why_not_measured(0.0, 2.0 * plain.peak_memory_bytes) is None
        takes_turns = is_small and not has_workers and not is_on_cuda
        with EquivalenceCheck(launcher, request, has_time=budget.fits) as equivalence:
            trials = TrialRuns(
                launcher,
                request,
                partial(equivalence.check, is_exact_only=is_exact_only),
                second=second if takes_turns else None,
                num_threads=facts.num_threads,
                takes_long_turns=ready.can_take_long_turns,
            )
            best = search(
                all_candidates(facts, tries_batch_size=tries_batch_size),
                trials,
                facts=facts,
                budget=budget,
                length=length,
                is_exact_only=is_exact_only,
                progress=progress,
            )
            confirmed = confirm(best, trials, budget=budget, length=length, progress=progress)
        progress.end()
    configuration = confirmed.configuration
    caveats = (*found.caveats, *plain.caveats, *confirmed.caveats)
    return TuneReport(
        target=found.label,
        # Words of a command line may not be valid Unicode.
        arguments=tuple(
            word.encode(errors="backslashreplace").decode() for word in found.arguments
        ),
        device="gpu" if is_on_cuda else "cpu",
        machine=this_machine(gpu=plain.processor if is_on_cuda else ""),
        num_steps=length.num_steps,
        is_length_known=length.is_known,
        baseline_step_ns=confirmed.baseline_step_ns,
        tuned_step_ns=confirmed.tuned_step_ns,
        speedup=confirmed.speedup.value,
        low=confirmed.speedup.low,
        high=confirmed.speedup.high,
        configuration=configuration,
        numerics=confirmed.numerics,
        pays_off_after_steps=confirmed.pays_off_after_steps,
        trials=confirmed.trials,
        code_change=(
            patch.change if configuration.fast_step and isinstance(patch, SourcePatch) else None
        ),
        duration_ns=monotonic_ns() - started_ns,
        caveats=tuple({one.code: one for one in caveats}.values()),
        is_undecided=not configuration.changes and is_undecided(confirmed.trials),
        writes=launcher.writes,
    )


def step_facts(
    traced: TracedRun,
    plain: PlainRun,
    host: HostSpec,
    *,
    is_on_cuda: bool,
    no_fast_step: str = NO_SCRIPT,
) -> StepFacts:
    """Return the facts of a step before any trial.

    Args:
        traced: The recorded step.
        plain: The unchanged step, measured on its device.
        host: This machine, measured.
        is_on_cuda: Whether the step runs on a CUDA device.
        no_fast_step: Why the loop cannot have its step as one compiled call; empty if it can.
    """
    trace = traced.trace
    try:
        find_compiler()
        has_c_compiler = True
    except CompilerError:
        has_c_compiler = False
    # Source: torch/_inductor/cpp_builder.py, which takes CXX, or else the system's own.
    compilers = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    return StepFacts(
        trace=trace,
        step_ns=plain.measurement.median_ns,
        num_threads=plain.num_threads,
        num_cores=trace.facts.num_cores,
        dispatch_ns=host.op_ns + host.python_ns + host.autograd_ns,
        page_faults=plain.page_faults_per_step,
        is_on_cuda=is_on_cuda,
        has_bf16=has_half_hardware("bf16"),
        has_compiler=any(map(shutil.which, compilers)),
        is_compiled=trace.settings.is_compiled,
        no_fast_step=no_fast_step,
        generates_steps=not is_on_cuda and has_c_compiler,
        steps_ns={trial.num_threads: trial.measurement.median_ns for trial in plain.trials},
    )


def _proposed(target: Target) -> SourcePatch | NoPatch:
    """Return the patch that puts ``breakeven.fast_step`` into the loop of a script."""
    if target.kind is not TargetKind.SCRIPT:
        return NoPatch(reason=NO_SCRIPT)
    if target.is_notebook:
        return NoPatch(reason=f"a notebook's cells cannot be patched: {CONVERT}")
    try:
        source = Path(target.path).read_bytes()
    except OSError as error:
        return NoPatch(reason=f"the script cannot be read as UTF-8: {error}")
    # `patch` refuses absolute paths.
    return propose_fast_step(source, file=os.path.relpath(target.path))

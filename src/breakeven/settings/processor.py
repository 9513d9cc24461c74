"""What the processor does for torch: its threads, numbers close to zero, and freed memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from breakeven.errors import BreakevenError
from breakeven.settings.setting import LEAST_GAIN, SHORT_OP_NS, Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

# From this part of subnormal values on, arithmetic on them takes measurable time.
_SUBNORMAL_FRACTION = 0.001
# Below the smallest normal number of float64.
_SUBNORMAL = 1e-310
# A page must be found, zeroed and mapped, and a fault enters the kernel for it.
# Source: ResNet-18 at batch 64 on two cores, 62,000 faults and 161 ms of system time per step.
_FAULT_NS = 2_600.0


def is_flushing_denormals() -> bool:
    """Return whether subnormal numbers count as zero in this thread; torch does not say it."""
    import torch

    return _SUBNORMAL * torch.ones((), dtype=torch.float64).item() == 0.0


def _why_not_flushed(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if facts.calls("torch.set_flush_denormal"):
        return "the script sets it itself"
    if facts.trace.facts.subnormal_fraction < _SUBNORMAL_FRACTION:
        return "weights and gradients hold no subnormal numbers"
    return None


def _flush_denormals(run: configured) -> Count:
    """Threads take the setting over from the one that starts them."""
    import torch

    run.callback(torch.set_flush_denormal, is_flushing_denormals())
    torch.set_flush_denormal(True)
    return lambda _: int(is_flushing_denormals())


def _gain_of_memory(facts: StepFacts, value: object = True) -> float:
    """Return most of what getting pages takes."""
    return min(0.5, _FAULT_NS * facts.page_faults / facts.step_ns)


def _why_not_kept(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if _gain_of_memory(facts) < LEAST_GAIN:
        return f"a step gets {facts.page_faults:.0f} pages from the system: too few to matter"
    return None


def _keep_memory(run: configured) -> Count:
    from breakeven.configure import keep_freed_memory

    is_kept = keep_freed_memory()
    return lambda _: int(is_kept)


def _counts(facts: StepFacts) -> list[int]:
    cores = max(1, facts.num_cores)
    return sorted({1, max(1, cores // 2), cores})


def _why_not(facts: StepFacts, current: Configuration, num_threads: int) -> str | None:
    if facts.calls("torch.set_num_threads"):
        return "the script sets its threads itself"
    if current.fast_step and facts.generates_steps:
        return "a generated step runs on one core"
    if num_threads == (current.num_threads or facts.num_threads):
        return "that is what the step uses already"
    return None


def _gain(facts: StepFacts, num_threads: int) -> float:
    """Return what it saves as tried, or by how long operators take."""
    tried_ns = facts.steps_ns.get(num_threads)
    if tried_ns is not None:
        return max(0.0, 1.0 - tried_ns / facts.step_ns)
    if num_threads > facts.num_threads:
        return 0.2 if facts.op_ns > SHORT_OP_NS else 0.0
    return 0.3 * (1.0 - facts.op_ns / SHORT_OP_NS) if facts.op_ns < SHORT_OP_NS else 0.0


def _set_threads(run: configured) -> Count:
    import torch

    num_threads = run.wanted.num_threads
    run.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(num_threads)
    return lambda _: int(torch.get_num_threads() == num_threads)


def _why_not_between(facts: StepFacts, current: Configuration, num_threads: int) -> str | None:
    if facts.calls("torch.set_num_interop_threads"):
        return "the script sets its inter-op threads itself"
    if all(op.thread == 0 for op in facts.trace.ops):
        return "no operator of the step runs in a second thread"
    return None


def _set_interop_threads(run: configured) -> Count:
    """Set the inter-op threads when the script makes its first optimizer.

    torch takes this number only once in a process. So it is set as late as possible, to leave the
    choice to a script that makes it; and it stays set when the context is left.
    """
    import torch

    num_threads, is_decided = run.wanted.num_interop_threads, False
    original = torch.set_num_interop_threads
    original_init = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def set_by_script(num_threads: int) -> None:
        nonlocal is_decided
        is_decided = True
        original(num_threads)

    @functools.wraps(original_init)
    def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        nonlocal is_decided
        if not is_decided and torch.get_num_interop_threads() != num_threads:
            is_decided = True
            try:
                original(num_threads)
            except RuntimeError as error:
                raise BreakevenError(
                    f"torch's inter-op threads cannot be set to {num_threads}: parallel work "
                    "has begun in this process, or they were set before",
                    hint="leave num_interop_threads out of the configuration",
                ) from error
        is_decided = True
        original_init(optimizer, *args, **kwargs)

    run.replace(torch, "set_num_interop_threads", set_by_script)
    run.replace(torch.optim.Optimizer, "__init__", initialize)
    return lambda _: int(is_decided and torch.get_num_interop_threads() == num_threads)


SETTINGS = (
    Setting(
        name="flushes_denormals",
        meaning="the processor takes subnormal numbers as zero",
        numerics=Numerics.REORDERED,
        family="flush-denormal",
        title="subnormal numbers flushed to zero",
        undo="torch.set_flush_denormal(False)",
        apply=_flush_denormals,
        only_on="cpu",
        why_not=_why_not_flushed,
        # Subnormal operands cost some 100 cycles.
        gain=lambda facts, _: min(0.9, 10.0 * facts.trace.facts.subnormal_fraction),
    ),
    Setting(
        name="keeps_freed_memory",
        meaning="the process keeps memory that is freed",
        note=", for the tensors of the next step, with glibc",
        numerics=Numerics.EXACT,
        family="keep-memory",
        title="freed memory kept for the next step",
        undo="it ends with the process of the run",
        apply=_keep_memory,
        why_not=_why_not_kept,
        gain=_gain_of_memory,
    ),
    Setting(
        name="num_threads",
        meaning="torch's threads within an operator",
        note=": one, half of the processors, all",
        numerics=Numerics.REORDERED,
        family="threads",
        title=lambda _, count: f"{count} intra-op thread{'' if count == 1 else 's'}",
        undo="the run sets torch.set_num_threads back; other processes never see it",
        apply=_set_threads,
        values=_counts,
        only_on="cpu",
        why_not=_why_not,
        gain=_gain,
    ),
    Setting(
        name="num_interop_threads",
        meaning="torch's threads between operators",
        note=", where any run in a second one: work that a script forks stays in its thread",
        numerics=Numerics.REORDERED,
        family="interop-threads",
        title="1 inter-op thread",
        undo="it is set in the process of the run alone",
        apply=_set_interop_threads,
        values=(1,),
        only_on="cpu",
        why_not=_why_not_between,
        gain=0.01,
    ),
)

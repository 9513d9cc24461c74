"""What the processor does for torch as a whole: numbers close to zero, and freed memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakeven.settings.setting import LEAST_GAIN, Count, Setting
from breakeven.settings.step_facts import StepFacts
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
)

"""What surrounds the operators of a step: memory, names for a profiler, tests of arguments."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.trace import Configuration
from breakeven.tune.step_facts import StepFacts
from breakeven.units import format_percent
from breakeven.verdict import Numerics

# A page must be found, zeroed and mapped, and a fault enters the kernel for it.
# Source: ResNet-18 at batch 64 on two cores, 62,000 faults and 161 ms of system time per step.
_FAULT_NS = 2_600.0
# A range is opened and closed by an operator each, and an update has one, zero_grad another.
_RANGES_NS = 20_000.0
# A test compares, takes all, and reads the answer.
_OPS_PER_TEST = 3
# Whatever saves less than that is not shown to be faster anyway.
_LEAST_FRACTION = 0.01


@dataclass(frozen=True)
class KeepMemory:
    """Memory that is freed stays with the process, for the tensors of the next step."""

    name = "keep-memory"
    title = "freed memory kept for the next step"
    numerics = Numerics.EXACT
    family = "keep-memory"
    undo = "it ends with the process of the run"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if self.expected_gain(facts) < _LEAST_FRACTION:
            return f"a step gets {facts.page_faults:.0f} pages from the system: too few to matter"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, keeps_freed_memory=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: most of getting pages."""
        return min(0.5, _FAULT_NS * facts.page_faults / facts.step_ns)

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class SkipProfilerRanges:
    """Optimizers and loaders announce themselves to a profiler only where one runs."""

    name = "no-profiler-ranges"
    title = "nothing announced to a profiler while none runs"
    numerics = Numerics.EXACT
    family = "no-profiler-ranges"
    undo = "torch.autograd.profiler.record_function is put back"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if self.expected_gain(facts) < _LEAST_FRACTION:
            return f"it would save {format_percent(self.expected_gain(facts))} of the step"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, skips_profiler_ranges=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves."""
        return min(0.3, _RANGES_NS / facts.step_ns)

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class SkipDistributionChecks:
    """Probability distributions do not test their arguments."""

    name = "no-distribution-checks"
    title = "arguments of distributions not tested"
    numerics = Numerics.EXACT
    family = "no-distribution-checks"
    undo = "torch.distributions tests its arguments again"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if not facts.num_distribution_checks:
            return "no distribution tests its arguments"
        if self.expected_gain(facts) < _LEAST_FRACTION:
            return f"it would save {format_percent(self.expected_gain(facts))} of the step"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, skips_distribution_checks=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves."""
        num_ops = _OPS_PER_TEST * facts.num_distribution_checks
        return min(0.3, num_ops * facts.dispatch_ns / facts.step_ns)

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0

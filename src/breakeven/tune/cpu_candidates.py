"""Settings of the CPU: threads, subnormal numbers, layout of weights, bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.trace import Configuration
from breakeven.tune.step_facts import StepFacts
from breakeven.units import format_duration
from breakeven.verdict import Numerics

_ON_CUDA = "the step runs on a GPU"

# Operators shorter than this are handed to other threads at a loss: waking a team of them takes
# some 5 to 20 µs, and each must then have enough to do.
# Source: OpenMP parallel regions as EPCC's microbenchmarks time them, 1 to 20 µs.
_SHORT_OP_NS = 100_000.0
# From this part of subnormal values on, arithmetic on them takes measurable time.
_SUBNORMAL_FRACTION = 0.001


@dataclass(frozen=True)
class Threads:
    """Another number of intra-op threads: fewer for small tensors, more where the script has few.

    Args:
        num_threads: How many.
    """

    num_threads: int

    numerics = Numerics.REORDERED
    family = "threads"
    undo = "the run sets torch.set_num_threads back; other processes never see it"

    @property
    def name(self) -> str:
        """Return ``threads=1``."""
        return f"threads={self.num_threads}"

    @property
    def title(self) -> str:
        """Return what it changes."""
        plural = "" if self.num_threads == 1 else "s"
        return f"{self.num_threads} intra-op thread{plural}"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if facts.is_on_cuda:
            return _ON_CUDA
        if facts.calls("torch.set_num_threads"):
            return "the script sets its threads itself"
        if self.num_threads == (current.num_threads or facts.num_threads):
            return "that is what the step uses already"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, num_threads=self.num_threads)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves, as tried, or by how long operators take."""
        tried_ns = facts.steps_ns.get(self.num_threads)
        if tried_ns is not None:
            return max(0.0, 1.0 - tried_ns / facts.step_ns)
        if self.num_threads > facts.num_threads:
            return 0.2 if facts.op_ns > _SHORT_OP_NS else 0.0
        return 0.3 * (1.0 - facts.op_ns / _SHORT_OP_NS) if facts.op_ns < _SHORT_OP_NS else 0.0

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class InteropThreads:
    """One inter-op thread: work that a script forks stays in the thread that it has."""

    name = "interop-threads=1"
    title = "1 inter-op thread"
    numerics = Numerics.REORDERED
    family = "interop-threads"
    undo = "it is set in the process of the run alone"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if facts.is_on_cuda:
            return _ON_CUDA
        if facts.calls("torch.set_num_interop_threads"):
            return "the script sets its inter-op threads itself"
        if all(op.thread == 0 for op in facts.trace.ops):
            return "no operator of the step runs in a second thread"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, num_interop_threads=1)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: little, where it matters at all."""
        return 0.01

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class FlushDenormal:
    """Subnormal numbers as zero: the processor's slow path for them is left out."""

    name = "flush-denormal"
    title = "subnormal numbers flushed to zero"
    numerics = Numerics.REORDERED
    family = "flush-denormal"
    undo = "torch.set_flush_denormal(False)"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if facts.is_on_cuda:
            return _ON_CUDA
        if facts.calls("torch.set_flush_denormal"):
            return "the script sets it itself"
        if facts.trace.facts.subnormal_fraction < _SUBNORMAL_FRACTION:
            return "weights and gradients hold no subnormal numbers"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, flushes_denormals=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: subnormal operands cost some 100 cycles."""
        return min(0.9, 10.0 * facts.trace.facts.subnormal_fraction)

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class ChannelsLast:
    """Weights of two-dimensional convolutions with their channels last, as kernels want them."""

    name = "channels-last"
    title = "weights of convolutions in channels-last memory"
    numerics = Numerics.REORDERED
    family = "channels-last"
    undo = "the layout of the weights ends with the run; what is saved loads anywhere"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if not facts.has_convolution:
            return "no two-dimensional convolution has its channels first"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, channels_last=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves."""
        return 0.15

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class Autocast:
    """Matrix products and convolutions in bfloat16 (CPU, GPU) or float16 (GPU).

    Args:
        dtype: ``bfloat16`` or ``float16``.
    """

    dtype: str = "bfloat16"

    numerics = Numerics.LOWER_PRECISION
    family = "autocast"
    undo = "weights stay float32; the region ends with each call of the model"

    @property
    def name(self) -> str:
        """Return ``autocast=bfloat16``."""
        return f"autocast={self.dtype}"

    @property
    def title(self) -> str:
        """Return what it changes."""
        return f"matrix products in {self.dtype}"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if facts.trace.settings.autocast_dtype or facts.calls("torch.autocast"):
            return "the script has an autocast region itself"
        if facts.trace.facts.default_dtype == "float64":
            return "the script computes in float64, so precision matters to it"
        if not facts.calls_model:
            return "the step calls no model"
        if not facts.has_products:
            return "the step has no matrix product and no convolution in float32"
        if not facts.is_on_cuda and not facts.has_bf16:
            return "this processor has no instructions for bfloat16"
        if not facts.is_on_cuda and self.dtype == "float16":
            return "this processor has no fast float16"
        if facts.op_ns < _SHORT_OP_NS / 2:
            return (
                f"an operator takes {format_duration(facts.op_ns)} on average: "
                "converting would cost more than it saves"
            )
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, autocast="float16" if self.dtype == "float16" else "bfloat16")

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves."""
        return 0.4

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0

"""Settings of CUDA alone: TF32, cuDNN's search for the fastest algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.trace import Configuration
from breakeven.tune.step_facts import StepFacts
from breakeven.verdict import Numerics

_NOT_ON_CUDA = "the step runs on the CPU"


@dataclass(frozen=True)
class AllowTf32:
    """Matrix products of float32 on tensor cores, with 10 bits of mantissa."""

    name = "tf32"
    title = "TF32 for matrix products of float32"
    numerics = Numerics.LOWER_PRECISION
    family = "tf32"
    undo = "torch.backends.cuda.matmul.allow_tf32 and cudnn.allow_tf32 are set back"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if not facts.is_on_cuda:
            return _NOT_ON_CUDA
        if facts.trace.settings.allow_tf32_matmul:
            return "the script allows TF32 already"
        if not facts.has_products:
            return "the step has no matrix product and no convolution in float32"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, allows_tf32=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves."""
        return 0.2

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class BenchmarkCudnn:
    """cuDNN tries its algorithms for each shape once, and keeps the fastest."""

    name = "cudnn-benchmark"
    title = "cuDNN's fastest algorithm, found by trying"
    numerics = Numerics.REORDERED
    family = "cudnn-benchmark"
    undo = "torch.backends.cudnn.benchmark is set back"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if not facts.is_on_cuda:
            return _NOT_ON_CUDA
        if facts.trace.settings.cudnn_benchmark:
            return "the script has it on already"
        if not facts.has_convolution:
            return "the step has no convolution"
        if facts.trace.facts.num_convolution_shapes > 1:
            return "shapes change from step to step, and each new one would be searched for"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, benchmarks_cudnn=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves."""
        return 0.1

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 1.0

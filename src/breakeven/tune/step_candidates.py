"""How the operators of a step are issued: the update in one kernel, the model compiled."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.trace import Configuration
from breakeven.tune.step_facts import StepFacts
from breakeven.units import NS_PER_S
from breakeven.verdict import Numerics

# Compiling a model on two cores takes this long before anything is known of it, and this much for
# each of its operators; what it really took is measured and counted.
# Source: the scripts of benchmarks/workloads under torch 2.13, 8 s to 60 s.
_COMPILE_S = 8.0
_COMPILE_PER_OP_S = 0.06
# Trying several kernels for each operator takes some times as long.
_AUTOTUNE_FACTOR = 2.0


@dataclass(frozen=True)
class OptimizerKind:
    """torch's optimizers in their fused or their foreach implementation.

    Args:
        kind: ``fused`` or ``foreach``.
    """

    kind: str

    numerics = Numerics.REORDERED
    family = "optimizer"
    undo = "the state of the optimizer is the same; its next construction is as the script has it"

    @property
    def name(self) -> str:
        """Return ``fused-optimizer``."""
        return f"{self.kind}-optimizer"

    @property
    def title(self) -> str:
        """Return what it changes."""
        return f"{self.kind} implementation of the optimizer"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        own = [one for one in facts.trace.facts.optimizers if one.is_from_torch]
        if not own:
            return "the step has no optimizer of torch"
        if all(one.fused is not None or one.foreach is not None for one in own):
            return "the script chooses the implementation itself"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, optimizer="fused" if self.kind == "fused" else "foreach")

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: the loop over parameters."""
        return facts.update_fraction * (0.9 if self.kind == "fused" else 0.2)

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


# How likely compiling the model makes a step faster on a CPU at all: what it saves between
# operators, checking before each call that the code is still right costs again.
# Source: benchmarks/tune_workloads.py on two cores, 0.5 to 0.9 times as fast on each that it tried.
_CHANCE_ON_CPU = 0.1


@dataclass(frozen=True)
class Compile:
    """The model compiled by ``torch.compile``, forward and backward.

    Args:
        mode: As ``torch.compile`` takes it.
    """

    mode: str = "default"

    numerics = Numerics.REORDERED
    family = "compile"
    undo = "the model keeps its own code beside; its state has the same names"

    @property
    def name(self) -> str:
        """Return ``compile`` or ``compile=reduce-overhead``."""
        return "compile" if self.mode == "default" else f"compile={self.mode}"

    @property
    def title(self) -> str:
        """Return what it changes."""
        return "the model compiled" + ("" if self.mode == "default" else f" ({self.mode})")

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if facts.is_compiled:
            return "the script calls torch.compile itself"
        if not facts.is_on_cuda and not facts.has_compiler:
            return "there is no C++ compiler (set CXX, or install g++)"
        if not facts.calls_model:
            return "the step calls no model"
        if self.mode == "max-autotune" and not facts.is_on_cuda:
            return "its CUDA graphs need a GPU"
        if self.mode == "reduce-overhead" and not facts.is_on_cuda:
            return "it captures CUDA graphs, which need a GPU"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        modes = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        return replace(
            current, compile_mode=next((mode for mode in modes if mode == self.mode), "default")
        )

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: most of what issuing operators takes."""
        gain = 0.1 + 0.5 * facts.launch_fraction
        if not facts.is_on_cuda:
            gain *= _CHANCE_ON_CPU
        return gain if self.mode in ("default", "reduce-overhead") else 0.8 * gain

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        cost_s = _COMPILE_S + _COMPILE_PER_OP_S * len(facts.model_ops)
        return cost_s * (_AUTOTUNE_FACTOR if self.mode.startswith("max-autotune") else 1.0)


@dataclass(frozen=True)
class CppWrapper:
    """Compiled code that calls its kernels from C++: without Python between them."""

    name = "cpp-wrapper"
    title = "compiled code called from C++"
    numerics = Numerics.REORDERED
    family = "cpp-wrapper"
    undo = "torch._inductor.config.cpp_wrapper is set back"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if not current.compile_mode:
            return "the model is not compiled"
        if not facts.has_compiler:
            return "there is no C++ compiler (set CXX, or install g++)"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, cpp_wrapper=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: comes right after compiling."""
        return 0.1 * facts.launch_fraction

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return _COMPILE_S + _COMPILE_PER_OP_S * len(facts.model_ops)


def longest_paid_s(facts: StepFacts, num_steps: int) -> float:
    """Return what all steps of a run take: no start-up longer than that can ever pay."""
    return num_steps * facts.step_ns / NS_PER_S

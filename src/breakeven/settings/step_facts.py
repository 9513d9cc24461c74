"""What is known of a step before anything is tried: enough to say what may help, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from breakeven.trace import LoaderFacts, Op, Phase, StepTrace

# Work of these is multiplications, which lower precision and better layouts make faster.
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul")
_CONVOLUTION = "convolution"
_CONVOLUTION_2D = 4

# What torch's loop over parameters does to each of them, in operators of the dispatcher.
# Source: torch/optim/adam.py, _single_tensor_adam; the others have fewer.
_OPS_PER_PARAMETER = 12

# Operators shorter than this are handed to other threads at a loss: waking a team of them takes
# some 5 to 20 µs, and each must then have enough to do.
# Source: OpenMP parallel regions as EPCC's microbenchmarks time them, 1 to 20 µs.
SHORT_OP_NS = 100_000.0


@dataclass(frozen=True)
class StepFacts:
    """The step as the script does it.

    Args:
        trace: The recorded step, and what is known of its run.
        step_ns: Median step of the unchanged script.
        num_threads: torch's intra-op threads in it.
        num_cores: Processors that the process may use.
        dispatch_ns: What this host spends to issue one operator.
        page_faults: Pages of memory that it gets from the system.
        is_on_cuda: Whether it runs on a CUDA device.
        has_bf16: Whether the processor multiplies bfloat16 in hardware.
        has_compiler: Whether there is a C++ compiler, which compiled steps need.
        is_compiled: Whether the script calls ``torch.compile`` itself.
        steps_ns: Median step on other numbers of threads, by their number, where they were tried.
    """

    trace: StepTrace
    step_ns: float
    num_threads: int
    num_cores: int
    dispatch_ns: float
    page_faults: float
    is_on_cuda: bool
    has_bf16: bool
    has_compiler: bool
    is_compiled: bool
    steps_ns: Mapping[int, float] = field(default_factory=dict[int, float])

    @cached_property
    def loader(self) -> LoaderFacts | None:
        """Return the DataLoader that feeds the step most; None where there is none."""
        return next(iter(self.trace.facts.loaders), None)

    @cached_property
    def model_ops(self) -> tuple[Op, ...]:
        """Return the operators of the forward and backward pass."""
        return tuple(op for op in self.trace.ops if op.phase in (Phase.FORWARD, Phase.BACKWARD))

    @property
    def op_ns(self) -> float:
        """Return how long an operator takes on average, with all that surrounds it."""
        return self.step_ns / max(1, len(self.model_ops) + self.num_update_ops)

    @property
    def num_update_ops(self) -> int:
        """Return about how many operators the update takes on the CPU, one parameter at a time."""
        return _OPS_PER_PARAMETER * sum(
            optimizer.num_tensors for optimizer in self.trace.facts.optimizers
        )

    @property
    def calls_model(self) -> bool:
        """Return whether the step calls a whole ``nn.Module`` that is in training mode."""
        return any(call.is_training for call in self.trace.facts.model_calls)

    @cached_property
    def has_products(self) -> bool:
        """Return whether the step multiplies matrices or convolves in float32."""
        return any(
            _bare_name(op) in _PRODUCTS and any(spec.dtype == "float32" for spec in op.inputs)
            for op in self.model_ops
        )

    @cached_property
    def has_convolution(self) -> bool:
        """Return whether the step has a two-dimensional convolution with its channels first."""
        return any(
            _bare_name(op) == _CONVOLUTION
            and len(op.inputs) > 1
            and len(op.inputs[1].shape) == _CONVOLUTION_2D
            and op.inputs[1].layout != "channels_last"
            for op in self.model_ops
        )

    @cached_property
    def num_distribution_checks(self) -> int:
        """Return how often a distribution tests an argument, for whose answer a GPU would wait."""
        return sum(sync.via.startswith("torch.distributions") for sync in self.trace.syncs)

    @property
    def launch_fraction(self) -> float:
        """Return about which part of the step goes into issuing operators, 0 to 1."""
        return min(1.0, len(self.model_ops) * self.dispatch_ns / self.step_ns)

    @property
    def update_fraction(self) -> float:
        """Return about which part of the step the update takes at least, 0 to 1."""
        return min(0.9, self.num_update_ops * self.dispatch_ns / self.step_ns)

    @property
    def fetch_fraction(self) -> float:
        """Return which part of the step the training loop spends fetching its batch, 0 to 1."""
        return min(0.95, self.loader.fetch_ns / self.step_ns) if self.loader else 0.0

    def calls(self, name: str) -> bool:
        """Return whether the script calls a function, by its dotted name."""
        return any(call.name == name for call in self.trace.facts.calls)


def _bare_name(op: Op) -> str:
    """Return ``addmm`` of ``aten.addmm.default``."""
    return op.name.split(".")[1] if op.name.count(".") > 1 else op.name

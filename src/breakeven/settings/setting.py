"""The types of a setting and its candidates, and the facts of a step that decide on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from breakeven.trace import Configuration, LoaderFacts, Op, Phase, StepTrace
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

NO_SCRIPT = "only the loop of a script can be changed"
NO_LOADER = "no DataLoader feeds the step"
NO_PRODUCT = "the step has no matrix product and no convolution in float32"
# A smaller gain could not be shown to be faster anyway.
LEAST_GAIN = 0.01

_ELSEWHERE = {"cpu": "the step runs on the CPU", "cuda": "the step runs on a GPU"}

# Returns how often the named setting has taken effect so far.
Count = Callable[[str], int]
# Ops that mostly multiply; lower precision and better layouts make them faster.
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul")
_CONVOLUTION = "convolution"
_CONVOLUTION_2D = 4

# Dispatcher operators per parameter in torch's single-tensor optimizer loop.
# Source: torch/optim/adam.py, _single_tensor_adam; the others have fewer.
_OPS_PER_PARAMETER = 12

# Splitting an operator shorter than this over threads loses time: waking a team of threads takes
# some 5 to 20 µs, and each thread then needs enough work.
# Source: OpenMP parallel regions as EPCC's microbenchmarks time them, 1 to 20 µs.
SHORT_OP_NS = 100_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of a configuration.

    A field that holds a function instead of a value calls it with the facts of the step and the
    value to try.

    Args:
        name: Name of the field.
        meaning: One line of explanation, shown next to the field in ``breakeven.toml``.
        note: Continuation of that line in the documentation.
        numerics: Possible effect on the numbers.
        family: Name of the choice; the tuner keeps one candidate per family.
        title: Short description of the change.
        undo: One sentence on how to undo it.
        apply: Applies the setting around a script. Settings that the script makes itself win.
            Settings that share this function are applied by one call.
        values: Values to try, or a function of the step's facts that returns them.
        names: Stable names of candidates by value, if not ``family`` or ``family=value``.
        also: Other fields that a candidate sets.
        only_on: The only device that the setting affects; empty for both.
        why_not: Returns the precondition that fails; None if the value may be tried. Takes the
            facts, the configuration kept so far, and the value.
        gain: Predicted share of the step that it saves, 0 to 1; candidates are tried in this order.
        cost_s: Predicted delay of a run's start, in seconds.
        is_for_loop: Whether it changes how the loop calls its model and optimizer. A compiled step
            does not use such settings.
    """

    name: str
    meaning: str
    note: str = ""
    numerics: Numerics
    family: str
    title: str | Callable[[StepFacts, Any], str]
    undo: str
    apply: Callable[[configured], Count]
    values: Iterable[bool | int | str] | Callable[[StepFacts], Iterable[int]] = (True,)
    names: Mapping[bool | int | str, str] = field(default_factory=dict)
    also: Callable[[StepFacts], Mapping[str, bool | int | str]] = lambda _: {}
    only_on: Literal["", "cpu", "cuda"] = ""
    why_not: Callable[[StepFacts, Configuration, Any], str | None] = lambda *_: None
    gain: float | Callable[[StepFacts, Any], float] = 0.0
    cost_s: float | Callable[[StepFacts, Any], float] = 0.0
    is_for_loop: bool = False

    @property
    def forms(self) -> str:
        """Return the names of its candidates for the documentation, such as `` `threads=N` ``."""
        values = list(self.values) if not callable(self.values) else []
        names = [
            Candidate(setting=self, value=value, title="", changes={}).name for value in values
        ]
        if len(names) > 2:
            names = [names[0], f"{self.family}=MODE"]
        return ", ".join(f"`{name}`" for name in names or [f"{self.family}=N"])

    @property
    def explanation(self) -> str:
        """Return the explanation for the documentation."""
        gpu = "GPU: " if self.only_on == "cuda" else ""
        return f"{gpu}{self.meaning}{self.note}"

    def candidates(self, facts: StepFacts) -> list[Candidate]:
        """Return the candidates of the setting for a step."""
        values = self.values(facts) if callable(self.values) else self.values
        return [
            Candidate(
                setting=self,
                value=value,
                title=self.title if isinstance(self.title, str) else self.title(facts, value),
                changes={**self.also(facts), self.name: value},
            )
            for value in values
        ]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One value of a setting to try on a step.

    Args:
        setting: The setting.
        value: The value to try.
        title: Short description of the change.
        changes: Fields of the configuration that it sets.
    """

    setting: Setting
    value: bool | int | str
    title: str
    changes: Mapping[str, bool | int | str] = field(hash=False)

    @property
    def name(self) -> str:
        """Return the stable name, such as ``threads=1``."""
        family = self.setting.family
        default = family if self.value is True else f"{family}={self.value}"
        return self.setting.names.get(self.value, default)

    @property
    def numerics(self) -> Numerics:
        """Return the possible effect on the numbers."""
        return self.setting.numerics

    @property
    def family(self) -> str:
        """Return the name of the choice; the tuner keeps one candidate per family."""
        return self.setting.family

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return the precondition that fails; None if the candidate may be tried.

        Args:
            facts: Facts of the script's unchanged step.
            current: The configuration kept so far.
        """
        here = "cuda" if facts.is_on_cuda else "cpu"
        if self.setting.only_on not in ("", here):
            return _ELSEWHERE[here]
        if current.fast_step and self.setting.is_for_loop:
            return "the step is one compiled call, which does without"
        return self.setting.why_not(facts, current, self.value)

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration kept so far with this candidate's changes."""
        return replace(current, **self.changes)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return the predicted share of the step that it saves, 0 to 1; it sets the order."""
        gain = self.setting.gain
        return gain(facts, self.value) if callable(gain) else gain

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return the predicted delay of a run's start, in seconds."""
        cost_s = self.setting.cost_s
        return cost_s(facts, self.value) if callable(cost_s) else cost_s


@dataclass(frozen=True)
class StepFacts:
    """Facts of the script's unchanged step.

    Args:
        trace: The recorded step, and the facts of its run.
        step_ns: Median step time of the unchanged script.
        num_threads: torch's intra-op threads in it.
        num_cores: Processors that the process may use.
        dispatch_ns: Host time to issue one operator.
        page_faults: Page faults per step.
        is_on_cuda: Whether the step runs on a CUDA device.
        has_bf16: Whether the processor multiplies bfloat16 in hardware.
        has_compiler: Whether there is a C++ compiler; compiled steps need one.
        is_compiled: Whether the script calls ``torch.compile`` itself.
        no_fast_step: Why the loop cannot have its step as one compiled call; empty if it can.
        generates_steps: Whether C can be generated for the step; that compiles sooner.
        steps_ns: Median step time for each other number of threads that was tried.
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
    no_fast_step: str = NO_SCRIPT
    generates_steps: bool = False
    steps_ns: Mapping[int, float] = field(default_factory=dict[int, float])

    @cached_property
    def loader(self) -> LoaderFacts | None:
        """Return the DataLoader that feeds the step most; None if there is none."""
        return next(iter(self.trace.facts.loaders), None)

    @cached_property
    def model_ops(self) -> tuple[Op, ...]:
        """Return the operators of the forward and backward pass."""
        return tuple(op for op in self.trace.ops if op.phase in (Phase.FORWARD, Phase.BACKWARD))

    @property
    def op_ns(self) -> float:
        """Return the average time per operator, overhead included."""
        return self.step_ns / max(1, len(self.model_ops) + self.num_update_ops)

    @property
    def num_update_ops(self) -> int:
        """Return the estimated CPU operators of the update, one parameter at a time."""
        return _OPS_PER_PARAMETER * sum(
            optimizer.num_tensors for optimizer in self.trace.facts.optimizers
        )

    @property
    def calls_model(self) -> bool:
        """Whether the step calls an ``nn.Module`` that is in training mode."""
        return any(call.is_training for call in self.trace.facts.model_calls)

    @cached_property
    def has_products(self) -> bool:
        """Whether the step multiplies matrices or convolves in float32."""
        return any(
            _bare_name(op) in _PRODUCTS and any(spec.dtype == "float32" for spec in op.inputs)
            for op in self.model_ops
        )

    @cached_property
    def has_convolution(self) -> bool:
        """Whether the step has a 2-d convolution whose weights are not channels-last."""
        return any(
            _bare_name(op) == _CONVOLUTION
            and len(op.inputs) > 1
            and len(op.inputs[1].shape) == _CONVOLUTION_2D
            and op.inputs[1].layout != "channels_last"
            for op in self.model_ops
        )

    @property
    def launch_fraction(self) -> float:
        """Return the estimated share of the step spent issuing operators, 0 to 1."""
        return min(1.0, len(self.model_ops) * self.dispatch_ns / self.step_ns)

    @property
    def update_fraction(self) -> float:
        """Return the estimated minimum share of the update in the step, 0 to 1."""
        return min(0.9, self.num_update_ops * self.dispatch_ns / self.step_ns)

    @property
    def fetch_fraction(self) -> float:
        """Return the share of the step that the loop spends fetching its batch, 0 to 1."""
        return min(0.95, self.loader.fetch_ns / self.step_ns) if self.loader else 0.0

    def calls(self, name: str) -> bool:
        """Whether the script calls a function, by its dotted name."""
        return any(call.name == name for call in self.trace.facts.calls)


def _bare_name(op: Op) -> str:
    """Return ``addmm`` of ``aten.addmm.default``."""
    return op.name.split(".")[1] if op.name.count(".") > 1 else op.name

"""Settings for the calls of the model or the step: autocast, compilation, one compiled step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import NO_PRODUCT, SHORT_OP_NS, Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.units import format_duration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

# Generating and compiling C for a step takes this long, plus the time below per operator.
# Source: benchmarks/fast_step.py, 1.3 s for an MLP, 2 to 3 s for LeNet and an LSTM of 20 steps.
_GENERATE_S = 1.5
_GENERATE_PER_OP_S = 0.004
# Share left after compiling: the call of the compiled step, and the rest of the loop.
_LEFT_FRACTION = 0.1
NO_COMPILER = "there is no C++ compiler (set CXX, or install g++)"
# Prior for compiling a model on two cores, plus the time below per operator; the run measures and
# counts the real time.
# Source: the scripts of benchmarks/workloads under torch 2.13, 8 s to 60 s.
_COMPILE_S = 8.0
_COMPILE_PER_OP_S = 0.06
# Autotuning tries several kernels for each operator, which multiplies the time.
_AUTOTUNE_FACTOR = 2.0


def _fast_step_gain(facts: StepFacts, value: object) -> float:
    """Return most of the time spent issuing operators.

    The estimate uses the shortest step seen: on a busy machine, threads wait for each other and a
    longer step contains no more work.
    """
    least_ns = min([facts.step_ns, *facts.steps_ns.values()])
    issuing = (facts.launch_fraction + facts.update_fraction) * facts.step_ns / least_ns
    return (1.0 - _LEFT_FRACTION) * min(1.0, issuing)


def _fast_step_s(facts: StepFacts, value: object) -> float:
    if facts.generates_steps:
        return _GENERATE_S + _GENERATE_PER_OP_S * len(facts.model_ops)
    return _compile_s(facts)


def _without_settings_of_loop(facts: StepFacts) -> dict[str, bool | int | str]:
    """Return the script's values for the settings that a compiled step does not use."""
    from breakeven.settings import SETTINGS  # made of this module, among others

    fields = zip(Configuration.__struct_fields__, Configuration.__struct_defaults__, strict=True)
    return {name: default for name, default in fields if SETTINGS[name].is_for_loop}


def _call_steps(run: configured) -> Count:
    """Provide ``fast_step`` to a script whose loop was rewritten to call it.

    The process that starts the script rewrites the loop: see ``rewrite.code_of_fast_step``.
    """
    made: list[Any] = []

    def make(model: Any, loss_fn: Any, optimizer: Any, **options: Any) -> Any:
        # Imports torch's compiler; a script without a matching loop does not need it.
        if run.on_given_up is None:
            from faststep import fast_step

            step = fast_step(model, loss_fn, optimizer, **options)
        else:
            from faststep import FallbackStep

            step = FallbackStep(
                model, loss_fn, optimizer, on_given_up=run.on_given_up, pays_now=run.pays_now,
                **options,
            )  # fmt: skip
        made.append(step)
        return step

    run.replace(sys.modules["breakeven"], "fast_step", make)
    return lambda _: sum(getattr(step, "is_fast", True) for step in made)


def _compile_s(facts: StepFacts, mode: object = "default") -> float:
    """Return the estimated time to compile the model, in seconds."""
    factor = _AUTOTUNE_FACTOR if str(mode).startswith("max-autotune") else 1.0
    return factor * (_COMPILE_S + _COMPILE_PER_OP_S * len(facts.model_ops))


def _why_not_compiled(facts: StepFacts) -> str | None:
    """Return why the step cannot be compiled; None if it can."""
    if facts.is_compiled:
        return "the script calls torch.compile itself"
    if not facts.is_on_cuda and not facts.has_compiler:
        return NO_COMPILER
    return None


def _apply(run: configured) -> Count:
    """Run trained models compiled, in an autocast region, or both."""
    from breakeven.configure.model_calls import changed_model_calls

    wanted = run.wanted
    calls = changed_model_calls(
        compile_mode=wanted.compile_mode, autocast=wanted.autocast, device=run.device
    )
    if not wanted.compile_mode or not run.pays_after_s:
        return run.enter_context(calls).num_applied
    # Autocast starts together with compilation, so that the model's call changes only once.
    import torch.optim.optimizer

    def begin_once_it_pays(*_: object) -> None:
        if run.pays_now():
            hook.remove()
            run.enter_context(calls)

    hook = torch.optim.optimizer.register_optimizer_step_post_hook(begin_once_it_pays)
    run.callback(hook.remove)
    return calls.num_applied


_NEED_A_GPU = {
    "reduce-overhead": "CUDA graphs need a GPU",
    "max-autotune": "its choice of kernels and CUDA graphs need a GPU",
}


def _why_no_compile(facts: StepFacts, current: Configuration, mode: str) -> str | None:
    if reason := _why_not_compiled(facts):
        return reason
    if not facts.calls_model:
        return "the step calls no model"
    return None if facts.is_on_cuda else _NEED_A_GPU.get(mode)


def _compile_gain(facts: StepFacts, mode: str) -> float:
    """Return most of the time spent issuing operators."""
    factor = 1.0 if mode in ("default", "reduce-overhead") else 0.8
    return factor * (0.1 + 0.5 * facts.launch_fraction)


def _why_no_autocast(facts: StepFacts, current: Configuration, dtype: str) -> str | None:
    if facts.trace.settings.autocast_dtype or facts.calls("torch.autocast"):
        return "the script has an autocast region itself"
    if facts.trace.facts.default_dtype == "float64":
        return "the script computes in float64, so precision matters to it"
    if not facts.calls_model:
        return "the step calls no model"
    if not facts.has_products:
        return NO_PRODUCT
    if not facts.is_on_cuda and not facts.has_bf16:
        return "this processor has no instructions for bfloat16"
    if not facts.is_on_cuda and dtype == "float16":
        return "this processor has no fast float16"
    if facts.op_ns < SHORT_OP_NS / 2:
        return (
            f"an operator takes {format_duration(facts.op_ns)} on average: "
            "converting would cost more than it saves"
        )
    return None


SETTINGS = (
    Setting(
        name="fast_step",
        meaning="the loop's forward, backward and update are one compiled call",
        note=" (`breakeven.fast_step`), if the loop of the script allows it",
        numerics=Numerics.REORDERED,
        family="fast-step",
        title="forward, backward and update as one compiled call",
        undo="only the loop in memory changes, not the file; the state of model and optimizer is "
        "the same",
        apply=_call_steps,
        also=_without_settings_of_loop,
        why_not=lambda facts, *_: facts.no_fast_step or _why_not_compiled(facts),
        gain=_fast_step_gain,
        cost_s=_fast_step_s,
    ),
    Setting(
        name="autocast",
        meaning="the model is called in an autocast region of this format",
        numerics=Numerics.LOWER_PRECISION,
        family="autocast",
        title=lambda _, dtype: f"matrix products in {dtype}",
        undo="weights stay float32; the region ends with each call of the model",
        apply=_apply,
        is_for_loop=True,
        values=("bfloat16", "float16"),
        why_not=_why_no_autocast,
        gain=0.4,
    ),
    Setting(
        name="compile_mode",
        meaning="the model is compiled by torch.compile, in this mode",
        note="; CUDA graphs come with `compile=reduce-overhead`",
        numerics=Numerics.REORDERED,
        family="compile",
        names={"default": "compile"},
        title=lambda _, mode: "the model compiled" + ("" if mode == "default" else f" ({mode})"),
        undo="the model keeps its own code; its state has the same names",
        apply=_apply,
        is_for_loop=True,
        values=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        why_not=_why_no_compile,
        gain=_compile_gain,
        cost_s=_compile_s,
    ),
)

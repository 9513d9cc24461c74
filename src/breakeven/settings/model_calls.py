"""How the model is called: in an autocast region, compiled, its kernels called from C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakeven.settings.setting import NO_PRODUCT, SHORT_OP_NS, Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.units import format_duration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

NO_COMPILER = "there is no C++ compiler (set CXX, or install g++)"
# Compiling a model on two cores takes this long before anything is known of it, and this much for
# each of its operators; what it really took is measured and counted.
# Source: the scripts of benchmarks/workloads under torch 2.13, 8 s to 60 s.
_COMPILE_S = 8.0
_COMPILE_PER_OP_S = 0.06
# Trying several kernels for each operator takes some times as long.
_AUTOTUNE_FACTOR = 2.0
# How likely compiling the model makes a step faster on a CPU at all: what it saves between
# operators, checking before each call that the code is still right costs again.
# Source: benchmarks/tune_workloads.py on two cores, 0.5 to 0.9 times as fast on each that it tried.
_CHANCE_ON_CPU = 0.1
_NEED_A_GPU = {
    "reduce-overhead": "it captures CUDA graphs, which need a GPU",
    "max-autotune": "its CUDA graphs need a GPU",
}


def compile_s(facts: StepFacts, mode: object = "default") -> float:
    """Return about how many seconds compiling the model takes."""
    factor = _AUTOTUNE_FACTOR if str(mode).startswith("max-autotune") else 1.0
    return factor * (_COMPILE_S + _COMPILE_PER_OP_S * len(facts.model_ops))


def why_not_compiled(facts: StepFacts) -> str | None:
    """Return why nothing of a step can be compiled; None where it can."""
    if facts.is_compiled:
        return "the script calls torch.compile itself"
    if not facts.is_on_cuda and not facts.has_compiler:
        return NO_COMPILER
    return None


def _apply(run: configured) -> Count:
    """Let trained models run compiled, or within an autocast region, or both."""
    from breakeven.configure.model_calls import changed_model_calls

    wanted = run.wanted
    calls = changed_model_calls(
        compile_mode=wanted.compile_mode,
        cpp_wrapper=wanted.cpp_wrapper,
        autocast=wanted.autocast,
        device=run.device,
    )
    if not wanted.compile_mode or not run.pays_after_s:
        return run.enter_context(calls).num_applied
    # Another number format waits with it: a model is called in one way at a time.
    import torch.optim.optimizer

    def begin_once_it_pays(*_: object) -> None:
        if run.pays_now():
            hook.remove()
            run.enter_context(calls)

    hook = torch.optim.optimizer.register_optimizer_step_post_hook(begin_once_it_pays)
    run.callback(hook.remove)
    return calls.num_applied


def _why_not(facts: StepFacts, current: Configuration, mode: str) -> str | None:
    if reason := why_not_compiled(facts):
        return reason
    if not facts.calls_model:
        return "the step calls no model"
    return None if facts.is_on_cuda else _NEED_A_GPU.get(mode)


def _gain(facts: StepFacts, mode: str) -> float:
    """Return most of what issuing operators takes."""
    gain = 0.1 + 0.5 * facts.launch_fraction
    if not facts.is_on_cuda:
        gain *= _CHANCE_ON_CPU
    return gain if mode in ("default", "reduce-overhead") else 0.8 * gain


def _why_not_wrapped(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if not current.compile_mode:
        return "the model is not compiled"
    return None if facts.has_compiler else NO_COMPILER


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
        candidate=lambda mode: "compile" if mode == "default" else f"compile={mode}",
        title=lambda _, mode: "the model compiled" + ("" if mode == "default" else f" ({mode})"),
        undo="the model keeps its own code beside; its state has the same names",
        apply=_apply,
        is_for_loop=True,
        values=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        why_not=_why_not,
        gain=_gain,
        cost_s=compile_s,
    ),
    Setting(
        name="cpp_wrapper",
        meaning="compiled code calls its kernels from C++",
        numerics=Numerics.REORDERED,
        family="cpp-wrapper",
        title="compiled code called from C++",
        undo="torch._inductor.config.cpp_wrapper is set back",
        apply=_apply,
        is_for_loop=True,
        why_not=_why_not_wrapped,
        # Comes right after compiling.
        gain=lambda facts, _: 0.1 * facts.launch_fraction,
        cost_s=compile_s,
    ),
)

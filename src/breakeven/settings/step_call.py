"""How a step is called: forward, backward and update as one compiled call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from breakeven.settings.model_calls import compile_s, why_not_compiled
from breakeven.settings.setting import Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

# Generating C for a step and compiling it takes this long, and this much for each of its operators.
# Source: benchmarks/fast_step.py, 1.3 s for an MLP, 2 to 3 s for LeNet and an LSTM of 20 steps.
_GENERATE_S = 1.5
_GENERATE_PER_OP_S = 0.004
# Calling the compiled step, and what the loop does besides.
_LEFT_FRACTION = 0.1


def _why_not(facts: StepFacts, current: Configuration, value: object) -> str | None:
    return facts.no_fast_step or why_not_compiled(facts)


def _gain(facts: StepFacts, value: object) -> float:
    """Return most of what issuing operators takes.

    That is told from the shortest step that was seen: on a busy machine, several threads wait for
    each other in what is no work.
    """
    least_ns = min([facts.step_ns, *facts.steps_ns.values()])
    issuing = (facts.launch_fraction + facts.update_fraction) * facts.step_ns / least_ns
    return (1.0 - _LEFT_FRACTION) * min(1.0, issuing)


def _cost_s(facts: StepFacts, value: object) -> float:
    if facts.generates_steps:
        return _GENERATE_S + _GENERATE_PER_OP_S * len(facts.model_ops)
    return compile_s(facts)


def _without_settings_of_loop(facts: StepFacts) -> dict[str, bool | int | str]:
    """Return the settings that a step as one call does without, as the script has them."""
    from breakeven.settings import SETTINGS  # made of this module, among others

    fields = zip(Configuration.__struct_fields__, Configuration.__struct_defaults__, strict=True)
    return {name: default for name, default in fields if SETTINGS[name].is_for_loop}


def _call_steps(run: configured) -> Count:
    """Let the changed loop of a script have its step from here.

    What changes the loop is whoever starts the script: see ``rewrite.code_of_fast_step``.
    """
    made: list[Any] = []

    def make(model: Any, loss_fn: Any, optimizer: Any, **options: Any) -> Any:
        # Imports torch's compiler, which a script without a matching loop does without.
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


SETTINGS = (
    Setting(
        name="fast_step",
        meaning="the loop's forward, backward and update are one compiled call",
        note=" (`breakeven.fast_step`), where the loop of a script is known to allow it",
        numerics=Numerics.REORDERED,
        family="fast-step",
        title="forward, backward and update as one compiled call",
        undo="the script's file is not changed, its loop is in memory; the state of model and "
        "optimizer is the same",
        apply=_call_steps,
        also=_without_settings_of_loop,
        why_not=_why_not,
        gain=_gain,
        cost_s=_cost_s,
    ),
)

"""Matrix products and convolutions in bfloat16 (CPU, GPU) or float16 (GPU)."""

from __future__ import annotations

from breakeven.settings.compiled_model import apply_model_calls
from breakeven.settings.setting import NO_PRODUCT, Setting
from breakeven.settings.step_facts import SHORT_OP_NS, StepFacts
from breakeven.trace import Configuration
from breakeven.units import format_duration
from breakeven.verdict import Numerics


def _why_not(facts: StepFacts, current: Configuration, dtype: str) -> str | None:
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
        apply=apply_model_calls,
        values=("bfloat16", "float16"),
        why_not=_why_not,
        gain=0.4,
    ),
)

"""How CUDA multiplies and convolves: TF32, cuDNN's search for the fastest algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakeven.settings.setting import NO_PRODUCT, Count, Setting
from breakeven.settings.step_facts import StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured


def _why_no_tf32(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if facts.trace.settings.allow_tf32_matmul:
        return "the script allows TF32 already"
    return None if facts.has_products else NO_PRODUCT


def _allow_tf32(run: configured) -> Count:
    """Allow it unless the script sets another precision."""
    import torch

    run.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")
    run.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    torch.backends.cudnn.allow_tf32 = True
    return lambda _: int(torch.get_float32_matmul_precision() == "high")


def _why_no_search(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if facts.trace.settings.cudnn_benchmark:
        return "the script has it on already"
    if not facts.has_convolution:
        return "the step has no convolution"
    if facts.trace.facts.num_convolution_shapes > 1:
        return "shapes change from step to step, and each new one would be searched for"
    return None


def _search_algorithms(run: configured) -> Count:
    import torch

    run.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    torch.backends.cudnn.benchmark = True
    return lambda _: int(torch.backends.cudnn.benchmark)


SETTINGS = (
    Setting(
        name="allows_tf32",
        meaning="float32 matrix products may use TF32",
        note=", with 10 bits of mantissa, on tensor cores",
        numerics=Numerics.LOWER_PRECISION,
        family="tf32",
        title="TF32 for matrix products of float32",
        undo="torch.backends.cuda.matmul.allow_tf32 and cudnn.allow_tf32 are set back",
        apply=_allow_tf32,
        only_on="cuda",
        why_not=_why_no_tf32,
        gain=0.2,
    ),
    Setting(
        name="benchmarks_cudnn",
        meaning="cuDNN keeps the fastest of its algorithms",
        note=", found by trying them for each shape once",
        numerics=Numerics.REORDERED,
        family="cudnn-benchmark",
        title="cuDNN's fastest algorithm, found by trying",
        undo="torch.backends.cudnn.benchmark is set back",
        apply=_search_algorithms,
        only_on="cuda",
        why_not=_why_no_search,
        gain=0.1,
        cost_s=1.0,
    ),
)

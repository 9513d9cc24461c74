"""Which kernels multiply and convolve: TF32, cuDNN's search for the fastest, channels last."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import NO_PRODUCT, Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

# Of the weights of two-dimensional convolutions: channels out, channels in, height, width.
_NUM_DIMENSIONS = 4


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


def _why_not(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if not facts.has_convolution:
        return "no two-dimensional convolution has its channels first"
    return None


def _put_channels_last(run: configured) -> Count:
    """Let an optimizer put the weights that it is given into channels-last memory.

    Convolutions hand on the layout of their weights, so that batches need not be converted. Values
    and shapes stay what they are; weights keep their layout when the context is left.
    """
    import torch

    from breakeven.configure import updated_by

    original = torch.optim.Optimizer.__init__
    num_changed = 0

    @functools.wraps(original)
    def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        nonlocal num_changed
        original(optimizer, *args, **kwargs)
        for parameter in updated_by(optimizer):
            if parameter.dim() == _NUM_DIMENSIONS and not parameter.is_contiguous(
                memory_format=torch.channels_last
            ):
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
                num_changed += 1

    run.replace(torch.optim.Optimizer, "__init__", initialize)
    return lambda _: num_changed


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
    Setting(
        name="channels_last",
        meaning="weights of 2-d convolutions in channels-last memory",
        numerics=Numerics.REORDERED,
        family="channels-last",
        title="weights of convolutions in channels-last memory",
        undo="the layout of the weights ends with the run; what is saved loads anywhere",
        apply=_put_channels_last,
        is_for_loop=True,
        why_not=_why_not,
        gain=0.15,
    ),
)

"""Steps of real operators with real costs, for the tests of rules that depend on a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from textwrap import dedent

import msgspec

from breakeven.advise.rule import Match, Rule, RuleInput
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import WhatIf
from breakeven.source import Sources
from breakeven.timing import CpuFacts
from breakeven.trace import (
    Event,
    Op,
    Phase,
    RunFacts,
    Settings,
    SourceText,
    StepTrace,
    TensorSpec,
)
from factories.steps import at

FILE = "train.py"


def gpu_case(
    *events: Event,
    device: str = "A100",
    settings: Settings | None = None,
    facts: RunFacts | None = None,
    cpu: CpuFacts | None = None,
    source: str = "",
    peak_memory_bytes: int = 0,
) -> RuleInput:
    """Return a step on a real device with the shipped costs."""
    trace = StepTrace(
        events=events,
        settings=settings or Settings(),
        facts=facts or RunFacts(),
        peak_memory_bytes=peak_memory_bytes,
    )
    sources = Sources.of((SourceText(path=FILE, text=dedent(source)),) if source else ())
    return RuleInput.of(trace, find_device(device), reference_host(), sources=sources, cpu=cpu)


def gain(case: RuleInput, match: Match) -> float:
    """Return the simulated fraction of the step time that the fix saves."""
    assert match.edit is not None
    return WhatIf(case.program, case.device, case.host).fixed(match.edit).gain_fraction


def only(rule: Rule, case: RuleInput) -> Match:
    """Return the only match of a rule."""
    (match,) = rule.detect(case)
    return match


class Blocks:
    """Makes tensors, each in a separate memory block."""

    _numbers = itertools.count(1)

    def tensor(self, *shape: int, dtype: str = "float32", layout: str = "contiguous") -> TensorSpec:
        return TensorSpec(
            shape=shape,
            dtype=dtype,
            device="cuda:0",
            layout=layout,
            storage=next(self._numbers),
        )


def cast(spec: TensorSpec, dtype: str, blocks: Blocks) -> tuple[Op, TensorSpec]:
    """Return the cast of a tensor, and its result."""
    result = msgspec.structs.replace(
        blocks.tensor(*spec.shape, dtype=dtype, layout=spec.layout), shape=spec.shape
    )
    return Op(name="aten._to_copy.default", inputs=(spec,), outputs=(result,)), result


def linear(
    *,
    batch: int,
    inputs: int,
    outputs: int,
    dtype: str = "float32",
    module: str = "",
    line: int | None = 7,
    autocast: str = "",
) -> tuple[Op, ...]:
    """Return a linear layer, forward and backward, then the update of its weight.

    Args:
        batch: Rows.
        inputs: Features in.
        outputs: Features out.
        dtype: dtype of weights and data.
        module: Dotted path of the layer.
        line: The user's line.
        autocast: dtype of the product, if autocast casts its inputs.
    """
    blocks = Blocks()
    x, weight = (
        blocks.tensor(batch, inputs, dtype=dtype),
        blocks.tensor(outputs, inputs, dtype=dtype),
    )
    casts: list[Op] = []
    if autocast:
        cast_x, x = cast(x, autocast, blocks)
        cast_weight, weight_used = cast(weight, autocast, blocks)
        casts += (cast_x, cast_weight)
    else:
        weight_used = weight
    used = autocast or dtype
    transposed = msgspec.structs.replace(weight_used, shape=(inputs, outputs), layout="transposed")
    y = blocks.tensor(batch, outputs, dtype=used)
    grad_y = blocks.tensor(batch, outputs, dtype=used)
    grad_y_t = msgspec.structs.replace(grad_y, shape=(outputs, batch), layout="transposed")
    grad_weight = blocks.tensor(outputs, inputs, dtype=used)
    ops = [
        *casts,
        Op(name="aten.mm.default", inputs=(x, transposed), outputs=(y,)),
        Op(name="aten.relu.default", inputs=(y,), outputs=(blocks.tensor(*y.shape, dtype=used),)),
        Op(
            name="aten.mm.default",
            inputs=(grad_y, weight_used),
            outputs=(blocks.tensor(batch, inputs, dtype=used),),
            phase=Phase.BACKWARD,
        ),
        Op(
            name="aten.mm.default",
            inputs=(grad_y_t, x),
            outputs=(grad_weight,),
            phase=Phase.BACKWARD,
        ),
    ]
    if autocast:
        back, grad_weight = cast(grad_weight, dtype, blocks)
        ops.append(msgspec.structs.replace(back, phase=Phase.BACKWARD))
    update = Op(
        name="aten._foreach_add_.List",
        inputs=(weight, grad_weight),
        outputs=(),
        phase=Phase.OPTIMIZER,
    )
    located = (
        msgspec.structs.replace(op, module=module, location=at(line) if line else None)
        for op in ops
    )
    return (*located, update)


def convolution(
    *,
    batch: int = 32,
    channels_in: int = 64,
    channels_out: int = 64,
    pixels: int = 64,
    window: int = 3,
    groups: int = 1,
    dtype: str = "float16",
    layout: str = "contiguous",
    bias: bool = False,
    norm: bool = False,
    is_training: bool = True,
    module: str = "",
    line: int | None = 7,
) -> tuple[Op, ...]:
    """Return a convolution that keeps the size of its images, forward and backward."""
    return tuple(
        _convolution(
            Blocks(), batch, channels_in, channels_out, pixels, window, groups, dtype, layout,
            bias, norm, is_training, module, line,
        )
    )  # fmt: skip


def _convolution(
    blocks: Blocks,
    batch: int,
    channels_in: int,
    channels_out: int,
    pixels: int,
    window: int,
    groups: int,
    dtype: str,
    layout: str,
    bias: bool,
    norm: bool,
    is_training: bool,
    module: str,
    line: int | None,
) -> Iterator[Op]:
    def image(channels: int) -> TensorSpec:
        return blocks.tensor(batch, channels, pixels, pixels, dtype=dtype, layout=layout)

    x, y, normalized = image(channels_in), image(channels_out), image(channels_out)
    weight = blocks.tensor(
        channels_out, channels_in // groups, window, window, dtype=dtype, layout=layout
    )
    biases = (blocks.tensor(channels_out, dtype=dtype),) if bias else ()
    location = at(line) if line else None
    shared = {"stride": [1, 1], "dilation": [1, 1], "groups": groups, "transposed": False}
    yield Op(
        name="aten.convolution.default",
        inputs=(x, weight, *biases),
        outputs=(y,),
        attributes=shared,
        module=module,
        location=location,
    )
    statistics = tuple(blocks.tensor(channels_out) for _ in range(4))
    if norm:
        yield Op(
            name="aten.native_batch_norm.default",
            inputs=(y, *statistics),
            outputs=(normalized, blocks.tensor(channels_out), blocks.tensor(channels_out)),
            attributes={"training": is_training},
        )
    yield Op(
        name="aten.convolution_backward.default",
        inputs=(image(channels_out), x, weight),
        outputs=(image(channels_in), weight, *biases),
        attributes={**shared, "output_mask": [True, True, bias]},
        phase=Phase.BACKWARD,
        module=module,
        location=location,
    )

"""KERN004: a convolution adds a bias that the batch norm after it subtracts.

What it does:
    Finds convolutions with a bias whose result goes straight into a batch norm in training
    mode.

Why it costs time:
    The batch norm subtracts the mean of each channel, and the bias with it. Adding it is a pass
    over the activations in the forward pass, its gradient another one in the backward pass,
    and its parameter is updated for nothing.

Evidence:
    The arithmetic of the trace: two kernels per layer that change no result. Public advice on
    tuning repeats it; the gain is some per cent at most.

Fix:
    Leave the bias out; the batch norm has one of its own.

    ```python
    nn.Sequential(nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128))
    ```

    ```python
    nn.Sequential(nn.Conv2d(64, 128, 3, bias=False), nn.BatchNorm2d(128))
    ```

Known limits:
    Weights that were saved with the bias need it removed. The update of the bias stays in the
    simulated step.
"""

from __future__ import annotations

from msgspec.structs import replace

from breakeven.doctor.events import (
    BATCH_NORMS,
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    bare_name,
    op_at,
)
from breakeven.doctor.rule import Case, Found, Occurrence, changed
from breakeven.doctor.source_lines import line_of_layer
from breakeven.trace import Location, Op, Phase

CAUSE = "CONV_BIAS"

_LAYERS = tuple(
    f"{kind}{dimensions}d"
    for kind in ("Conv", "ConvTranspose", "LazyConv")
    for dimensions in (1, 2, 3)
)
_NUM_INPUTS_WITH_BIAS = 3


def detect(case: Case) -> Found:
    by_line: dict[Location | None, list[int]] = {}
    for index in _useless_biases(case):
        by_line.setdefault(_line(case, op_at(case.trace, index)), []).append(index)
    gradients: dict[int, dict[int, Op]] = {}
    for index, op in case.each(Op):
        if bare_name(op) == CONVOLUTION_BACKWARD:
            gradients.setdefault(op.inputs[2].storage, {})[index] = op
    for location, convolutions in by_line.items():
        without_bias: dict[int, Op] = {}
        for index in convolutions:
            op = op_at(case.trace, index)
            without_bias[index] = replace(op, inputs=op.inputs[:2])
            for backward, gradient in gradients.get(op.inputs[1].storage, {}).items():
                without_bias[backward] = _without_bias(gradient)
        count = len(convolutions)
        layers = "a convolution adds a bias" if count == 1 else f"{count} convolutions add a bias"
        yield Occurrence(
            title=f"{layers} that a batch norm takes away again",
            fix="bias=False in the convolution before a batch norm",
            evidence="the result of the convolution, bias added, is read by a batch norm in "
            "training mode, which subtracts the mean of each channel",
            location=location,
            events=tuple(sorted(without_bias)),
            edit=changed(without_bias),
        )


def _useless_biases(case: Case) -> list[int]:
    """Return positions of convolutions with a bias whose only reader is a batch norm."""
    unread: dict[int, int] = {}
    found: dict[int, int] = {}
    for index, op in case.each_on_device():
        if op.phase is not Phase.FORWARD:
            continue
        is_norm = bare_name(op) in BATCH_NORMS and bool(op.attributes.get("training"))
        for position, spec in enumerate(op.inputs):
            convolution = unread.pop(spec.storage, None)
            if convolution is not None and is_norm and position == 0:
                found[spec.storage] = convolution
            elif convolution is None and bare_name(op) != "detach":
                # A second reader sees the bias.
                found.pop(spec.storage, None)
        if bare_name(op) in CONVOLUTIONS and len(op.inputs) >= _NUM_INPUTS_WITH_BIAS:
            unread.update({spec.storage: index for spec in op.outputs if spec.storage >= 0})
    return sorted(found.values())


def _line(case: Case, op: Op) -> Location | None:
    weight = op.inputs[1].shape
    groups = int(op.attributes.get("groups", 1) or 1)
    sizes = (weight[1] * groups, weight[0])
    if op.attributes.get("transposed"):
        sizes = (weight[0], weight[1] * groups)
    return line_of_layer(case.sources, op, _LAYERS, sizes)


def _without_bias(gradient: Op) -> Op:
    """Return the gradient of a convolution without that of its bias."""
    attributes = dict(gradient.attributes)
    mask = attributes.get("output_mask")
    if mask is not None:
        attributes["output_mask"] = [*mask[:2], False]
    outputs = tuple(spec for spec in gradient.outputs if len(spec.shape) > 1)
    return replace(gradient, attributes=attributes, outputs=outputs)

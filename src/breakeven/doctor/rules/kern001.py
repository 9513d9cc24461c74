"""KERN001: half-precision convolutions in channels-first memory.

What it does:
    Reports when convolutions in float16 or bfloat16 run on tensors whose channels come first in
    memory, and the step would be shorter with channels last.

Why it costs time:
    Kernels for tensor cores want channels last. cuDNN otherwise converts what goes into each
    convolution and what comes out of it, two more passes through memory.

Evidence:
    In public reports 22 % on a V100 and 30 % of inference on an RTX 5090, nothing on an A100,
    and a loss by a factor of 35 for some grouped convolutions.

Fix:
    Convert the model once and each batch when it arrives; layers in between keep the layout.

    ```python
    model = ResNet().to(device)
    x = x.to(device)
    ```

    ```python
    model = ResNet().to(device, memory_format=torch.channels_last)
    x = x.to(device, memory_format=torch.channels_last)
    ```

Known limits:
    Grouped and depthwise convolutions may get slower, so nothing is said where they take a
    fifth of the convolutions' time. Operators that fall back to channels first on the way
    are taken to keep the layout.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from breakeven.cost import Family, Kernel
from breakeven.device import Precision
from breakeven.doctor.events import CONVOLUTIONS, bare_name, with_tensors
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.step_times import DevicePace, device_times_ns, has_tensor_cores
from breakeven.simulate import Edit
from breakeven.trace import Event, TensorSpec
from breakeven.units import format_percent

CAUSE = "CHANNELS_LAST"

_HALF: Final = (Precision.FP16, Precision.BF16)
_MIN_LAYOUT_GAIN = 0.02
# With more of them a change of layout may cost more than it saves.
_MAX_GROUPED_FRACTION = 0.2
_IMAGE_DIMENSIONS = 4


def detect(case: Case) -> Found:
    if not has_tensor_cores(case.device):
        return
    times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
    converted = device_times_ns(case, _is_converted)
    grouped = device_times_ns(case, _is_grouped)
    if not converted or sum(grouped.values()) > _MAX_GROUPED_FRACTION * sum(times.values()):
        return
    edit = _channels_last(case)
    pace = DevicePace(case)
    if pace.gain(edit) < _MIN_LAYOUT_GAIN:
        return
    fraction = pace.fraction(sum(converted.values()))
    yield Occurrence(
        title="half-precision convolutions have their channels first in memory",
        fix="model.to(memory_format=torch.channels_last), and the same for each batch",
        evidence=f"{len(converted)} half-precision convolutions of contiguous tensors, "
        f"{format_percent(fraction)} of what GPU and launches take",
        events=tuple(converted),
        edit=edit,
    )


def _is_converted(kernel: Kernel) -> bool:
    is_half = kernel.family is Family.CONVOLUTION and kernel.precision in _HALF
    return is_half and kernel.conversion_bytes > 0 and not _is_grouped(kernel)


def _is_grouped(kernel: Kernel) -> bool:
    is_convolution = kernel.family is Family.CONVOLUTION
    return is_convolution and kernel.variant.startswith(("grouped", "depthwise"))


def _channels_last(case: Case) -> Edit:
    """Return the step with all images in channels-last layout, converted once at the start."""
    replaced: dict[int, tuple[Event, ...]] = {}
    is_converted = False
    for index, op in case.each_on_device():
        changed = with_tensors(op, _as_channels_last)
        if changed == op:
            continue
        replaced[index] = (changed,)
        if not is_converted and bare_name(op) in CONVOLUTIONS:
            # The batch itself: it arrives as the data set holds it.
            conversion = replace(
                op,
                name="aten.clone.default",
                inputs=op.inputs[:1],
                outputs=changed.inputs[:1],
                attributes={},
            )
            replaced[index] = (conversion, changed)
            is_converted = True
    return Edit(replaced=replaced)


def _as_channels_last(spec: TensorSpec) -> TensorSpec:
    is_image = len(spec.shape) == _IMAGE_DIMENSIONS and spec.layout == "contiguous"
    return replace(spec, layout="channels_last") if is_image else spec

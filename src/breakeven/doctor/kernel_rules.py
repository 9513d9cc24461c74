"""Rules about the kernels that a device picks: layouts, and small factorizations."""

from __future__ import annotations

from typing import ClassVar, Final, final

import msgspec

from breakeven.cost import Family, Kernel
from breakeven.device import Precision
from breakeven.doctor.conv_bias_rule import ConvolutionBias
from breakeven.doctor.cudnn_rules import BenchmarkOff, BenchmarkVarying
from breakeven.doctor.device_times import (
    DevicePace,
    device_times_ns,
    has_tensor_cores,
)
from breakeven.doctor.events import op_at
from breakeven.doctor.operators import CONVOLUTIONS, bare_name
from breakeven.doctor.rule import Case, Occurrence, Rule, by_line, times_per_step
from breakeven.simulate import Edit
from breakeven.trace import Event, Op, TensorSpec
from breakeven.units import format_percent

_HALF: Final = (Precision.FP16, Precision.BF16)
_MIN_LAYOUT_GAIN = 0.02
# With more of them a change of layout may cost more than it saves.
_MAX_GROUPED_FRACTION = 0.2
_IMAGE_DIMENSIONS = 4
# Larger ones have enough work for a GPU; up to this size public reports saw the CPU win.
_MAX_SMALL_MATRIX = 64
_FACTORIZATIONS: Final = frozenset(
    ("_linalg_svd", "linalg_svd", "svd", "linalg_qr", "geqrf", "_linalg_eigh", "linalg_eigh",
     "linalg_eig", "linalg_eigvals", "_linalg_eigvals", "linalg_cholesky_ex", "linalg_cholesky",
     "cholesky", "linalg_inv_ex", "linalg_inv", "_linalg_solve_ex", "linalg_lstsq", "linalg_pinv",
     "linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet")
)  # fmt: skip


@final
class ChannelsFirst:
    """KERN001: half-precision convolutions in channels-first memory.

    What it does:
        Tells when convolutions in float16 or bfloat16 run on tensors whose channels come first in
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

    code: ClassVar[str] = "KERN001"
    cause: ClassVar[str] = "CHANNELS_LAST"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence, without a line, when another layout shortens the step."""
        if not has_tensor_cores(case.device):
            return ()
        times = device_times_ns(case, lambda k: k.family is Family.CONVOLUTION)
        converted = device_times_ns(case, _is_converted)
        grouped = device_times_ns(case, _is_grouped)
        if not converted or sum(grouped.values()) > _MAX_GROUPED_FRACTION * sum(times.values()):
            return ()
        edit = _channels_last(case)
        pace = DevicePace(case)
        if pace.gain(edit) < _MIN_LAYOUT_GAIN:
            return ()
        fraction = pace.fraction(sum(converted.values()))
        return (
            Occurrence(
                title="half-precision convolutions have their channels first in memory",
                fix="model.to(memory_format=torch.channels_last), and the same for each batch",
                evidence=f"{len(converted)} half-precision convolutions of contiguous tensors, "
                f"{format_percent(fraction)} of what GPU and launches take",
                events=tuple(converted),
                edit=edit,
            ),
        )


def _is_converted(kernel: Kernel) -> bool:
    is_half = kernel.family is Family.CONVOLUTION and kernel.precision in _HALF
    return is_half and kernel.conversion_bytes > 0 and not _is_grouped(kernel)


def _is_grouped(kernel: Kernel) -> bool:
    return kernel.family is Family.CONVOLUTION and kernel.variant.startswith(
        ("grouped", "depthwise")
    )


def _channels_last(case: Case) -> Edit:
    """Return the step with all images in channels-last layout, converted once at the start."""
    replaced: dict[int, tuple[Event, ...]] = {}
    is_converted = False
    for index, event in enumerate(case.trace.events):
        if not isinstance(event, Op) or event.is_on_host or not _has_images(event):
            continue
        changed = msgspec.structs.replace(
            event,
            inputs=tuple(map(_as_channels_last, event.inputs)),
            outputs=tuple(map(_as_channels_last, event.outputs)),
        )
        replaced[index] = (changed,)
        if not is_converted and bare_name(event) in CONVOLUTIONS:
            # The batch itself: it arrives as the data set holds it.
            batch = event.inputs[0]
            conversion = msgspec.structs.replace(
                event,
                name="aten.clone.default",
                inputs=(batch,),
                outputs=(_as_channels_last(batch),),
                attributes={},
            )
            replaced[index] = (conversion, changed)
            is_converted = True
    return Edit(replaced=replaced)


def _has_images(op: Op) -> bool:
    return any(_is_contiguous_image(spec) for spec in (*op.inputs, *op.outputs))


def _is_contiguous_image(spec: TensorSpec) -> bool:
    return len(spec.shape) == _IMAGE_DIMENSIONS and spec.layout == "contiguous"


def _as_channels_last(spec: TensorSpec) -> TensorSpec:
    if not _is_contiguous_image(spec):
        return spec
    return msgspec.structs.replace(spec, layout="channels_last")


@final
class SmallFactorization:
    """KERN005: small matrices are factorized on the device.

    What it does:
        Finds SVD, QR, eigenvalues, Cholesky, inverses and solutions of linear systems on the
        device for matrices of at most 64 rows and columns.

    Why it costs time:
        A factorization is a chain of small steps, each of which waits for the one before. The
        libraries launch kernels for each step, many of them matrix by matrix, read a flag of errors
        back, and leave nearly all of the GPU idle.

    Evidence:
        In public reports the CPU was 20 to 70 times faster: SVD 2.0 against 143 ms, QR 0.11
        against 8.1 s on an H100, Cholesky 0.25 against 5.0 s.

    Fix:
        Factorize on the CPU and copy the result back, ask only for what is needed
        (``svdvals``), or write the closed form for matrices of two or three rows.

        ```python
        u, s, v = torch.linalg.svd(cov)
        ```

        ```python
        u, s, v = (t.to(cov.device) for t in torch.linalg.svd(cov.cpu()))
        ```

    Known limits:
        No gain is simulated: the shipped figures hold no small factorizations, and newer versions
        of torch have batched kernels for some. The trip to the CPU makes the host wait for the
        device, which many large batches may not be worth.
    """

    code: ClassVar[str] = "KERN005"
    cause: ClassVar[str] = "LINALG_SMALL"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that factorizes small matrices."""
        found = [
            index
            for index, event in enumerate(case.trace.events)
            if isinstance(event, Op) and not event.is_on_host and _is_small_factorization(event)
        ]
        return tuple(_factorization(case, events) for _, events in by_line(case.trace, found))


def _is_small_factorization(op: Op) -> bool:
    matrix = _matrix(op)
    return bare_name(op) in _FACTORIZATIONS and matrix is not None


def _matrix(op: Op) -> tuple[int, int] | None:
    """Return rows and columns of the factorized matrix; None where they are not small."""
    shapes = [spec.shape[-2:] for spec in op.inputs if len(spec.shape) > 1]
    if not shapes or max(shapes[0]) > _MAX_SMALL_MATRIX:
        return None
    return shapes[0][0], shapes[0][1]


def _factorization(case: Case, events: tuple[int, ...]) -> Occurrence:
    op = op_at(case.trace, events[0])
    rows, columns = _matrix(op) or (0, 0)
    what = bare_name(op).strip("_").removeprefix("linalg_").removesuffix("_ex")
    batch = max(1, op.inputs[0].numel // max(1, rows * columns))
    return Occurrence(
        title=f"{what} of {rows} × {columns} matrices on the GPU {times_per_step(len(events))}",
        fix="factorize on the CPU (.cpu() and back), use a closed form, or ask for values only",
        evidence=f"{bare_name(op)} on {op.device}, {batch} matrices at a time",
        location=op.location,
        events=events,
    )


KERNEL_RULES: tuple[Rule, ...] = (
    ChannelsFirst(),
    BenchmarkOff(),
    BenchmarkVarying(),
    ConvolutionBias(),
    SmallFactorization(),
)

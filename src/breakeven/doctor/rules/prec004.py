"""PREC004: half-precision sizes that are no multiples of 8.

What it does:
    Finds matrix products and convolutions in float16 or bfloat16 whose rows in memory are not
    a multiple of 8 elements long (for convolutions: whose channels are not), where they take
    time that shows in the step. Sizes of batches do not matter, nor the channels of images.

Why it costs time:
    Tensor cores and their libraries load 16 bytes at a time, 8 numbers in half precision. Where
    rows begin elsewhere, the library takes a slower kernel, or one without tensor cores.

Evidence:
    In public reports a layer with 588 inputs took 3.5 times as long as with 592 on a Hopper
    GPU, and a vocabulary of 33,708 padded to 33,712 saved 35 ms per step on a Volta. Others
    saw no difference on the same generation.

Fix:
    Round sizes up: hidden widths, vocabularies, classes of a wide output, lengths of sequences.

    ```python
    head = nn.Linear(hidden, 50257)
    ```

    ```python
    head = nn.Linear(hidden, 50264)  # the last 7 outputs stay unused
    ```

Known limits:
    For convolutions the gain is simulated with padded channels. For products the shipped
    figures do not separate aligned sizes from others, so the gain is the middle between the best
    and the worst public report, which are its interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from breakeven.cost import Family
from breakeven.device import Precision
from breakeven.doctor.events import bare_name, is_convolution, line_of, op_at, with_tensors
from breakeven.doctor.rule import Case, Found, KnownGain, Occurrence, changed
from breakeven.doctor.source_lines import line_of_layer
from breakeven.doctor.step_times import DevicePace, device_times_ns, has_tensor_cores
from breakeven.simulate import Bound
from breakeven.trace import Location, Op, Phase, TensorSpec

CAUSE = "MISALIGNED"

_MULTIPLE: Final = 8
_HALF: Final = frozenset(("float16", "bfloat16"))
_GEMMS: Final = (Family.GEMM, Family.BATCHED_GEMM)
# Images have 1, 3 or 4 channels, which nobody can change.
_MAX_IMAGE_CHANNELS = 4
_MIN_FRACTION = 0.02
# A product at a size that misses the alignment, against the next size that does not: 3.5 times the
# time on Hopper for 588 against 592 (m87-labs/kestrel, PR 143), no difference on a Titan V
# (allenai/allennlp, PR 4929). The middle is taken, and both are the ends of the interval.
_WORST_RATIO = 3.5
_WORST_LOSS = 1.0 - 1.0 / _WORST_RATIO
_TYPICAL_LOSS = _WORST_LOSS / 2


def detect(case: Case) -> Found:
    if has_tensor_cores(case.device):
        yield from _products(case)
        yield from _convolutions(case)


def _products(case: Case) -> Found:
    times = device_times_ns(
        case,
        lambda kernel: (
            kernel.family in _GEMMS
            and kernel.precision in (Precision.FP16, Precision.BF16)
            and case.device.has_precision(kernel.precision)
        ),
    )
    rows = {index: _misaligned_rows(op_at(case.trace, index)) for index in times}
    misaligned = [index for index, found in rows.items() if found]
    if not misaligned:
        return
    pace = DevicePace(case)
    # Kernels that the host takes longer to launch may be as slow as they like. These are costed
    # as aligned ones, and may take longer.
    modelled_ns = sum(times[index] for index in misaligned)
    if not pace.is_device_bound(more_ns=(_WORST_RATIO - 1.0) * modelled_ns):
        return
    for events in _by_layer(case, misaligned):
        time_ns = sum(times[index] for index in events)
        if pace.fraction(time_ns) < _MIN_FRACTION:
            continue
        sizes = sorted({size for index in events for size in rows[index]})
        yield Occurrence(
            title=f"half-precision products with {_as_text(sizes)}",
            fix=f"round up to multiples of {_MULTIPLE}: {_rounded(sizes)}",
            evidence=f"{len(events)} products in half precision with rows that are no multiple of "
            "16 bytes",
            location=_line(case, events[0], ("Linear", "Conv1D")),
            events=events,
            gain=_known_gain(case, time_ns),
        )


def _convolutions(case: Case) -> Found:
    channels = {index: found for index, op in case.each_on_device() if (found := _channels(op))}
    if not channels:
        return
    pace = DevicePace(case)
    for events in _by_layer(case, channels):
        edit = changed({index: _padded(op_at(case.trace, index)) for index in events})
        if pace.gain(edit) < _MIN_FRACTION:
            continue
        sizes = sorted({size for index in events for size in channels[index]})
        yield Occurrence(
            title=f"half-precision convolution with {_as_text(sizes)}",
            fix=f"round channels up to multiples of {_MULTIPLE}: {_rounded(sizes)}",
            evidence=f"{len(events)} convolutions in half precision whose channels are no multiple "
            f"of {_MULTIPLE}",
            location=_line(case, events[0], ("Conv1d", "Conv2d", "Conv3d")),
            events=events,
            edit=edit,
        )


def _known_gain(case: Case, time_ns: float) -> KnownGain:
    """Return what aligned products save of the step, by the public reports above."""
    fraction = time_ns / case.step_ns if case.step_ns > 0 else 0.0
    # Next to nothing is saved where loading or the script outlast the device.
    paced_by_device = (Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY, Bound.SYNC)
    is_paced_by_device = case.prediction.bound in paced_by_device
    return KnownGain(
        fraction=fraction * _TYPICAL_LOSS if is_paced_by_device else 0.0,
        low_fraction=0.0,
        high_fraction=fraction * _WORST_LOSS,
    )


def _misaligned_rows(op: Op) -> tuple[int, ...]:
    """Return the lengths of rows in memory that are no multiples of 8."""
    lengths = (
        _row_length(spec)
        for spec in (*op.inputs, *op.outputs)
        if spec.dtype in _HALF and len(spec.shape) > 1
    )
    return tuple(length for length in lengths if length > 1 and length % _MULTIPLE)


def _row_length(spec: TensorSpec) -> int:
    """Return how many elements lie beside each other; 0 where that is not recorded."""
    position = {"contiguous": -1, "transposed": -2}.get(spec.layout)
    return spec.shape[position] if position else 0


def _channels(op: Op) -> tuple[int, ...]:
    """Return the numbers of channels of an ungrouped convolution that are no multiples of 8."""
    if not is_convolution(op) or int(op.attributes.get("groups", 1) or 1) > 1:
        return ()
    weight = _weight(op)
    if weight is None or weight.dtype not in _HALF:
        return ()
    channels = [size for size in weight.shape[:2] if size > _MAX_IMAGE_CHANNELS]
    return tuple(size for size in channels if size % _MULTIPLE)


def _weight(op: Op) -> TensorSpec | None:
    position = 2 if bare_name(op) == "convolution_backward" else 1
    return op.inputs[position] if len(op.inputs) > position else None


def _padded(op: Op) -> Op:
    """Return the convolution with its channels rounded up, those of images excepted."""
    weight = _weight(op)
    assert weight is not None
    wanted = {size: _round_up(size) for size in weight.shape[:2] if size > _MAX_IMAGE_CHANNELS}

    def pad(spec: TensorSpec) -> TensorSpec:
        if len(spec.shape) != len(weight.shape):
            return spec
        is_weight = spec.shape == weight.shape
        shape = tuple(
            wanted.get(size, size) if position == 1 or (position == 0 and is_weight) else size
            for position, size in enumerate(spec.shape)
        )
        return replace(spec, shape=shape)

    return with_tensors(op, pad)


def _by_layer(case: Case, events: Iterable[int]) -> list[tuple[int, ...]]:
    """Return positions of events by module, outside of modules by line."""
    groups: dict[object, list[int]] = {}
    for index in events:
        op = op_at(case.trace, index)
        groups.setdefault(op.module or line_of(op), []).append(index)
    return [tuple(group) for group in groups.values()]


def _line(case: Case, index: int, kinds: tuple[str, ...]) -> Location | None:
    """Return the line that makes a layer, by its inputs and outputs as its arguments say them."""
    op = op_at(case.trace, index)
    sizes: tuple[int, ...] = ()
    if is_convolution(op):
        weight = _weight(op)
        sizes = () if weight is None else (weight.shape[1], weight.shape[0])
    elif bare_name(op) in ("addmm", "mm") and op.phase is Phase.FORWARD:
        sizes = op.inputs[-1].shape
    return line_of_layer(case.sources, op, kinds, sizes)


def _round_up(size: int) -> int:
    return -(-size // _MULTIPLE) * _MULTIPLE


def _as_text(sizes: list[int]) -> str:
    return f"{'sizes' if len(sizes) > 1 else 'size'} {', '.join(map(str, sizes))}"


def _rounded(sizes: list[int]) -> str:
    return ", ".join(f"{size} to {_round_up(size)}" for size in sizes)

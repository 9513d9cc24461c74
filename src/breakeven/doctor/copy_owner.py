"""Which rule each copy from host to device belongs to: the most specific one."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from enum import Enum, auto

from breakeven.doctor.events import bare_name, line_of, lines_where, written_by
from breakeven.doctor.rule import Case
from breakeven.source import SourceFile, dotted_name
from breakeven.trace import NEVER_ON_DEVICE, Copy, Event, Op, Phase, StepTrace, Sync

# Wraps data of Python or NumPy in a tensor.
_FROM_PYTHON = "aten.lift_fresh"
# Up to so many elements are numbers of the script; more of them are data.
_MAX_SCALARS = 64
# Layers with parameters.
_LAYERS = frozenset({
    "addmm", "mm", "bmm", "baddbmm", "convolution", "embedding", "_embedding_bag",
    "native_batch_norm", "native_layer_norm", "native_group_norm", "mkldnn_rnn_layer", "lstm",
    "gru", "rnn_tanh", "rnn_relu", "_scaled_dot_product_flash_attention_for_cpu",
})  # fmt: skip
_LITERALS = (ast.Constant, ast.List, ast.Tuple, ast.ListComp, ast.BinOp, ast.UnaryOp)
# Libraries that take batches from a loader and copy them; their user sets the loader alone.
_FRAMEWORKS = frozenset({"lightning", "pytorch_lightning", "transformers", "accelerate", "ignite"})
_NUMPY_NOISE = ("np.random.", "numpy.random.", "random.", "rng.")


class Upload(Enum):
    """What a copy from host to device is of."""

    BATCH = auto()
    CREATED = auto()
    SCALARS = auto()
    INDEX = auto()
    OF_HOST_PART = auto()
    OF_LIBRARY = auto()


class Made(Enum):
    """What a host tensor of the step was made from."""

    SIZES = auto()
    NUMBERS = auto()
    DATA = auto()


def uploads(case: Case) -> Mapping[int, Upload]:
    """Return what each copy to the device is of, by position.

    There are none for a script without a GPU, which is recorded as if it had been moved: it has no
    copy that could be better. Nor for the first step of all, which comes after moving the model.
    """
    return case.once(_uploads)


def _uploads(case: Case) -> dict[int, Upload]:
    if any(caveat.code == NEVER_ON_DEVICE.code for caveat in case.trace.caveats):
        return {}
    made = made_on_host(case.trace)
    # The gradients of what is copied there travel back to the host.
    crossed = lines_where(case.trace, lambda e: e.phase is Phase.BACKWARD and _is_to_host(e))
    computed = _computed_by_layers(case.trace)
    return {
        index: Upload.OF_HOST_PART
        if event.storage in computed
        else _upload(case, index, event, made, crossed)
        for index, event in enumerate(case.trace.events)
        if isinstance(event, Copy) and event.is_to_device and event.destination != "cpu"
    }


def _upload(
    case: Case,
    index: int,
    copy: Copy,
    made: dict[int, Made],
    crossed: frozenset[tuple[str, int]],
) -> Upload:
    if copy.phase is Phase.BACKWARD or line_of(copy) in crossed:
        return Upload.OF_HOST_PART
    if copy.phase is Phase.OPTIMIZER or copy.via.startswith("torch."):
        return Upload.OF_LIBRARY
    origin = made.get(copy.storage)
    if origin is Made.SIZES or (
        origin is Made.DATA and case.sources.is_at(copy.location, _is_numpy_noise)
    ):
        return Upload.CREATED
    if origin is Made.NUMBERS and not case.sources.is_at(copy.location, _is_from_numpy):
        return Upload.SCALARS
    if origin is Made.DATA and case.sources.is_at(copy.location, _is_literal):
        return Upload.SCALARS
    return Upload.INDEX if _is_index(case.trace, index, copy) else Upload.BATCH


def is_by_framework(copy: Copy) -> bool:
    """Return whether a library takes the batch from its loader and copies it."""
    return copy.via.partition(".")[0] in _FRAMEWORKS


def made_on_host(trace: StepTrace) -> dict[int, Made]:
    """Return what host memory of the step was made from, where not from what was there before."""
    made: dict[int, Made] = {}
    for op in trace.ops:
        if op.is_on_host and op.phase in (Phase.FORWARD, Phase.BACKWARD):
            for tensor in op.outputs:
                origin = _origin(trace, op, made, tensor.numel)
                if origin is not None and tensor.storage != -1:
                    made[tensor.storage] = origin
    return made


def _origin(trace: StepTrace, op: Op, made: dict[int, Made], numel: int) -> Made | None:
    if op.name.startswith(_FROM_PYTHON):
        is_batch = 1 < numel == trace.batch_size
        return Made.NUMBERS if numel <= _MAX_SCALARS and not is_batch else Made.DATA
    if not all(tensor.storage in made for tensor in op.inputs):
        return None
    origins = {made[tensor.storage] for tensor in op.inputs}
    if Made.DATA in origins:
        return Made.DATA
    # What sizes and a few numbers grow into is made, as a mask filled with a number is.
    return Made.NUMBERS if origins == {Made.NUMBERS} and numel <= _MAX_SCALARS else Made.SIZES


def is_layer(op: Op) -> bool:
    """Return whether the host computes a layer of a model, unlike what prepares a batch."""
    is_within = op.phase is Phase.FORWARD and bool(op.module)
    return op.is_on_host and is_within and bare_name(op) in _LAYERS


def _computed_by_layers(trace: StepTrace) -> frozenset[int]:
    """Return the host memory that layers on the host wrote, and what was computed from it."""
    found: set[int] = set()
    for op in trace.ops:
        if op.is_on_host and (is_layer(op) or any(tensor.storage in found for tensor in op.inputs)):
            found |= written_by([op])
    return frozenset(found)


def _is_index(trace: StepTrace, index: int, copy: Copy) -> bool:
    """Return whether indexing a tensor of the device copies its index, which is on the host."""
    following = trace.events[index + 1 : index + 4]
    return copy.storage != -1 and any(
        isinstance(event, Op)
        and not event.is_on_host
        and any(tensor.storage == copy.storage for tensor in event.inputs[1:])
        for event in following
    )


def _is_literal(source: SourceFile, line: int) -> bool:
    """Return whether a list or number of Python becomes a tensor."""
    makers = ("torch.tensor", "torch.as_tensor", "torch.Tensor")
    return any(
        dotted_name(call.func) in makers and isinstance(next(iter(call.args), None), _LITERALS)
        for call in source.calls_on(line)
    )


def _is_from_numpy(source: SourceFile, line: int) -> bool:
    return any(dotted_name(call.func).endswith("from_numpy") for call in source.calls_on(line))


def _is_numpy_noise(source: SourceFile, line: int) -> bool:
    """Return whether NumPy draws random numbers."""
    return any(dotted_name(call.func).startswith(_NUMPY_NOISE) for call in source.calls_on(line))


def _is_to_host(event: Event) -> bool:
    if isinstance(event, Copy):
        return not event.is_to_device
    return isinstance(event, Sync) and event.kind == "cpu"

"""Transfers between host and device: the content of each copy, and the use of each read.

Each copy belongs to one rule, the most specific.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

from breakeven.advise.events import (
    MemoryWriters,
    bare_name,
    is_in_place,
    line_of,
    lines_where,
    newest_storages,
    read_by,
    written_by,
)
from breakeven.advise.rule import RuleInput, once
from breakeven.source import (
    SourceFile,
    arguments_of,
    dotted_name,
    last_name,
    nodes_in,
    reached_by,
    spans,
    statements_of,
    used_names,
)
from breakeven.trace import Copy, Event, HostWork, Location, Op, Phase, StepTrace, Sync

# Wraps Python or NumPy data in a tensor.
_FROM_PYTHON = "aten.lift_fresh"
# Maximum elements for numbers of the script; larger tensors are data.
_MAX_SCALARS = 64
# Layers with parameters.
_LAYERS = frozenset({
    "addmm", "mm", "bmm", "baddbmm", "convolution", "embedding", "_embedding_bag",
    "native_batch_norm", "native_layer_norm", "native_group_norm", "mkldnn_rnn_layer", "lstm",
    "gru", "rnn_tanh", "rnn_relu", "_scaled_dot_product_flash_attention_for_cpu",
})  # fmt: skip
_LITERALS = (ast.Constant, ast.List, ast.Tuple, ast.ListComp, ast.BinOp, ast.UnaryOp)
# Libraries that take batches from a loader and copy them; their users set only the loader.
_FRAMEWORKS = frozenset({"lightning", "pytorch_lightning", "transformers", "accelerate", "ignite"})
_NUMPY_NOISE = ("np.random.", "numpy.random.", "random.", "rng.")
# Ways to read a whole tensor.
TENSOR_READS = frozenset({"cpu", "tolist", "numpy", "copy_"})
# Size of the largest single number in torch.
NUMBER_BYTES = 8
_CLOCKS = frozenset({
    "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns",
    "process_time", "elapsed_time", "record", "Timer",
})  # fmt: skip
# Names of simulators, as a pattern.
SIMULATORS = r"(^|[._])(v?envs?|gym|sim|simulator|game|world|board)"
# Objects whose step() does not belong to a simulator.
_TRAINING = ("opt", "sched", "scaler", "lr", "accelerator", "profiler", "prof", "bar", "engine")


class Upload(Enum):
    """The content of a copy from host to device."""

    BATCH = auto()
    CREATED = auto()
    SCALARS = auto()
    INDEX = auto()
    HOST_SUBMODEL = auto()
    LIBRARY = auto()


class RoundTrip(NamedTuple):
    """Reads of a line, and the copies of their results back to the device.

    Args:
        location: The line; None if unknown.
        reads: Positions of the reads.
        copies: Positions of the copies to the device.
    """

    location: Location | None
    reads: list[int]
    copies: set[int]


class TensorSource(Enum):
    """The origin of a host tensor of the step."""

    SIZES = auto()
    NUMBERS = auto()
    DATA = auto()


_SIZES, _NUMBERS, _DATA = TensorSource


@once
def uploads(case: RuleInput) -> Mapping[int, Upload]:
    """Return the content of each copy to the device, by position.

    A script without a GPU gives none: it is recorded as if moved to one, and has no copies to
    improve. The first step gives none either: it follows the transfer of the model.
    """
    if case.is_never_on_device:
        return {}
    made, computed = made_on_host(case.trace), set[int]()
    for op in case.trace.ops:
        if op.is_on_host and (is_layer(op) or not computed.isdisjoint(read_by([op]))):
            computed |= written_by([op])
    # The gradients of tensors copied there travel back to the host.
    crossed = lines_where(case.trace, lambda e: e.phase is Phase.BACKWARD and _is_to_host(e))
    found: dict[int, Upload] = {}
    for index, copy in case.each(Copy):
        if not copy.is_to_device or copy.destination == "cpu":
            continue
        is_of_host = copy.storage in computed or line_of(copy) in crossed
        source, is_at = made.get(copy.storage), partial(case.sources.is_at, copy.location)
        if is_of_host or copy.phase is Phase.BACKWARD:
            found[index] = Upload.HOST_SUBMODEL
        elif copy.phase is Phase.OPTIMIZER or copy.via.startswith("torch."):
            found[index] = Upload.LIBRARY
        elif source is _SIZES or (source is _DATA and is_at(_is_numpy_noise)):
            found[index] = Upload.CREATED
        elif (source is _NUMBERS and not is_at(_is_from_numpy)) or (
            source is _DATA and is_at(_is_literal)
        ):
            found[index] = Upload.SCALARS
        else:
            is_index = _is_index(case.trace, index, copy)
            found[index] = Upload.INDEX if is_index else Upload.BATCH
    return found


def is_by_framework(copy: Copy) -> bool:
    """Return whether a library takes the batch from its loader and copies it."""
    return copy.via.partition(".")[0] in _FRAMEWORKS


def made_on_host(trace: StepTrace) -> dict[int, TensorSource]:
    """Return the origin of host memory made in the step, unless it depends on older memory."""
    made: dict[int, TensorSource] = {}
    for op in trace.ops:
        if not op.is_on_host or op.phase not in (Phase.FORWARD, Phase.BACKWARD):
            continue
        sources = {made.get(tensor.storage) for tensor in op.inputs}
        for tensor in op.outputs:
            is_small = tensor.numel <= _MAX_SCALARS
            if tensor.storage == -1:
                continue
            if op.name.startswith(_FROM_PYTHON):
                is_batch = 1 < tensor.numel == trace.batch_size
                source = _NUMBERS if is_small and not is_batch else _DATA
            elif None in sources:
                continue
            elif _DATA in sources:
                source = _DATA
            else:
                # Large results of sizes and a few numbers count as made, like a mask filled with a
                # number.
                source = _NUMBERS if sources == {_NUMBERS} and is_small else _SIZES
            made[tensor.storage] = source
    return made


def is_layer(op: Op) -> bool:
    """Return whether the host computes a model's layer, as opposed to preparing a batch."""
    is_within = op.phase is Phase.FORWARD and bool(op.module)
    return op.is_on_host and is_within and bare_name(op) in _LAYERS


def _is_index(trace: StepTrace, index: int, copy: Copy) -> bool:
    """Return whether indexing a device tensor copies its index from the host."""
    following = trace.events[index + 1 : index + 4]
    return copy.storage != -1 and any(
        isinstance(event, Op)
        and not event.is_on_host
        and any(tensor.storage == copy.storage for tensor in event.inputs[1:])
        for event in following
    )


def _is_literal(source: SourceFile, line: int) -> bool:
    """Return whether a Python list or number becomes a tensor."""
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


@once
def memory_writers(case: RuleInput) -> MemoryWriters:
    """Return the writers of each memory block."""
    return MemoryWriters(case.trace)


@once
def round_trips(case: RuleInput) -> Sequence[RoundTrip]:
    """Return reads of whole tensors in the forward pass, and the copies of their results.

    NumPy hides the path from a read to a copy. So a copy before the backward pass or the next batch
    counts if its memory is younger than the read, unless the source contradicts.
    """
    events, copies = case.trace.events, dict(case.each(Copy))
    own = (Upload.BATCH, Upload.SCALARS, Upload.INDEX, Upload.LIBRARY)
    uploaded = [index for index, kind in uploads(case).items() if kind in own]
    newest, ends = newest_storages(events), _ends_of_forward(events)
    parameters = memory_writers(case).updated
    # The model starts with the first use of a parameter. Earlier reads belong to the previous step:
    # a script reads its metrics after the update.
    uses = (
        index
        for index, op in case.each(Op)
        if op.phase is Phase.FORWARD and not is_in_place(op) and read_by([op]) & parameters
    )
    first_layer = next(uses, len(events))
    found: dict[tuple[str, int] | None, RoundTrip] = {}
    # The first read of a line in a forward pass covers the copies of all its later reads. The
    # second list: the youngest memory of each copy and those after it.
    copied: dict[tuple[tuple[str, int] | None, int], tuple[list[int], list[int]]] = {}
    for index, read in case.each(Sync):
        if index < first_layer or not is_whole_read(read) or read.phase is not Phase.FORWARD:
            continue
        if case.sources.is_at(read.location, feeds_simulator):
            continue
        key = line_of(read), ends[index]
        if key not in copied:
            between = uploaded[bisect_right(uploaded, index) : bisect_left(uploaded, ends[index])]
            later = [
                position
                for position in between
                if copies[position].storage > newest[index]
                and _may_come_from(case, read, copies[position])
            ]
            youngest = [*accumulate((copies[position].storage for position in later[::-1]), max)]
            copied[key] = later, youngest[::-1]
        later, youngest = copied[key]
        following = bisect_right(later, index)
        if following < len(later) and youngest[following] > newest[index]:
            trip = found.setdefault(line_of(read), RoundTrip(read.location, [], set()))
            trip.reads.append(index)
            trip.copies.update(later)
    return tuple(found.values())


def is_whole_read(sync: Sync) -> bool:
    """Return whether a whole tensor is read, as opposed to a number."""
    return sync.kind in TENSOR_READS and sync.num_bytes > NUMBER_BYTES


def _ends_of_forward(events: tuple[Event, ...]) -> list[int]:
    """Return, per event, the start of the backward pass or next batch; the event itself if none."""
    ends = list(range(len(events)))
    end: int | None = None
    for index in reversed(ends):
        event = events[index]
        ends[index] = index if end is None else end
        if isinstance(event, HostWork):
            end = index if event.kind == "data" else end
        elif event.phase is not Phase.FORWARD:
            end = index if event.phase is Phase.BACKWARD else None
    return ends


def _may_come_from(case: RuleInput, read: Sync, copy: Copy) -> bool:
    source, at, copied_at = case.sources.find(read.location), read.location, copy.location
    if source is None or at is None or copied_at is None or copied_at.file != at.file:
        return True
    return _reaches(source, at.line, copied_at.line)


# Called for each pair of a read and a copy; many pairs have the same lines.
@lru_cache(maxsize=4096)
def _reaches(source: SourceFile, line: int, other_line: int) -> bool:
    """Return whether the statement at ``other_line`` uses a result of that at ``line``.

    Lines of different functions always count as reached: calls are not followed.
    """
    if source.scope_around(line) is not source.scope_around(other_line):
        return True
    return any(spans(statement, other_line) for statement, _ in reached_by(source, line))


def feeds_simulator(source: SourceFile, line: int) -> bool:
    """Return whether a value read at ``line`` is passed to the ``step`` of a simulator."""
    scope = source.scope_around(line)
    lines = [line]
    if isinstance(scope, ast.FunctionDef) and any(
        isinstance(statement, ast.Return) and spans(statement, line)
        for statement in statements_of(scope)
    ):
        lines += [call.lineno for call in source.calls(scope.name)]
    return any(
        _steps_simulator(call) and (spans(statement, one) or made & used_names(*arguments_of(call)))
        for one in lines
        for statement, made in reached_by(source, one)
        for call in nodes_in(statement, ast.Call)
    )


def _steps_simulator(call: ast.Call) -> bool:
    owner, _, name = dotted_name(call.func).rpartition(".")
    receiver = owner.rpartition(".")[2].lower()
    is_training = any(part in receiver for part in _TRAINING)
    return bool(call.args) and name == "step" and owner != "" and not is_training


def is_beside_clock(source: SourceFile, line: int) -> bool:
    """Return whether the statement at ``line``, or a neighbouring one, reads a clock."""
    found = list(statements_of(source.scope_around(line)))
    at = next((i for i, statement in enumerate(found) if spans(statement, line)), None)
    return at is not None and any(
        last_name(call.func) in _CLOCKS
        for statement in found[max(0, at - 1) : at + 2]
        for call in nodes_in(statement, ast.Call)
    )

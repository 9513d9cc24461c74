"""COPY: what is copied from host to device, and how it could be done or spared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from breakeven.doctor.events import bare_name, copy_at, on_device, op_at
from breakeven.doctor.numpy_batch import (
    converted_on_device,
    element_bytes,
    gathered,
    numpy_batch,
)
from breakeven.doctor.rule import (
    Match,
    Matches,
    RuleInput,
    by_line,
    changed,
    num_copies,
    rule,
    times_per_step,
    without,
)
from breakeven.doctor.transfers import (
    TensorSource,
    Upload,
    is_by_framework,
    made_on_host,
    memory_writers,
    round_trips,
    uploads,
)
from breakeven.simulate import Edit
from breakeven.trace import (
    Copy,
    Event,
    Location,
    Op,
    Phase,
    StepTrace,
    TensorSpec,
)
from breakeven.units import format_bytes


def queued(copy: Copy) -> Copy:
    """Return the copy from pinned memory, which nothing waits for."""
    return replace(copy, is_pinned=True, non_blocking=True)


def whole(op: Op, num_elements: int) -> Op:
    """Return the operator on the device for a whole batch at once.

    Args:
        op: An operator of the host that may work on one sample.
        num_elements: Elements of the batch.
    """

    def sized(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        largest = max((tensor.numel for tensor in tensors), default=0)
        return tuple(
            replace(tensor, shape=(num_elements,), layout="contiguous")
            if tensor.numel == largest
            else tensor
            for tensor in tensors
        )

    moved = on_device(op)
    return replace(moved, inputs=sized(moved.inputs), outputs=sized(moved.outputs))


def uploaded(case: RuleInput, kind: Upload) -> list[int]:
    """Return the copies of a kind, without those that bring back what was read."""
    back = {copy for trip in round_trips(case) for copy in trip.copies}
    return [index for index, own in uploads(case).items() if own is kind and index not in back]


def makers_of(trace: StepTrace, copies: tuple[int, ...]) -> tuple[int, ...]:
    """Return the operators of the host that made what is copied, out of nothing else."""
    made = {
        storage
        for storage, origin in made_on_host(trace).items()
        if origin is not TensorSource.DATA
    }
    wanted = made & {copy_at(trace, index).storage for index in copies}
    makers: list[int] = []
    for index in reversed(range(len(trace.events))):
        op = trace.events[index]
        if not isinstance(op, Op) or not op.is_on_host:
            continue
        if any(tensor.storage in wanted for tensor in op.outputs):
            makers.append(index)
            wanted |= made & {tensor.storage for tensor in op.inputs}
    return tuple(reversed(makers))


def seen_copies(case: RuleInput, events: tuple[int, ...]) -> str:
    """Return in words how many copies there are, and of how much."""
    copies = [copy_at(case.trace, index) for index in events]
    total = sum(copy.num_bytes for copy in copies)
    memory = "pinned" if all(copy.is_pinned for copy in copies) else "pageable"
    number = num_copies(len(copies))
    return f"{number} of {format_bytes(total)} from {memory} memory in the recorded step"


# An observation of a simulator is smaller; no loader could pin it ahead of time.
_MIN_BATCH_BYTES = 64


@rule("COPY001", "H2D_PAGEABLE")
def blocking_copies(case: RuleInput) -> Matches:
    copies = dict(case.each(Copy))
    batches = [index for index in uploaded(case, Upload.BATCH) if copies[index].is_blocking]
    if all(copies[index].num_bytes < _MIN_BATCH_BYTES for index in batches):
        return
    theirs = tuple(index for index in batches if is_by_framework(copies[index]))
    found = by_line(case.trace, (index for index in batches if index not in theirs))
    loader = next((loader for loader in case.facts.loaders if not loader.pin_memory), None)
    if theirs and loader is not None:
        found.append((loader.location, theirs))
    for location, events in found:
        often = times_per_step(len(events))
        if all(copies[index].is_pinned for index in events):
            title = f"a batch in pinned memory is copied to the GPU {often} by a copy that blocks"
            source = ""
        else:
            title = f"a batch is copied to the GPU from pageable memory {often}, and the host "
            title += "waits for it"
            source = "pinned memory, as from DataLoader(pin_memory=True), and "
        yield Match(
            title=title,
            fix=f"{source}.to(device, non_blocking=True)",
            evidence=seen_copies(case, events),
            location=location,
            events=events,
            edit=changed({index: queued(copies[index]) for index in events}),
        )


_MADE = {
    Upload.CREATED: (
        "a tensor is made on the host and copied to the GPU",
        "make it on the GPU (device=...), or keep it in a buffer",
    ),
    Upload.INDEX: (
        "an index on the host chooses from a tensor of the GPU and is copied",
        "make the index on the GPU: torch.randperm(n, device=...)",
    ),
}


@rule("COPY002", "H2D_CREATE")
def tensors_made_on_host(case: RuleInput) -> Matches:
    for kind, (title, fix) in _MADE.items():
        for location, events in by_line(case.trace, uploaded(case, kind)):
            makers = makers_of(case.trace, events)
            moved = {index: on_device(case.trace.events[index]) for index in makers}
            yield Match(
                title=f"{title} {times_per_step(len(events))}",
                fix=fix,
                evidence=seen_copies(case, events),
                location=location,
                events=tuple(sorted((*makers, *events))),
                edit=changed(moved, gone=events),
            )


@rule("COPY003", "H2D_SCALAR")
def copied_numbers(case: RuleInput) -> Matches:
    for location, copies in by_line(case.trace, uploaded(case, Upload.SCALARS)):
        events = (*makers_of(case.trace, copies), *copies)
        yield Match(
            title=f"numbers of Python become a tensor of the GPU {times_per_step(len(copies))}",
            fix="use the Python number itself, a buffer, or torch.full((), x, device=...)",
            evidence=seen_copies(case, copies),
            location=location,
            events=events,
            edit=without(events),
        )


# The rest of the memory is for the model, its activations and what the allocator cannot use.
_MEMORY_FRACTION = 0.25

# Taking some samples of a tensor.
_CHOOSING = frozenset({
    "slice", "index", "index_select", "select", "narrow", "split", "split_with_sizes", "chunk",
    "unbind", "gather",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _DataSet:
    """Data in memory that batches are taken from.

    Args:
        num_bytes: All of it.
        copies: The batches that are copied.
        loading: Positions of what takes a batch from it.
        location: Where a batch is taken, or copied.
        then: What the device does with a batch, by the position of its copy.
    """

    num_bytes: int
    copies: Sequence[int]
    loading: Sequence[int]
    location: Location | None
    then: Mapping[int, tuple[Op, ...]] = field(default_factory=dict[int, tuple[Op, ...]])


@rule("COPY004", "DATA_NOT_RESIDENT")
def resident_data(case: RuleInput) -> Matches:
    batches = [index for index, kind in uploads(case).items() if kind is Upload.BATCH]
    copies = dict(case.each(Copy))
    for find in (_loaded, _computed, _chosen):
        data = find(case, batches)
        if data is None or data.num_bytes > _MEMORY_FRACTION * case.device.memory_bytes:
            continue
        batch_bytes = sum(copies[index].num_bytes for index in data.copies)
        gathered: dict[int, tuple[Event, ...]] = {
            index: (_gather(case, copies[index], data.num_bytes), *data.then.get(index, ()))
            for index in data.copies
        }
        yield Match(
            title=f"{format_bytes(batch_bytes)} of a data set that would fit on the GPU are copied "
            "in every step",
            fix="copy the data set to the GPU once, and index it there",
            evidence=f"the data set takes {format_bytes(data.num_bytes)}, less than a quarter of "
            f"the {format_bytes(case.device.memory_bytes)} of the {case.device.name}",
            location=data.location,
            events=tuple(sorted((*data.loading, *data.copies))),
            edit=Edit(replaced={**dict.fromkeys(data.loading, ()), **gathered}),
        )
        return


def _loaded(case: RuleInput, batches: Sequence[int]) -> _DataSet | None:
    """Return what loaders take from tensors in memory, if all of them do."""
    loaders = case.facts.loaders
    is_in_memory = all(loader.data_bytes and loader.is_indexed for loader in loaders)
    if not batches or not loaders or not is_in_memory:
        return None
    copies = dict(case.each(Copy))
    is_by_library = any(is_by_framework(copies[index]) for index in batches)
    fetching = (i for i, op in case.each(Op) if op.is_on_host and op.phase is Phase.DATA)
    return _DataSet(
        num_bytes=sum(loader.data_bytes for loader in loaders),
        copies=batches,
        loading=(*case.works("data"), *fetching),
        location=loaders[0].location if is_by_library else _largest(case, batches),
    )


def _computed(case: RuleInput, batches: Sequence[int]) -> _DataSet | None:
    """Return the arrays in memory that NumPy makes batches of."""
    made = {index: own for index in batches if (own := numpy_batch(case, index)) is not None}
    if not made:
        return None
    return _DataSet(
        num_bytes=sum({id(own.array): own.array.num_bytes for own in made.values()}.values()),
        copies=tuple(made),
        loading=[position for own in made.values() for position in own.prepared],
        location=_largest(case, tuple(made)),
        then={index: converted_on_device(case, index, own) for index, own in made.items()},
    )


def _chosen(case: RuleInput, batches: Sequence[int]) -> _DataSet | None:
    """Return the host tensors that batches are chosen from."""
    held = {index: own for index in batches if (own := _held(case, index)) is not None}
    if not held:
        return None
    return _DataSet(
        num_bytes=sum(size for _, size in held.values()),
        copies=tuple(held),
        loading=[position for position, _ in held.values()],
        location=_largest(case, tuple(held)),
    )


def _held(case: RuleInput, index: int) -> tuple[int, int] | None:
    """Return what chose a copied batch from a host tensor, and its size; None for another batch."""
    copy = copy_at(case.trace, index)
    position = case.once(memory_writers).writer(copy.storage, index)
    op = None if position is None else op_at(case.trace, position)
    if position is None or op is None or op.phase is not Phase.FORWARD:
        return None
    size = op.inputs[0].num_bytes if bare_name(op) in _CHOOSING else 0
    return (position, size) if size >= 2 * copy.num_bytes else None


def _gather(case: RuleInput, copy: Copy, total_bytes: int) -> Op:
    """Return the operator that chooses on the device what was copied."""
    dtype = copy.dtype or "float32"
    width = element_bytes(dtype)
    chosen = TensorSpec(shape=(copy.num_bytes // width,), dtype=dtype, device="cuda:0")
    whole = replace(chosen, shape=(total_bytes // width,))
    index = TensorSpec(shape=(case.trace.batch_size or 1,), dtype="int64", device="cuda:0")
    return Op(
        name="aten.index_select.default",
        inputs=(whole, index),
        outputs=(chosen,),
        attributes={"dim": 0},
        phase=Phase.FORWARD,
        location=copy.location,
    )


def _largest(case: RuleInput, copied: Sequence[int]) -> Location | None:
    """Return the line that copies the most bytes."""
    copies = dict(case.each(Copy))
    lines = by_line(case.trace, copied)
    return max(lines, key=lambda line: sum(copies[index].num_bytes for index in line[1]))[0]


# Fewer bytes than these are copied within the fixed cost of a copy, some 10 µs at 10 GB/s.
_MIN_SAVED_BYTES = 1 << 16
# Operators that a batch needs on the host whatever its type.
_COLLATING = frozenset({"stack", "cat", "unsqueeze", "view", "select", "slice", "detach", "alias"})
# Those, and operators that only change numbers one by one.
_PREPARING = _COLLATING | {
    "_to_copy", "div", "mul", "sub", "add", "rsub", "permute", "contiguous", "clone",
    "_unsafe_view", "reshape", "transpose", "expand", "copy", "squeeze",
}  # fmt: skip
# A cast that follows a copy stands this close.
_NEAR = 12

_Replaced = dict[int, tuple[Event, ...]]


@rule("COPY005", "H2D_WIDE")
def widened_batches(case: RuleInput) -> Matches:
    batches = [index for index, kind in uploads(case).items() if kind is Upload.BATCH]
    on_gpu = "cast and normalise it on the GPU"
    for narrow, location, replaced in _cast_before(case, batches):
        title = f"a batch of {narrow} is made wider on the host, and then copied to the GPU"
        yield _found(case, location, title, f"copy the batch as {narrow}, and {on_gpu}", replaced)
    for narrow, location, replaced in _cast_by_numpy(case, batches):
        title = f"a batch of {narrow} is made wider by NumPy, and then copied to the GPU"
        yield _found(case, location, title, f"copy the batch as {narrow}, and {on_gpu}", replaced)
    for narrow, location, replaced in _cast_after(case, batches):
        title = f"a batch is copied to the GPU as float64 and cast to {narrow} there"
        yield _found(
            case, location, title, f"cast the data to {narrow} on the host, once", replaced
        )


def _found(
    case: RuleInput, location: Location | None, title: str, fix: str, replaced: _Replaced
) -> Match:
    copied, narrow = (
        sum(event.num_bytes for event in events if isinstance(event, Copy))
        for events in (
            [case.trace.events[index] for index in replaced],
            [event for own in replaced.values() for event in own],
        )
    )
    return Match(
        title=title,
        fix=fix,
        evidence=f"{format_bytes(copied)} copied in the recorded step, "
        f"{format_bytes(narrow)} without the cast",
        location=location,
        events=tuple(sorted(replaced)),
        edit=Edit(replaced=replaced),
    )


_Wide = tuple[str, Location | None, _Replaced]


def _cast_before(case: RuleInput, batches: list[int]) -> Iterator[_Wide]:
    """Yield what the host casts before it is copied, by the line that casts."""
    found: dict[int, list[tuple[str, _Replaced]]] = {}
    for index in batches:
        copy, (chain, narrow, wide_bytes) = copy_at(case.trace, index), _chain_of(case, index)
        if (
            narrow is None
            or copy.num_bytes * (1 - narrow.element_bytes / wide_bytes) < _MIN_SAVED_BYTES
        ):
            continue
        numel = copy.num_bytes // wide_bytes
        # What the host did for each sample is done for the whole batch.
        kinds = {op.name: op for position in reversed(chain) if (op := op_at(case.trace, position))}
        moved = [whole(op, numel) for op in reversed(kinds.values())]
        copied = replace(copy, num_bytes=numel * narrow.element_bytes, dtype=narrow.dtype)
        replaced: _Replaced = {**dict.fromkeys(chain, ()), index: (copied, *moved)}
        found.setdefault(chain[0], []).append((narrow.dtype, replaced))
    for location, firsts in by_line(case.trace, found):
        casts = [cast for first in firsts for cast in found[first]]
        yield casts[0][0], location, {k: v for _, own in casts for k, v in own.items()}


def _chain_of(case: RuleInput, index: int) -> tuple[list[int], TensorSpec | None, int]:
    """Follow a copied batch back to the cast that made it wider.

    Returns:
        Positions of the operators of the host that the device can do instead; the narrow tensor,
        None where nothing made it wider; and bytes of a number as it is copied.
    """
    chain: set[int] = set()
    narrow, wide_bytes = None, 0
    pending = [(copy_at(case.trace, index).storage, index)]
    while pending:
        position = case.once(memory_writers).writer(*pending.pop())
        op = None if position is None or position in chain else op_at(case.trace, position)
        if position is None or op is None or not op.is_on_host or bare_name(op) not in _PREPARING:
            continue
        wide_bytes = wide_bytes or op.outputs[0].element_bytes
        chain.add(position)
        given, made = op.inputs[0] if op.inputs else op.outputs[0], op.outputs[0]
        if bare_name(op) == "_to_copy" and given.element_bytes < made.element_bytes:
            narrow = narrow or given
        else:
            pending.extend((tensor.storage, position) for tensor in op.inputs)
    moved = [one for one in sorted(chain) if bare_name(op_at(case.trace, one)) not in _COLLATING]
    return moved, narrow, wide_bytes


def _cast_by_numpy(case: RuleInput, batches: list[int]) -> Iterator[_Wide]:
    """Yield what NumPy makes of narrower arrays before it is copied, by the line that casts."""
    for index in batches:
        copy, batch = copy_at(case.trace, index), numpy_batch(case, index)
        if batch is None or not copy.dtype:
            continue
        num_bytes = copy.num_bytes // element_bytes(copy.dtype) * batch.array.element_bytes
        if copy.num_bytes - num_bytes >= _MIN_SAVED_BYTES:
            copied = replace(copy, num_bytes=num_bytes, dtype=batch.array.dtype)
            then = (copied, *converted_on_device(case, index, batch))
            replaced = gathered(case, index, batch) | {index: then}
            yield batch.array.dtype, batch.cast or copy.location, replaced


def _cast_after(case: RuleInput, batches: list[int]) -> Iterator[_Wide]:
    """Yield copies of float64 that the device makes narrower at once, by the line that copies."""
    found: dict[int, tuple[str, _Replaced]] = {}
    for index in batches:
        copy = copy_at(case.trace, index)
        near = range(index + 1, min(index + _NEAR, len(case.trace.events)))
        for position, op in ((one, case.trace.events[one]) for one in near):
            if not isinstance(op, Op) or op.is_on_host or bare_name(op) != "_to_copy":
                continue
            given, narrow = op.inputs[0], op.outputs[0]
            if given.dtype == "float64" and given.num_bytes == copy.num_bytes:
                if copy.num_bytes - narrow.num_bytes >= _MIN_SAVED_BYTES:
                    copied = replace(copy, num_bytes=narrow.num_bytes, dtype=narrow.dtype)
                    found[index] = narrow.dtype, {index: (copied,), position: ()}
                break
    for location, copies in by_line(case.trace, found):
        own = [found[index] for index in copies]
        yield own[0][0], location, {k: v for _, replaced in own for k, v in replaced.items()}

"""COPY: copies from host to device that can be faster or avoided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from breakeven.advise.events import bare_name, copy_at, on_device, op_at
from breakeven.advise.numpy_batch import converted_on_device, element_bytes, gathered, numpy_batch
from breakeven.advise.rule import (
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
from breakeven.advise.transfers import (
    TensorSource,
    Upload,
    is_by_framework,
    made_on_host,
    memory_writers,
    round_trips,
    uploads,
)
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Location, Op, Phase, StepTrace, TensorSpec
from breakeven.units import format_bytes


def uploaded(case: RuleInput, kind: Upload) -> list[int]:
    """Return the copies of a kind, except those that bring back read values."""
    back = {copy for trip in round_trips(case) for copy in trip.copies}
    return [index for index, own in uploads(case).items() if own is kind and index not in back]


def makers_of(trace: StepTrace, copies: tuple[int, ...]) -> tuple[int, ...]:
    """Return the host operators that created the copied tensors from nothing else."""
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
    """Return the number and size of copies, in words."""
    copies = [copy_at(case.trace, index) for index in events]
    total = sum(copy.num_bytes for copy in copies)
    memory = "pinned" if all(copy.is_pinned for copy in copies) else "pageable"
    number = num_copies(len(copies))
    return f"{number} of {format_bytes(total)} from {memory} memory in the recorded step"


# A simulator's observation is smaller; no loader could pin it ahead of time.
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
            edit=changed(
                {
                    index: replace(copies[index], is_pinned=True, non_blocking=True)
                    for index in events
                }
            ),
        )


_MADE = {
    Upload.CREATED: (
        "a tensor is made on the host and copied to the GPU",
        "make it on the GPU (device=...), or keep it in a buffer",
    ),
    Upload.INDEX: (
        "an index on the host selects from a GPU tensor, and is copied for that",
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
            title=f"Python scalars are copied to the GPU {times_per_step(len(copies))}",
            fix="use the Python number itself, a buffer, or torch.full((), x, device=...)",
            evidence=seen_copies(case, copies),
            location=location,
            events=events,
            edit=without(events),
        )


# Leave the rest of the memory to the model, its activations and the allocator.
_MEMORY_FRACTION = 0.25

# Operators that take some samples of a tensor.
_CHOOSING = frozenset({
    "slice", "index", "index_select", "select", "narrow", "split", "split_with_sizes", "chunk",
    "unbind", "gather",
})  # fmt: skip


@rule("COPY004", "DATA_NOT_RESIDENT")
def resident_data(case: RuleInput) -> Matches:
    copies = dict(case.each(Copy))
    for num_bytes, loading, then, loader in _data_in_memory(case):
        if not then or num_bytes > _MEMORY_FRACTION * case.device.memory_bytes:
            continue
        batch_bytes = sum(copies[index].num_bytes for index in then)
        gathered: dict[int, tuple[Event, ...]] = {
            index: (_gather(case, copies[index], num_bytes), *ops) for index, ops in then.items()
        }
        # The line that copies the most bytes; if a framework copies, the loader's line.
        lines = by_line(case.trace, then)
        location, _ = max(lines, key=lambda line: sum(copies[one].num_bytes for one in line[1]))
        if loader is not None and any(is_by_framework(copies[index]) for index in then):
            location = loader
        yield Match(
            title=f"{format_bytes(batch_bytes)} of a data set that would fit on the GPU are copied "
            "in every step",
            fix="copy the data set to the GPU once, and index it there",
            evidence=f"the data set takes {format_bytes(num_bytes)}, less than a quarter of "
            f"the {format_bytes(case.device.memory_bytes)} of the {case.device.name}",
            location=location,
            events=tuple(sorted((*loading, *then))),
            edit=Edit(replaced={**dict.fromkeys(loading, ()), **gathered}),
        )
        return


def _data_in_memory(
    case: RuleInput,
) -> Iterator[tuple[int, list[int], Mapping[int, tuple[Op, ...]], Location | None]]:
    """Yield candidate sources of batches: bytes, positions of the loading, copies and loader line.

    The third item maps the position of each copy to the device operators for its batch. The last
    item is the line of the loader that holds the data.
    """
    batches = [index for index, kind in uploads(case).items() if kind is Upload.BATCH]
    loaders = case.facts.loaders
    if loaders and all(loader.data_bytes and loader.is_indexed for loader in loaders):
        fetching = (i for i, op in case.each(Op) if op.is_on_host and op.phase is Phase.DATA)
        num_bytes = sum(loader.data_bytes for loader in loaders)
        loading = [*case.works("data"), *fetching]
        yield num_bytes, loading, dict.fromkeys(batches, ()), loaders[0].location
    # Arrays from which NumPy makes batches.
    made = {index: own for index in batches if (own := numpy_batch(case, index)) is not None}
    num_bytes = sum({id(own.array): own.array.num_bytes for own in made.values()}.values())
    prepared = [position for own in made.values() for position in own.prepared]
    then = {i: converted_on_device(case, i, own) for i, own in made.items()}
    yield num_bytes, prepared, then, None
    # Host tensors from which batches are taken.
    held: dict[int, tuple[int, int]] = {}
    for index in batches:
        copy = copy_at(case.trace, index)
        position = memory_writers(case).writer(copy.storage, index)
        op = op_at(case.trace, position) if position is not None else None
        if position is not None and op is not None and op.phase is Phase.FORWARD:
            size = op.inputs[0].num_bytes if bare_name(op) in _CHOOSING else 0
            if size >= 2 * copy.num_bytes:
                held[index] = size, position
    sizes, positions = [size for size, _ in held.values()], [own for _, own in held.values()]
    yield sum(sizes), positions, dict.fromkeys(held, ()), None


def _gather(case: RuleInput, copy: Copy, total_bytes: int) -> Op:
    """Return the operator that selects the copied samples on the device."""
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


# Saving fewer bytes does not matter: a copy has a fixed cost of about 10 µs at 10 GB/s.
_MIN_SAVED_BYTES = 1 << 16
# Operators that a batch needs on the host, independent of its type.
_COLLATING = frozenset({"stack", "cat", "unsqueeze", "view", "select", "slice", "detach", "alias"})
# The same, plus elementwise and layout operators.
_PREPARING = _COLLATING | {
    "_to_copy", "div", "mul", "sub", "add", "rsub", "permute", "contiguous", "clone",
    "_unsafe_view", "reshape", "transpose", "expand", "copy", "squeeze",
}  # fmt: skip

_Replaced = dict[int, tuple[Event, ...]]


@rule("COPY005", "H2D_WIDE")
def widened_batches(case: RuleInput) -> Matches:
    batches = [index for index, kind in uploads(case).items() if kind is Upload.BATCH]
    for find, by in ((_cast_before, "on the host"), (_cast_by_numpy, "by NumPy")):
        for narrow, location, replaced in find(case, batches):
            copied = [case.trace.events[index] for index in replaced]
            left = [event for events in replaced.values() for event in events]
            before_bytes, after_bytes = (
                sum(event.num_bytes for event in events if isinstance(event, Copy))
                for events in (copied, left)
            )
            yield Match(
                title=f"a batch of {narrow} is made wider {by}, and then copied to the GPU",
                fix=f"copy the batch as {narrow}, and cast and normalise it on the GPU",
                evidence=f"{format_bytes(before_bytes)} copied in the recorded step, "
                f"{format_bytes(after_bytes)} without the cast",
                location=location,
                events=tuple(sorted(replaced)),
                edit=Edit(replaced=replaced),
            )


_Wide = tuple[str, Location | None, _Replaced]


def _cast_before(case: RuleInput, batches: list[int]) -> Iterator[_Wide]:
    """Yield batches that the host casts before the copy, by the line of the cast."""
    found: dict[int, tuple[str, _Replaced]] = {}
    for index in batches:
        copy, (chain, narrow, wide_bytes) = copy_at(case.trace, index), _chain_of(case, index)
        numel = copy.num_bytes // max(1, wide_bytes)
        if narrow is None or copy.num_bytes - numel * narrow.element_bytes < _MIN_SAVED_BYTES:
            continue

        def whole(op: Op, numel: int = numel) -> Op:
            # Do the host's per-sample work for the whole batch.
            def sized(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
                largest = max((tensor.numel for tensor in tensors), default=0)
                one = partial(replace, shape=(numel,), layout="contiguous")
                return tuple(one(t) if t.numel == largest else t for t in tensors)

            moved = on_device(op)
            return replace(moved, inputs=sized(moved.inputs), outputs=sized(moved.outputs))

        kinds = {op.name: op for position in reversed(chain) if (op := op_at(case.trace, position))}
        copied = replace(copy, num_bytes=numel * narrow.element_bytes, dtype=narrow.dtype)
        replaced: _Replaced = {
            **dict.fromkeys(chain, ()), index: (copied, *map(whole, reversed(kinds.values()))),
        }  # fmt: skip
        _, others = found.get(chain[0], ("", {}))
        found[chain[0]] = narrow.dtype, others | replaced
    for location, positions in by_line(case.trace, found):
        casts = [found[position] for position in positions]
        yield casts[0][0], location, {k: v for _, own in casts for k, v in own.items()}


def _chain_of(case: RuleInput, index: int) -> tuple[list[int], TensorSpec | None, int]:
    """Follow a copied batch back to the cast that made it wider.

    Returns:
        Positions of the host operators that the device can run instead; the narrow tensor, None if
        nothing widened it; and bytes per number in the copy.
    """
    chain: set[int] = set()
    narrow, wide_bytes = None, 0
    pending = [(copy_at(case.trace, index).storage, index)]
    while pending:
        position = memory_writers(case).writer(*pending.pop())
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
    """Yield batches that NumPy widens before the copy, by the line of the cast."""
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

"""COPY005: data is made wider on the host, and then copied.

What it does:
    Finds copies to the device of what an operator on the host made wider just before: bytes
    cast to float32, ``.to(device, torch.float32)`` of bytes, integers made float64; also what
    NumPy makes of an array of bytes in memory: ``images[i].astype("float32") / 255``.
    Also batches of float64 that the device casts to a narrower type at once.

Why it costs time:
    A float32 takes four times as long to copy as the byte that it came from, and the host casts
    slower than the device.

Evidence:
    In public reports the copy became 4 times faster, and preparing a batch went from 14.9 to
    1.0 ms.

Fix:
    Copy the narrow type and cast on the device.

    ```python
    x = images.float().div(255).to(device)  # or images.to(device, torch.float32)
    ```

    ```python
    x = images.to(device).float().div(255)
    ```

Known limits:
    Less than 64 KiB per copy is not reported. The gain shown moves casts and arithmetic that are
    found between the narrow type and the copy. Of NumPy's work it leaves the part that collects
    the samples, by the bytes that each operation moves; arrays are known by name and followed
    within one function, and what calls other than conversions change is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from breakeven.doctor.copies import converted_on_device, element_bytes, gathered, numpy_batch, whole
from breakeven.doctor.crossings import Upload, memory_writers, uploads
from breakeven.doctor.events import bare_name, copy_at, op_at
from breakeven.doctor.rule import Case, Found, Occurrence, by_line
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Location, Op, TensorSpec
from breakeven.units import format_bytes

CAUSE = "H2D_WIDE"

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


def detect(case: Case) -> Found:
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
    case: Case, location: Location | None, title: str, fix: str, replaced: _Replaced
) -> Occurrence:
    copied, narrow = (
        sum(event.num_bytes for event in events if isinstance(event, Copy))
        for events in (
            [case.trace.events[index] for index in replaced],
            [event for own in replaced.values() for event in own],
        )
    )
    return Occurrence(
        title=title,
        fix=fix,
        evidence=f"{format_bytes(copied)} copied in the recorded step, "
        f"{format_bytes(narrow)} without the cast",
        location=location,
        events=tuple(sorted(replaced)),
        edit=Edit(replaced=replaced),
    )


_Wide = tuple[str, Location | None, _Replaced]


def _cast_before(case: Case, batches: list[int]) -> Iterator[_Wide]:
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


def _chain_of(case: Case, index: int) -> tuple[list[int], TensorSpec | None, int]:
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


def _cast_by_numpy(case: Case, batches: list[int]) -> Iterator[_Wide]:
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


def _cast_after(case: Case, batches: list[int]) -> Iterator[_Wide]:
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

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
    the samples, by the bytes that each operation moves; arrays are known by name, and what
    calls other than conversions change is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.doctor.copies import converted_on_device, element_bytes, gathered, numpy_batch, whole
from breakeven.doctor.crossings import Upload, memory_writers, uploads
from breakeven.doctor.events import MemoryWriters, bare_name, copy_at, op_at
from breakeven.doctor.rule import Case, Found, Occurrence, by_line
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Location, Op, TensorSpec
from breakeven.units import format_bytes

CAUSE = "H2D_WIDE"

# Fewer bytes than these are copied within the fixed cost of a copy, some 10 µs at 10 GB/s.
_MIN_SAVED_BYTES = 1 << 16

# Operators that only change numbers one by one, or put samples side by side.
_PREPARING = frozenset({
    "_to_copy", "div", "mul", "sub", "add", "rsub", "stack", "cat", "permute", "contiguous",
    "clone", "unsqueeze", "view", "_unsafe_view", "reshape", "transpose", "expand", "detach",
    "alias", "copy", "select", "slice", "squeeze",
})  # fmt: skip

# Those of them that a batch needs on the host whatever its type.
_COLLATING = frozenset({"stack", "cat", "unsqueeze", "view", "select", "slice", "detach", "alias"})

# A cast that follows a copy stands this close.
_NEAR = 12

_Replaced = dict[int, tuple[Event, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wide:
    """Lines that make a batch wide, and the step without that."""

    location: Location | None
    title: str
    fix: str
    replaced: _Replaced


def detect(case: Case) -> Found:
    batches = [index for index, kind in uploads(case).items() if kind is Upload.BATCH]
    for find in (_cast_before, _cast_by_numpy, _cast_after):
        for wide in find(case, batches):
            copied = _num_bytes(case.trace.events[index] for index in wide.replaced)
            narrow = _num_bytes(event for own in wide.replaced.values() for event in own)
            yield Occurrence(
                title=wide.title,
                fix=wide.fix,
                evidence=f"{format_bytes(copied)} copied in the recorded step, "
                f"{format_bytes(narrow)} without the cast",
                location=wide.location,
                events=tuple(sorted(wide.replaced)),
                edit=Edit(replaced=wide.replaced),
            )


def _num_bytes(events: Iterable[Event]) -> int:
    return sum(event.num_bytes for event in events if isinstance(event, Copy))


def _cast_before(case: Case, batches: list[int]) -> Iterator[_Wide]:
    """Yield what the host casts before it is copied, by the line that casts."""
    origins = case.once(memory_writers)
    found: dict[int, list[_Cast]] = {}
    for index in batches:
        cast = _find_cast(case, origins, index)
        if cast is not None and cast.saved_bytes >= _MIN_SAVED_BYTES:
            found.setdefault(cast.chain[0], []).append(cast)
    for location, firsts in by_line(case.trace, found):
        casts = [cast for first in firsts for cast in found[first]]
        replaced: _Replaced = {}
        for cast in casts:
            replaced.update(dict.fromkeys(cast.chain, ()))
            replaced[cast.copy] = _cast_on_device(case, cast)
        narrow = casts[0].narrow
        yield _Wide(
            location=location,
            title=f"a batch of {narrow} is made wider on the host, and then copied to the GPU",
            fix=f"copy the batch as {narrow}, and cast and normalise it on the GPU",
            replaced=replaced,
        )


def _cast_by_numpy(case: Case, batches: list[int]) -> Iterator[_Wide]:
    """Yield what NumPy makes of narrower arrays before it is copied, by the line that casts."""
    for index in batches:
        copy, batch = copy_at(case.trace, index), numpy_batch(case, index)
        if batch is None or not copy.dtype:
            continue
        numel = copy.num_bytes // element_bytes(copy.dtype)
        narrow_bytes = numel * batch.array.element_bytes
        if copy.num_bytes - narrow_bytes < _MIN_SAVED_BYTES:
            continue
        narrow = batch.array.dtype
        on_device = converted_on_device(case, index, batch)
        yield _Wide(
            location=batch.cast or copy.location,
            title=f"a batch of {narrow} is made wider by NumPy, and then copied to the GPU",
            fix=f"copy the batch as {narrow}, and cast and normalise it on the GPU",
            replaced=gathered(case, index, batch)
            | {index: (_resized(copy, narrow_bytes, narrow), *on_device)},
        )


def _cast_after(case: Case, batches: list[int]) -> Iterator[_Wide]:
    """Yield copies of float64 that the device makes narrower at once, by the line that copies."""
    found: dict[int, tuple[int, TensorSpec]] = {}
    for index in batches:
        cast = _narrowing(case, index)
        if cast is not None:
            narrow = op_at(case.trace, cast).outputs[0]
            if copy_at(case.trace, index).num_bytes - narrow.num_bytes >= _MIN_SAVED_BYTES:
                found[index] = cast, narrow
    for location, copies in by_line(case.trace, found):
        replaced: _Replaced = {}
        for index in copies:
            cast, narrow = found[index]
            copy = _resized(copy_at(case.trace, index), narrow.num_bytes, narrow.dtype)
            replaced |= {index: (copy,), cast: ()}
        dtype = found[copies[0]][1].dtype
        yield _Wide(
            location=location,
            title=f"a batch is copied to the GPU as float64 and cast to {dtype} there",
            fix=f"cast the data to {dtype} on the host, once",
            replaced=replaced,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast:
    """A copy of what the host made wider.

    Args:
        copy: Its position.
        chain: Operators of the host from the cast on that the device can do instead.
        narrow: dtype before.
        narrow_bytes: Of one element.
        wide_bytes: Of one element as it is copied.
        saved_bytes: What a copy of the narrow type saves.
    """

    copy: int
    chain: tuple[int, ...]
    narrow: str
    narrow_bytes: int
    wide_bytes: int
    saved_bytes: float


def _find_cast(case: Case, origins: MemoryWriters, index: int) -> _Cast | None:
    """Follow a copied batch back to the casts that made it wider."""
    copy = copy_at(case.trace, index)
    chain: set[int] = set()
    casts: list[Op] = []
    wide_bytes = 0
    pending = [(copy.storage, index)]
    while pending:
        position = origins.writer(*pending.pop())
        if position is None or position in chain:
            continue
        op = op_at(case.trace, position)
        if not op.is_on_host or bare_name(op) not in _PREPARING:
            continue
        wide_bytes = wide_bytes or op.outputs[0].element_bytes
        chain.add(position)
        if _is_widening(op):
            casts.append(op)
        else:
            pending.extend((tensor.storage, position) for tensor in op.inputs)
    if not casts:
        return None
    narrow = casts[0].inputs[0]
    return _Cast(
        copy=index,
        chain=tuple(sorted(i for i in chain if bare_name(op_at(case.trace, i)) not in _COLLATING)),
        narrow=narrow.dtype,
        narrow_bytes=narrow.element_bytes,
        wide_bytes=wide_bytes,
        saved_bytes=copy.num_bytes * (1 - narrow.element_bytes / wide_bytes),
    )


def _cast_on_device(case: Case, cast: _Cast) -> tuple[Event, ...]:
    """Return the copy of the narrow type, and what the host did before for the whole batch."""
    copy = copy_at(case.trace, cast.copy)
    num_elements = copy.num_bytes // cast.wide_bytes
    kinds = {op.name: op for index in reversed(cast.chain) if (op := op_at(case.trace, index))}
    moved = [whole(op, num_elements) for op in reversed(kinds.values())]
    return (_resized(copy, num_elements * cast.narrow_bytes, cast.narrow), *moved)


def _narrowing(case: Case, index: int) -> int | None:
    """Return the operator of the device that casts a copied batch of float64 to something less."""
    copy = copy_at(case.trace, index)
    for position in range(index + 1, min(index + _NEAR, len(case.trace.events))):
        op = case.trace.events[position]
        if not isinstance(op, Op) or op.is_on_host or bare_name(op) != "_to_copy":
            continue
        source = op.inputs[0]
        if source.dtype == "float64" and source.num_bytes == copy.num_bytes:
            return position if op.outputs[0].element_bytes < source.element_bytes else None
    return None


def _is_widening(op: Op) -> bool:
    return (
        bare_name(op) == "_to_copy"
        and op.inputs[0].element_bytes < op.outputs[0].element_bytes
        and op.inputs[0].numel == op.outputs[0].numel
    )


def _resized(copy: Copy, num_bytes: int, dtype: str) -> Copy:
    return replace(copy, num_bytes=num_bytes, dtype=dtype)

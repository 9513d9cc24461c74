"""Events of a step, as the rules ask for them: by position, by line and by operator name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from breakeven.cost import Family
from breakeven.trace import Copy, Event, Location, Op, StepTrace, TensorSpec

CONVOLUTIONS: Final = frozenset(("convolution", "_convolution", "cudnn_convolution"))
CONVOLUTION_BACKWARD: Final = "convolution_backward"
BATCH_NORMS: Final = frozenset(
    ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
     "_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")
)  # fmt: skip

# What tensor cores run.
PRODUCTS: Final = frozenset(
    (Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT)
)
ZEROING: Final = frozenset({"zero_", "_foreach_zero_"})


def op_at(trace: StepTrace, index: int) -> Op:
    """Return the operator at a position that is known to hold one."""
    event = trace.events[index]
    assert isinstance(event, Op)
    return event


def copy_at(trace: StepTrace, index: int) -> Copy:
    """Return the copy at a position that is known to hold one."""
    event = trace.events[index]
    assert isinstance(event, Copy)
    return event


def line_of(place: Event | Location | None) -> tuple[str, int] | None:
    """Return file and line of an event or a location, for comparing."""
    location = place if isinstance(place, Location | None) else place.location
    return (location.file, location.line) if location else None


def lines_where(trace: StepTrace, test: Callable[[Event], bool]) -> frozenset[tuple[str, int]]:
    """Return the lines, where known, of the events that pass a test."""
    lines = (line_of(event) for event in trace.events if test(event))
    return frozenset(line for line in lines if line is not None)


def one_per_line(places: Iterable[Location | None]) -> list[Location | None]:
    """Return each line once, in the order of their first."""
    found: dict[tuple[str, int] | None, Location | None] = {}
    for place in places:
        found.setdefault(line_of(place), place)
    return list(found.values())


def base_name(op: Op) -> str:
    """Return the name without namespace and overload: ``add_`` of ``aten.add_.Tensor``."""
    return op.name.split(".")[1] if "." in op.name else op.name


def bare_name(op: Op) -> str:
    """Return it without the underscore of the in-place form, too: ``add``."""
    name = base_name(op)
    return name.removesuffix("_") or name


def is_in_place(op: Op) -> bool:
    """Return whether the operator writes into its first argument: ``aten.add_.Tensor``."""
    return base_name(op).endswith("_")


def is_convolution(op: Op) -> bool:
    """Return whether ``op`` is a convolution or its gradient."""
    name = bare_name(op)
    return name in CONVOLUTIONS or name == CONVOLUTION_BACKWARD


def with_tensors(op: Op, change: Callable[[TensorSpec], TensorSpec]) -> Op:
    """Return the operator with each of its tensors changed."""
    return msgspec.structs.replace(
        op, inputs=tuple(map(change, op.inputs)), outputs=tuple(map(change, op.outputs))
    )

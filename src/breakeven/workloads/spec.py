"""The spec of a workload in a table, and the cases that share one trace of it.

Such cases differ in switches, in the copy of the batch, or in the timed phase.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from itertools import takewhile
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from breakeven.errors import WorkloadError
from breakeven.trace import Copy, NumberFormat, Phase, ScaledTrace, StepCase, StepTrace, TimedPhase

OptionValue = bool | int | float | str

_FORMS = (
    "write torchvision:NAME, timm:NAME, transformers:CLASS?KEY=VALUE&seq=N, "
    "llm:gpt2?d_model=N&..., breakeven:NAME?KEY=VALUE, or path.py:function"
)
_TRUTHS = {"true": True, "false": False}


class WorkloadKind(StrEnum):
    """The origin of a workload."""

    TORCHVISION = "torchvision"
    TIMM = "timm"
    TRANSFORMERS = "transformers"
    LLM = "llm"
    BREAKEVEN = "breakeven"
    FILE = "file"


_PREFIXES = frozenset(kind for kind in WorkloadKind if kind is not WorkloadKind.FILE)
# Families of language models: ``mpt:125m?d_model=768`` is ``llm:mpt?d_model=768``. The text after
# the colon only names the size; the options set it.
_LLM_FAMILIES = frozenset({"gpt2", "mpt"})


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A workload by name.

    Args:
        text: The spec as written.
        kind: Origin of the workload.
        name: Name of the model, class or function.
        options: Keys and values, in the order as written.
        path: The user's file; empty for other kinds.
    """

    text: str
    kind: WorkloadKind
    name: str
    options: tuple[tuple[str, OptionValue], ...] = ()
    path: str = ""


def parse_workload(spec: str) -> WorkloadSpec:
    """Parse a spec; building the workload checks later whether its model exists.

    Args:
        spec: ``torchvision:NAME``, ``timm:NAME``, ``transformers:CLASS``, ``llm:FAMILY``,
            ``breakeven:NAME`` or ``path.py:function``, optionally with ``?key=value&key=value``
            after it. Values that look like integers, numbers, ``true`` or ``false`` become such.
            ``FAMILY:SIZE`` is ``llm:FAMILY``, with any name of the size.

    Raises:
        WorkloadError: If the spec has another form, an option without a value, or a repeated one.
    """
    source, _, query = spec.strip().partition("?")
    place, _, name = source.rpartition(":")
    if name and place in _LLM_FAMILIES:
        place, name = WorkloadKind.LLM, place
    is_file = place.endswith(".py") and name.isidentifier()
    if not name or not (is_file or place in _PREFIXES):
        if name and place and not place.endswith(".py"):
            # Leave the spec out, so that all such rows of a table share one message.
            raise WorkloadError(f"no workload begins with {f'{place}:'!r}", hint=_FORMS)
        raise WorkloadError(f"{spec!r} names no workload", hint=_FORMS)
    kind, path = (WorkloadKind.FILE, place) if is_file else (WorkloadKind(place), "")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        pairs = [("", "")]
    options: dict[str, OptionValue] = {}
    for key, value in pairs:
        if not key or not value:
            raise WorkloadError(
                f"an option of {spec!r} has no value", hint="write options as ?key=value&key=value"
            )
        if key in options:
            raise WorkloadError(f"{spec!r} gives {key!r} twice", hint="give each option once")
        options[key] = _TRUTHS.get(value.lower(), value)
        for convert in (float, int):
            with suppress(ValueError):
                options[key] = convert(value)
    return WorkloadSpec(text=spec, kind=kind, name=name, options=tuple(options.items()), path=path)


_MOST_NAMES = 8


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known names closest to ``name``, or else the first few."""
    names = sorted(known)
    folded = {other.lower(): other for other in reversed(names)}
    near = [folded[found] for found in difflib.get_close_matches(name.lower(), folded, n=4)]
    is_cut = not near and len(names) > _MOST_NAMES
    return f"there are {', '.join(near or names[:_MOST_NAMES])}{', ...' * is_cut}"


def base_case(case: StepCase) -> StepCase:
    """Return the base case, from whose trace `as_asked` derives that of ``case``."""
    number_format, phase = case.number_format, case.phase
    if number_format is NumberFormat.TF32:
        number_format = NumberFormat.FP32
    if phase is TimedPhase.BACKWARD:
        phase = TimedPhase.FORWARD_BACKWARD
    has_backward = phase in (TimedPhase.TRAIN, TimedPhase.FORWARD_BACKWARD)
    return StepCase(
        workload=case.workload,
        phase=phase,
        number_format=number_format,
        optimizer=case.optimizer if phase is TimedPhase.TRAIN else "none",
        h2d="pageable",
        zeroes_gradients=case.zeroes_gradients and has_backward,
        channels_last=case.channels_last,
        attention=case.attention,
    )


def as_asked(base: tuple[StepTrace, StepTrace], case: StepCase) -> ScaledTrace:
    """Derive the trace of ``case`` from that of its base case."""
    asked: list[StepTrace] = []
    is_tf32 = case.number_format is NumberFormat.TF32
    for trace in base:
        # The trace of a base case begins with the copies of its batch.
        copies = tuple(takewhile(lambda event: isinstance(event, Copy), trace.events))
        rest = trace.events[len(copies) :]
        if case.phase is TimedPhase.BACKWARD:
            wait = rest[-1]
            rest = (*(event for event in rest if event.phase is Phase.BACKWARD), wait)
        if case.phase is TimedPhase.BACKWARD or case.h2d == "none":
            copies = ()
        elif case.h2d == "pinned":  # so that the host does not wait
            copies = tuple(replace(copy, is_pinned=True, non_blocking=True) for copy in copies)
        settings = replace(
            trace.settings, allow_tf32_matmul=is_tf32, allow_tf32_convolution=is_tf32
        )
        asked.append(replace(trace, events=(*copies, *rest), settings=settings))
    return ScaledTrace(*asked)

"""Notes calls of torch and Python that affect the speed of a run, without changing them."""

from __future__ import annotations

import functools
import gc
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from breakeven.capture.location import caller_of_constructor, locate
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.measure import own_time_ns
from breakeven.trace import Call, Location

# Loggers of whole tensors; patched after the script imports them.
_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
_LOGGED = ("add_histogram", "add_image", "add_images", "add_figure")

_MAX_ARGUMENT = 200

_Args = tuple[Any, ...]
_Named = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Watched:
    """A call to note.

    Args:
        name: Name of its note.
        owners: Modules or classes that provide it.
        tell: Returns the text of its arguments to keep, or None to note nothing; called with the
            caller's frame.
        attribute: Attribute of the owners; by default the last part of the name.
        kind: Kind of its host work in the step, which is timed; empty for none.
    """

    name: str
    owners: tuple[Any, ...]
    tell: Callable[[FrameType, _Args, _Named], str | None] = lambda *_: ""
    attribute: str = ""
    kind: str = ""


@dataclass(slots=True)
class _Line:
    """The calls with one name at one line of the user."""

    name: str
    location: Location | None
    argument: str
    count: int = 0
    duration_ns: int = 0
    # Numbers of optimizer calls before these calls.
    segments: set[int] = field(default_factory=set)


class CallWatch(Patches):
    """Notes calls by name and the user's line.

    Args:
        recorder: Records the time of saving, logging and garbage collection.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._lines: dict[tuple[str, Location | None], _Line] = {}
        self._note = recorder.unseen(self._note)
        self._num_updates = 0
        self._writers: set[str] = set()

    def _apply(self) -> None:
        for watched in _WATCHED:
            self._watch(watched)
        self._watch_writers()

    def end_update(self) -> None:
        """Count an optimizer call, and patch loggers imported since the last one."""
        self._num_updates += 1
        self._watch_writers()

    def calls(self, round_ends: Sequence[int]) -> tuple[Call, ...]:
        """Return the calls so far.

        Args:
            round_ends: Positions of the optimizer calls that ended a step.
        """
        # Copy: after the time limit, the training loop may still run.
        return tuple(
            Call(
                name=line.name,
                location=line.location,
                count=line.count,
                step_count=_num_steps(line.segments.copy(), round_ends),
                duration_ns=line.duration_ns,
                argument=line.argument,
            )
            for line in list(self._lines.values())
        )

    def _note(self, name: str, frame: FrameType | None, argument: str = "") -> _Line:
        location = locate(frame)
        line = self._lines.get((name, location))
        if line is None:
            line = self._lines[name, location] = _Line(name, location, argument)
        line.argument = argument or line.argument
        line.count += 1
        line.segments.add(self._num_updates)
        return line

    def _watch(self, watched: _Watched) -> None:
        name, attribute = watched.name, watched.attribute or watched.name.rpartition(".")[2]
        original = getattr(watched.owners[0], attribute)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            frame: FrameType | None = sys._getframe(1)
            argument = watched.tell(frame, args, kwargs)
            if argument is None:
                return original(*args, **kwargs)
            if attribute == "__init__":
                frame = caller_of_constructor(frame, args[0])
            line = self._note(name, frame, argument)
            if not watched.kind:
                return original(*args, **kwargs)
            started_ns = own_time_ns()
            with self._recorder.host_work(watched.kind):
                result = original(*args, **kwargs)
            line.duration_ns += own_time_ns() - started_ns
            return result

        for owner in watched.owners:
            self.replace(owner, attribute, call)

    def _watch_writers(self) -> None:
        for name in _WRITERS:
            writer = getattr(sys.modules.get(name), "SummaryWriter", None)
            if writer is None or name in self._writers:
                continue
            self._writers.add(name)
            for method in _LOGGED:
                if hasattr(writer, method):
                    self._watch(_Watched(f"SummaryWriter.{method}", (writer,), kind="log"))


def _num_steps(segments: set[int], round_ends: Sequence[int]) -> int:
    """Return the number of steps in which a line was called.

    The first step includes the script's work before it. A line counts there only if later steps
    call it too.
    """
    steps = {bisect_left(round_ends, segment) for segment in segments}
    recorded = {step for step in steps if step < len(round_ends)}
    return len(recorded) if recorded - {0} else 0


def _as_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return arguments as in Python code; functions and other values by name or type."""
    parts = [_plain(value) for value in args]
    parts += [f"{name}={_plain(value)}" for name, value in kwargs.items()]
    return ", ".join(parts)[:_MAX_ARGUMENT]


def _plain(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, (list, tuple)) and len(value) < 16:
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, MethodType):
        return f"{type(value.__self__).__name__}.{value.__name__}"
    if isinstance(value, FunctionType):
        return value.__qualname__
    return type(value).__name__


def _tell_all(_: FrameType, args: _Args, kwargs: _Named) -> str:
    return _as_text(args, kwargs)


def _tell_of_autocast(frame: FrameType, args: _Args, kwargs: _Named) -> str | None:
    given = dict(zip(("", "device_type", "dtype", "enabled"), args, strict=False)) | kwargs
    # A checkpointed region enters the context of the forward pass again.
    is_again = frame.f_globals.get("__name__") == "torch.utils.checkpoint"
    if is_again or "device_type" not in given or not given.get("enabled", True):
        return None
    device_type = given["device_type"]
    return _as_text((device_type, given.get("dtype") or torch.get_autocast_dtype(device_type)), {})


_WATCHED = (
    *(
        _Watched(f"torch.{name}", (torch,), _tell_all)
        for name in ("set_num_threads", "set_flush_denormal", "set_default_dtype", "compile")
    ),
    _Watched("Module.compile", (nn.Module,), _tell_all),
    _Watched("Module.double", (nn.Module,)),
    *(
        _Watched(
            name, (kind,), lambda _, args, kwargs: _as_text(args[1:], kwargs), attribute="__init__",
        )
        for name, kind in (
            ("torch.nn.DataParallel", nn.DataParallel),
            ("torch.autograd.set_detect_anomaly", torch.autograd.set_detect_anomaly),
            ("torch.autograd.detect_anomaly", torch.autograd.detect_anomaly),
        )
    ),
    _Watched("torch.save", (torch, torch.serialization), kind="save"),
    _Watched("gc.collect", (gc,), kind="gc"),
    _Watched("torch.autocast", (torch.autocast,), _tell_of_autocast, attribute="__init__"),
)  # fmt: skip

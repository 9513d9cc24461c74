"""Note the calls of torch and Python that matter to the speed of a run, and let them through."""

from __future__ import annotations

import functools
import gc
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint

from breakeven.capture.location import caller_of_constructor, is_user_file, locate
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.measure import own_time_ns
from breakeven.trace import Call, Location

# Functions by the modules that offer them, all under one name; the last part of it is theirs.
_FUNCTIONS = {
    "torch.set_num_threads": (torch,),
    "torch.set_num_interop_threads": (torch,),
    "torch.set_flush_denormal": (torch,),
    "torch.set_default_dtype": (torch,),
    "torch.set_float32_matmul_precision": (torch,),
    "torch.compile": (torch,),
    "Module.compile": (torch.nn.Module,),
}

# What these are given says nothing.
_WITH_TENSORS = {
    "torch.nn.utils.clip_grad_norm_": (torch.nn.utils, torch.nn.utils.clip_grad),
    "torch.utils.checkpoint.checkpoint": (torch.utils.checkpoint,),
    "Module.double": (torch.nn.Module,),
    "Module.half": (torch.nn.Module,),
    "Module.bfloat16": (torch.nn.Module,),
}

# Constructors.
_CLASSES = {
    "torch.nn.DataParallel": torch.nn.DataParallel,
    "torch.nn.parallel.DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
    "torch.autograd.set_detect_anomaly": torch.autograd.set_detect_anomaly,
    "torch.autograd.detect_anomaly": torch.autograd.detect_anomaly,
}

_CLOCKS = (
    "perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "monotonic_ns",
    "process_time",
)  # fmt: skip

# Loggers of whole tensors, patched when the script has imported them.
_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
_LOGGED = ("add_histogram", "add_image", "add_images", "add_figure")

_MAX_ARGUMENT = 200


@dataclass(slots=True)
class _Line:
    """The calls of one name at one line of the user."""

    name: str
    location: Location | None
    argument: str
    count: int = 0
    duration_ns: int = 0
    # Numbers of the optimizer calls that had been made before.
    segments: set[int] = field(default_factory=set)


class CallWatch(Patches):
    """Notes calls by name and line of the user.

    Args:
        recorder: Is told of the time that saving, logging and collecting garbage take.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._lines: dict[tuple[str, Location | None], _Line] = {}
        self._num_updates = 0
        self._writers: set[str] = set()

    def __enter__(self) -> CallWatch:
        super().__enter__()
        for name, owners in _FUNCTIONS.items():
            self._watch(name, owners, is_shown=True)
        for name, owners in _WITH_TENSORS.items():
            self._watch(name, owners)
        for name, kind in _CLASSES.items():
            self._watch_constructor(name, kind)
        self._watch("torch.save", (torch, torch.serialization), kind="save")
        self._watch("gc.collect", (gc,), kind="gc")
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            self._watch_zero_grad(owner)
        self._watch_autocast()
        self._watch_to()
        for name in _CLOCKS:
            self._watch_clock(name)
        self._watch_writers()
        return self

    def end_update(self) -> None:
        """Count an optimizer call; what is imported by now is patched too."""
        self._num_updates += 1
        self._watch_writers()

    def calls(self, round_ends: Sequence[int]) -> tuple[Call, ...]:
        """Return the calls so far.

        Args:
            round_ends: Positions of the optimizer calls that ended a step.
        """
        # The training loop may go on meanwhile, when the time is over: hence the copies.
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

    def _watch(
        self, name: str, owners: Sequence[Any], *, kind: str = "", is_shown: bool = False
    ) -> None:
        """Replace a function or method of ``owners``.

        Args:
            name: Dotted; the last part is the attribute's.
            owners: Modules or classes that offer it.
            kind: Of the host work that it becomes in the step; empty for none.
            is_shown: Whether its arguments are kept as text.
        """
        attribute = name.rpartition(".")[2]
        original = getattr(owners[0], attribute)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            argument = _as_text(args, kwargs) if is_shown else ""
            line = self._note(name, sys._getframe(1), argument)
            started_ns = own_time_ns()
            with self._recorder.host_work(kind) if kind else nullcontext():
                result = original(*args, **kwargs)
            line.duration_ns += own_time_ns() - started_ns
            return result

        for owner in owners:
            self.replace(owner, attribute, call)

    def _watch_constructor(self, name: str, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def initialize(instance: Any, *args: Any, **kwargs: Any) -> None:
            frame = caller_of_constructor(sys._getframe(1), instance)
            self._note(name, frame, _as_text(args, kwargs))
            original(instance, *args, **kwargs)

        self.replace(kind, "__init__", initialize)

    def _watch_zero_grad(self, owner: Any) -> None:
        original = owner.zero_grad

        @functools.wraps(original)
        def zero_grad(instance: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                name = f"{owner.__name__}.zero_grad(set_to_none=False)"
                self._note(name, sys._getframe(1))
            original(instance, set_to_none)

        self.replace(owner, "zero_grad", zero_grad)

    def _watch_autocast(self) -> None:
        original = torch.autocast.__init__

        @functools.wraps(original)
        def initialize(
            region: Any, device_type: str, dtype: Any = None, enabled: bool = True, *args: Any,
            **kwargs: Any,
        ) -> None:  # fmt: skip
            # A checkpointed region enters again what the forward pass was in.
            is_again = sys._getframe(1).f_globals.get("__name__") == "torch.utils.checkpoint"
            if enabled and not is_again:
                used = dtype or torch.get_autocast_dtype(device_type)
                frame = caller_of_constructor(sys._getframe(1), region)
                self._note("torch.autocast", frame, _as_text((device_type, used), {}))
            original(region, device_type, dtype, enabled, *args, **kwargs)

        self.replace(torch.autocast, "__init__", initialize)

    def _watch_to(self) -> None:
        original = torch.nn.Module.to

        @functools.wraps(original)
        def to(module: Any, *args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.dtype):
                    self._note("Module.to", sys._getframe(1), _plain(value))
            return original(module, *args, **kwargs)

        self.replace(torch.nn.Module, "to", to)

    def _watch_clock(self, name: str) -> None:
        original: Callable[[], Any] = getattr(time, name)

        @functools.wraps(original)
        def read() -> Any:
            # Libraries read clocks too, and far more often.
            frame = sys._getframe(1)
            if is_user_file(frame.f_code.co_filename):
                self._note(f"time.{name}", frame)
            return original()

        self.replace(time, name, read)

    def _watch_writers(self) -> None:
        for name in _WRITERS:
            writer = getattr(sys.modules.get(name), "SummaryWriter", None)
            if writer is None or name in self._writers:
                continue
            self._writers.add(name)
            for method in _LOGGED:
                if hasattr(writer, method):
                    self._watch(f"SummaryWriter.{method}", (writer,), kind="log")


def _num_steps(segments: set[int], round_ends: Sequence[int]) -> int:
    """Return in how many steps a line was called.

    What precedes the first update is the first step and all that the script does before it. A
    line counts there if it is one of later steps too.
    """
    steps = {bisect_left(round_ends, segment) for segment in segments}
    recorded = {step for step in steps if step < len(round_ends)}
    return len(recorded) if recorded - {0} else 0


def _as_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return arguments as Python writes them; of what is no plain value the name of its type."""
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
    return type(value).__name__

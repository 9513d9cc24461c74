"""Short pieces of scripts, run on a fake CUDA device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from breakeven.capture.pretend.fake_cuda import fake_cuda
from breakeven.capture.record.device_map import DeviceMap
from breakeven.capture.record.recorder import StepRecorder
from breakeven.trace import Copy, Op, Sync


@contextmanager
def pretending(*, is_recording: bool = True) -> Iterator[StepRecorder]:
    """Run the block on a fake device, with or without recording."""
    recorder = StepRecorder(DeviceMap(), is_recording=is_recording)
    with fake_cuda(recorder, lambda: None):
        yield recorder


def next_line() -> int:
    """Return the number of the line after the call."""
    return sys._getframe(1).f_lineno + 1


def ops(recorder: StepRecorder, *, everywhere: bool = False) -> list[Op]:
    """Return the operators on the device; with ``everywhere``, also those on the host."""
    return [
        event
        for event in recorder.events
        if isinstance(event, Op) and (everywhere or not event.is_on_host)
    ]


def names(recorder: StepRecorder) -> list[str]:
    """Return the names of the operators on the device, without namespace and overload."""
    return [op.name.split(".")[1] for op in ops(recorder)]


def syncs(recorder: StepRecorder) -> list[Sync]:
    return [event for event in recorder.events if isinstance(event, Sync)]


def copies(recorder: StepRecorder) -> list[Copy]:
    return [event for event in recorder.events if isinstance(event, Copy)]

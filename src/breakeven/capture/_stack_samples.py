"""What a script does between its steps, by samples of its stack."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from breakeven.capture._location import is_user_file, location_of
from breakeven.capture._protocol import OtherWork
from breakeven.trace import Location

_PACKAGE = str(Path(__file__).resolve().parent.parent)
# Seldom enough not to disturb steps of some 100 µs: a sample takes the interpreter for some 20 µs.
_EVERY_S = 0.02
# What takes less of the time between steps is not told.
_LEAST_SHARE = 0.1


class _Call(NamedTuple):
    """A line that runs, or calls the next one."""

    file: str
    line: int
    function: str


class StackSamples:
    """Looks now and then at what the thread that made it is doing.

    Args:
        num_calls: Returns the updates so far.
    """

    def __init__(self, num_calls: Callable[[], int]) -> None:
        self._num_calls = num_calls
        self._thread_id = threading.get_ident()
        self._is_over = threading.Event()
        self._samples: list[tuple[int, tuple[_Call, ...]]] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._look, name="breakeven-stack", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def between(self, steps: Collection[int], longer: Collection[int]) -> tuple[OtherWork, ...]:
        """Return what ran in the longer steps that did not run in the others.

        Args:
            steps: Updates made before each step that is nothing but a step.
            longer: Updates made before those that contain more.

        Returns:
            The most time first.
        """
        samples = list(self._samples)
        of_steps = {
            stack[:depth]
            for call, stack in samples
            if call in steps
            for depth in range(1, len(stack) + 1)
        }
        found: Counter[Location] = Counter()
        for call, stack in samples:
            location = _departure(of_steps, stack) if call in longer else None
            if location is not None:
                found[location] += 1
        num_samples = sum(found.values())
        return tuple(
            OtherWork(location=location, share=count / num_samples)
            for location, count in found.most_common()
            if count >= _LEAST_SHARE * num_samples
        )

    def _look(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                self._samples.append((self._num_calls(), _stack(frame)))


def _stack(frame: FrameType | None) -> tuple[_Call, ...]:
    """Return the calls of the script, outermost first, without ours."""
    calls: list[_Call] = []
    while frame is not None:
        code = frame.f_code
        calls.append(_Call(code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    calls.reverse()
    first = next((at for at, call in enumerate(calls) if is_user_file(call.file)), len(calls))
    return tuple(call for call in calls[first:] if not call.file.startswith(_PACKAGE))


def _departure(
    of_steps: Collection[tuple[_Call, ...]], stack: tuple[_Call, ...]
) -> Location | None:
    """Return where a stack leaves those of the steps: the user's line, and what is called."""
    depth = next((d for d in range(1, len(stack) + 1) if stack[:d] not in of_steps), 0)
    line = next((call for call in reversed(stack[:depth]) if is_user_file(call.file)), None)
    if line is None:
        return None
    called = stack[depth].function if depth < len(stack) else ""
    # Names such as `<listcomp>` tell nobody anything.
    return location_of(line.file, line.line, "" if "<" in called else called)

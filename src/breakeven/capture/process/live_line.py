"""How a training goes, on the last line of the terminal, without touching what the script prints.

The line is there only while the cursor stands at the beginning of a line, so that a progress bar or
a prompt of the script's own is left alone, and it is wiped before anything else is written.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from collections import deque
from time import monotonic
from typing import Any, TextIO

from breakeven.units import format_digits

_DRAW_EVERY_S = 0.2
# Draws over which the speed is taken: some ten seconds, so that it follows a change.
_NUM_DRAWS = 50
_WIPE = b"\r\x1b[2K"


class StepCounter:
    """Counts training steps; where several optimizers take turns, a round of them is one."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._round: set[int] = set()
        self._first_s = self._last_s = 0.0

    @property
    def steps_per_s(self) -> float:
        """Return the speed from the first step to the last; 0 where there are not two."""
        elapsed_s = self._last_s - self._first_s
        return (self.num_steps - 1) / elapsed_s if elapsed_s > 0 else 0.0

    def count(self, optimizer: int, now_s: float) -> None:
        """Note an update.

        Args:
            optimizer: Tells the optimizers from each other.
            now_s: When it ended, in seconds.
        """
        if optimizer in self._round:
            self._round.clear()
        self._round.add(optimizer)
        if len(self._round) == 1:
            self.num_steps += 1
            self._first_s = self._first_s or now_s
            self._last_s = now_s


class LiveLine:
    """The line, and the terminal that it shares with the script.

    Args:
        counter: Of the steps.
        device: ``cpu`` or ``gpu``.
        num_steps: Steps that the run will have; 0 where that is not known.
        stream: The terminal.
    """

    def __init__(self, counter: StepCounter, device: str, num_steps: int, stream: TextIO) -> None:
        self._counter = counter
        self._device = device
        self._num_steps = num_steps
        self._fd = stream.fileno()
        self._start_s = monotonic()
        self._next_s = 0.0
        self._draws: deque[tuple[float, int]] = deque(maxlen=_NUM_DRAWS)
        # Shared with forked processes, such as workers of a DataLoader, which print too: whether
        # the line is there, and whether the cursor stands elsewhere than at a beginning.
        self._state = mmap.mmap(-1, 2)
        self._lock = threading.RLock()
        self._is_on = True
        self._unwatch = contextlib.ExitStack()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._leave_to_parent)
        for output in (sys.stdout, sys.stderr):
            self._watch(output)

    def update(self, now_s: float) -> None:
        """Draw the line anew where that is due.

        Args:
            now_s: The time, in seconds.
        """
        if now_s < self._next_s or not self._is_on:
            return
        self._next_s = now_s + _DRAW_EVERY_S
        self._draws.append((now_s, self._counter.num_steps))
        if len(self._draws) > 1 and not self._state[1]:
            with self._lock:
                self._write(_WIPE + self._text(now_s).encode())
                self._state[0] = 1

    def end(self) -> None:
        """Wipe the line for good, and leave the terminal to the script."""
        self._wipe()
        self._is_on = False
        self._unwatch.close()

    def _text(self, now_s: float) -> str:
        """Return the line, in ASCII, which every terminal shows."""
        (earlier_s, earlier), (later_s, later) = self._draws[0], self._draws[-1]
        rate = (later - earlier) / (later_s - earlier_s)
        parts = [f"{format_digits(rate)} it/s", self._device]
        if self._num_steps:
            left = max(0, self._num_steps - later)
            parts.append(f"{later:,} of {self._num_steps:,} steps")
            if rate > 0:
                parts.append(f"{_clock(left / rate)} left")
        else:
            parts += [f"{later:,} steps", _clock(now_s - self._start_s)]
        return f"breakeven: {' | '.join(parts)}"[: self._width() - 1]

    def _width(self) -> int:
        with contextlib.suppress(KeyError, ValueError):
            return max(2, int(os.environ["COLUMNS"]))
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._fd).columns or 80
        return 80

    def _wipe(self) -> None:
        if self._state[0]:
            with self._lock:
                self._state[0] = 0
                self._write(_WIPE)

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._fd, data)
        except OSError:  # the terminal has gone
            self._is_on = False

    def _watch(self, stream: Any) -> None:
        """Wipe the line before a stream writes to the same terminal.

        The last Python object on the way is watched: whatever prints, logs or has kept the stream
        from before ends there, and type and identity of the stream stay what they are.
        """
        try:
            if os.fstat(stream.fileno()).st_rdev != os.fstat(self._fd).st_rdev:
                return
            # An unbuffered stream has no buffer in between.
            raw = getattr(stream.buffer, "raw", stream.buffer)
        except (AttributeError, OSError, ValueError):
            return  # there is none, or it is closed
        write, flush = raw.write, stream.flush

        def write_after_wiping(data: Any) -> Any:
            with self._lock:
                self._wipe()
                num_bytes = write(data)
                if num_bytes:
                    self._state[1] = bytes(data[num_bytes - 1 : num_bytes]) != b"\n"
                return num_bytes

        def flush_and_wipe() -> None:
            # input() flushes, and then lets the C library write its prompt.
            self._wipe()
            flush()

        raw.write, stream.flush = write_after_wiping, flush_and_wipe
        self._unwatch.callback(delattr, raw, "write")
        self._unwatch.callback(delattr, stream, "flush")

    def _leave_to_parent(self) -> None:
        self._is_on = False
        # Another thread of the parent may have held the old one.
        self._lock = threading.RLock()


def _clock(duration_s: float) -> str:
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

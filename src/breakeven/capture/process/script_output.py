"""A script's output, and its terminal during a check."""

from __future__ import annotations

import os
import re
import select
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

try:
    import termios
except ImportError:  # Windows, where no run has a terminal
    termios: Any = None

# Indices into the result of `tcgetattr`.
_OUTPUT, _LOCAL, _CHARACTERS = 1, 3, 6

Size = tuple[int, int]


def user_terminal_size(descriptors: Iterable[int] = (0, 1, 2)) -> Size | None:
    """Return rows and columns of this process's terminal; None without one.

    One stream on a terminal suffices: a user who redirects the report to a file does not mean to
    redirect the script's output.

    Args:
        descriptors: File descriptors of the standard streams.
    """
    for descriptor in descriptors:
        with suppress(OSError, termios.error):
            return termios.tcgetwinsize(descriptor)
    return None


class ScriptTerminal:
    """A pseudo-terminal that replaces the user's.

    It is no process's controlling terminal, so it sends no signals and stops no process. A read
    meets the end of input at once, unless the script changes the mode, as `readline` does. Output
    passes through unchanged.

    Args:
        size: Rows and columns.
    """

    def __init__(self, size: Size) -> None:
        self.our_end, self.scripts_end = os.openpty()
        os.set_blocking(self.our_end, False)
        termios.tcsetwinsize(self.scripts_end, size)
        mode = termios.tcgetattr(self.scripts_end)
        mode[_OUTPUT] &= ~termios.OPOST
        mode[_LOCAL] &= ~(termios.ICANON | termios.ECHO)
        # A read waits neither for a character nor for a time.
        mode[_CHARACTERS][termios.VMIN] = mode[_CHARACTERS][termios.VTIME] = 0
        termios.tcsetattr(self.scripts_end, termios.TCSANOW, mode)


class TerminalState:
    """The state of a terminal, to restore after a script changed it.

    Args:
        descriptor: Descriptor of the terminal; nothing is restored for another file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mode: list[Any] | None = None
        with suppress(termios.error):
            self._mode = termios.tcgetattr(descriptor)
            self._size = termios.tcgetwinsize(descriptor)

    def restore(self) -> None:
        """Restore the state, and discard unread input."""
        if self._mode is not None:
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._mode)
            termios.tcsetwinsize(self._descriptor, self._size)
            termios.tcflush(self._descriptor, termios.TCIFLUSH)


_KEPT_OUTPUT_BYTES = 16_384
_POLL_S = 0.2
# Output is complete after this time without data; wait at most the limit for that.
_SETTLE_S = 0.01
_SETTLE_LIMIT_S = 0.5
# Escape sequences such as those of colours, and the backspaces of progress bars.
_STEERING = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|\x08"
)


class ScriptOutput:
    """Reads a script's output to its end in a thread, and keeps only the last part.

    Args:
        fd: File descriptor to read.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return the kept output as text, without control sequences."""
        # A terminal delivers its output with a short delay.
        deadline_s = monotonic() + _SETTLE_LIMIT_S
        while self._thread.is_alive() and monotonic() < deadline_s and self._has_more(_SETTLE_S):
            sleep(_SETTLE_S)
        with self._lock:
            kept = b"".join(self._chunks)[-_KEPT_OUTPUT_BYTES:]
        return _STEERING.sub("", kept.decode(errors="replace"))

    def clear(self) -> None:
        """Discard the kept output."""
        with self._lock:
            self._chunks.clear()
            self._size = 0

    def close(self) -> None:
        """Read the rest, and end."""
        self._is_closed = True
        self._thread.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        while True:
            # Stop reading after close, even if a process that outlives the run holds the file open.
            has_more = self._has_more(0.0 if self._is_closed else _POLL_S)
            if not has_more and self._is_closed:
                return
            if has_more and not self._keep():
                return

    def _has_more(self, wait_s: float) -> bool:
        return bool(select.select([self._fd], [], [], wait_s)[0])

    def _keep(self) -> bool:
        """Keep the available data; return False at the end."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:  # the terminal's end: no process has it open any more
            data = b""
        with self._lock:
            if data:
                self._chunks.append(data)
                self._size += len(data)
            while self._chunks and self._size - len(self._chunks[0]) > _KEPT_OUTPUT_BYTES:
                self._size -= len(self._chunks.popleft())
        return bool(data)

"""The end of what a script prints."""

from __future__ import annotations

import os
import re
import select
import threading
from collections import deque
from time import monotonic, sleep

from breakeven.capture.process.script_terminal import ScriptTerminal

_KEPT_OUTPUT_BYTES = 16_384
# How often a script that waits for input is looked after.
_POLL_S = 0.2
# How long nothing more must come for the output to be complete, and how long to wait for that.
_SETTLE_S = 0.01
_SETTLE_LIMIT_S = 0.5
# Escape sequences such as those of colours, and the backspaces of progress bars.
_STEERING = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|\x08"
)


class ScriptOutput:
    """Reads what a script prints to its end in a thread, and keeps only the last of it.

    Args:
        fd: Where it comes out.
        terminal: What it is printed to, whose input is to be empty; None for a pipe.
    """

    def __init__(self, fd: int, terminal: ScriptTerminal | None) -> None:
        self._fd = fd
        self._terminal = terminal
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return what is kept, as text without what steers a terminal."""
        # A terminal hands on what is written to it a little later.
        deadline_s = monotonic() + _SETTLE_LIMIT_S
        while self._thread.is_alive() and monotonic() < deadline_s and self._has_more(_SETTLE_S):
            sleep(_SETTLE_S)
        with self._lock:
            kept = b"".join(self._chunks)[-_KEPT_OUTPUT_BYTES:]
        return _STEERING.sub("", kept.decode(errors="replace"))

    def clear(self) -> None:
        """Forget what is kept."""
        with self._lock:
            self._chunks.clear()
            self._size = 0

    def close(self) -> None:
        """Read what is left, and end."""
        self._is_closed = True
        self._thread.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        checked_s = monotonic()
        while True:
            # Whoever outlives the run may still have it open, but is not listened to.
            has_more = self._has_more(0.0 if self._is_closed else _POLL_S)
            if not has_more and self._is_closed:
                return
            if self._terminal is not None and monotonic() - checked_s >= _POLL_S:
                self._terminal.end_input()
                checked_s = monotonic()
            if has_more and not self._keep():
                return

    def _has_more(self, wait_s: float) -> bool:
        return bool(select.select([self._fd], [], [], wait_s)[0])

    def _keep(self) -> bool:
        """Keep what there is to read; return False at the end."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:  # the end of a terminal that nobody has open any more
            data = b""
        with self._lock:
            if data:
                self._chunks.append(data)
                self._size += len(data)
            while self._chunks and self._size - len(self._chunks[0]) > _KEPT_OUTPUT_BYTES:
                self._size -= len(self._chunks.popleft())
        return bool(data)

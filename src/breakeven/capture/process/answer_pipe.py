"""The way from the process of a run to its launcher."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import msgspec

from breakeven.capture.answers import CUT_OFF_STATUS, Message

# As they are before a script puts others in their place.
_exit, _fstat, _write = os._exit, os.fstat, os.write


class AnswerPipe:
    """Sends messages, unless the script has closed the descriptor.

    Args:
        fd: File descriptor of the pipe.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pipe = _open_file(fd)
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; where that cannot be done, end the process with a status that says so.

        A file that the script opened after it had closed the pipe may have got its number.
        """
        # Begins a line of its own: the script may have written to the pipe.
        line = b"\n" + msgspec.json.encode(message) + b"\n"
        with self._lock:
            try:
                if _open_file(self._fd) != self._pipe:
                    _exit(CUT_OFF_STATUS)
                while line:
                    line = line[_write(self._fd, line) :]
            except OSError:
                _exit(CUT_OFF_STATUS)


def send(fd: int, message: Message) -> None:
    """Send a message to the parent.

    Args:
        fd: File descriptor for it.
        message: What there is to say.
    """
    with suppress(BrokenPipeError):  # the parent is gone: the end of its requests says so too
        os.write(fd, msgspec.json.encode(message) + b"\n")


def _open_file(fd: int) -> tuple[int, int]:
    status = _fstat(fd)
    return status.st_dev, status.st_ino

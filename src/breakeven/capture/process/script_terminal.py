"""The terminal that a script has in a check: as large as the user's, and nobody types at it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

try:
    import termios
except ImportError:  # Windows, where no run has a terminal
    termios: Any = None

# Positions in what `tcgetattr` returns.
_OUTPUT, _LOCAL, _CHARACTERS = 1, 3, 6
_END_OF_INPUT = b"\x04"

Size = tuple[int, int]


def user_terminal_size(descriptors: Iterable[int] = (0, 1, 2)) -> Size | None:
    """Return rows and columns of the terminal that this process has; None where it has none.

    One stream that is a terminal is enough: whoever sends the report to a file would not send the
    output of the script there.

    Args:
        descriptors: Of its standard streams.
    """
    for descriptor in descriptors:
        with suppress(OSError, termios.error):
            return termios.tcgetwinsize(descriptor)
    return None


class ScriptTerminal:
    """A pseudo-terminal that takes the place of the user's.

    It is nobody's controlling terminal, so it sends no signals and stops nobody. Whoever reads
    from it is at the end of the input at once; what is written to it comes out unchanged.

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
        # Reading waits neither for a character nor for a time.
        mode[_CHARACTERS][termios.VMIN] = mode[_CHARACTERS][termios.VTIME] = 0
        termios.tcsetattr(self.scripts_end, termios.TCSANOW, mode)

    def end_input(self) -> None:
        """End the input also for a script that has changed the mode, as `readline` does."""
        with suppress(OSError, termios.error):
            mode = termios.tcgetattr(self.our_end)
            # Lines have no such least number.
            if mode[_LOCAL] & termios.ICANON or mode[_CHARACTERS][termios.VMIN] != 0:
                os.write(self.our_end, _END_OF_INPUT)


class TerminalState:
    """What a terminal is like, to be as before when a script has changed it.

    Args:
        descriptor: Of the terminal; of another file, there is nothing to restore.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mode: list[Any] | None = None
        with suppress(termios.error):
            self._mode = termios.tcgetattr(descriptor)
            self._size = termios.tcgetwinsize(descriptor)

    def restore(self) -> None:
        """Make it so again, and forget what was not read."""
        if self._mode is not None:
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._mode)
            termios.tcsetwinsize(self._descriptor, self._size)
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

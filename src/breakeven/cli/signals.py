"""Let SIGTERM and SIGHUP end the program as Ctrl-C does, by an exception.

They come from `docker stop`, `timeout`, Slurm, CI, and a terminal that is closed. On its way out
the exception passes every ``with`` and ``finally``, which end processes and remove files.
"""

from __future__ import annotations

import signal
from time import monotonic
from types import FrameType

# More than it takes to end what runs. Meanwhile the next signal changes nothing; later it does, in
# case the exception was lost in some code that takes none.
_CLEAN_UP_S = 10.0
_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class EndingSignal(KeyboardInterrupt):
    """A signal that asks the program to end.

    Args:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class EndingSignals:
    """Raises an `EndingSignal` where the program stands."""

    def __init__(self) -> None:
        self._deaf_until_s = 0.0
        self._first = 0

    @property
    def exit_code(self) -> int:
        """Return what a shell reports for a program that such a signal ended; 0 without one."""
        return 128 + self._first if self._first else 0

    def listen(self) -> None:
        """Heed all that are not ignored, as SIGHUP is under ``nohup``."""
        self._handle(self._raise)

    def ignore(self) -> None:
        """Heed none any more: the program is about to end."""
        self._handle(signal.SIG_IGN)

    def _handle(self, handler: signal._HANDLER) -> None:
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)

    def _raise(self, number: int, _: FrameType | None) -> None:
        now_s = monotonic()
        if now_s < self._deaf_until_s:
            return
        self._deaf_until_s = now_s + _CLEAN_UP_S
        self._first = self._first or number
        raise EndingSignal(number)

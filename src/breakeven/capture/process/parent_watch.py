"""End a process that serves another once that is gone, also while it imports torch."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from typing import NoReturn

from breakeven.capture.protect.scratch import remove_tree

_POLL_S = 0.1


class ParentWatch:
    """Looks in a thread for the end of a pipe, on which nothing comes meanwhile.

    Args:
        fd: Where requests will come.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more: a process with a second thread must not be forked."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_POLL_S):
            if select.select([self._fd], [], [], 0.0)[0]:
                end_at_once()


def end_at_once() -> NoReturn:
    """End this process: an orderly end of torch takes most of a second.

    The folder of temporary files is the parent's to remove, which may have been killed, though.
    """
    remove_tree(Path(os.environ["TMPDIR"]))
    os._exit(0)

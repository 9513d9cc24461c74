"""Time that other work on the machine does not stretch.

A thread that could run but is not let, since others have the processors, stands still; the wall
clock goes on. Linux counts that waiting for each thread, to the nanosecond, in the second field of
its ``schedstat`` (Documentation/scheduler/sched-stats.rst). What it waits for by itself, a lock, a
file, a sleep, is no part of it. Where there is no such file the wall clock must do.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from time import perf_counter_ns

# What is known of a thread's waiting is read anew after so long: one reading takes 1 µs.
_FRESH_NS = 100_000
# Two readings that lie further apart were interrupted in between.
_INTERRUPTED_NS = 20_000
_MOST_TRIES = 5
# The files of other threads are read no more often than makes this part of the time.
_READING_SHARE = 0.01
# Threads come and go: they are looked for after so many readings.
_LOOK_EVERY = 32


def _read_waited_ns(descriptor: int) -> int:
    return int(os.pread(descriptor, 64, 0).split()[1])


class _ThisThread(threading.local):
    """What the thread that asks has waited since it first asked."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._first_ns = 0
        self.read_ns = 0
        self.waited_ns = 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._first_ns = _read_waited_ns(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def own_ns(self, now_ns: int) -> int:
        """Return the time of this thread at ``now_ns``, or a little later."""
        waited_ns = self.waited_ns
        for _ in range(_MOST_TRIES):
            try:
                waited_ns = _read_waited_ns(self._descriptor) - self._first_ns
            except (OSError, ValueError, IndexError):  # no such file, or the script closed it
                break
            after_ns = perf_counter_ns()
            if after_ns - now_ns < _INTERRUPTED_NS:
                break
            now_ns = after_ns
        self.read_ns, self.waited_ns = now_ns, waited_ns
        return now_ns - waited_ns


_here = _ThisThread()


def _forget() -> None:
    """In a child the thread is another one."""
    global _here
    _here = _ThisThread()


os.register_at_fork(after_in_child=_forget)


def own_time_ns() -> int:
    """Return the time in nanoseconds since an arbitrary moment, this thread's waiting left out.

    Waiting for a processor is left out; the moment differs between threads. Within
    0.1 ms after a reading the waiting since is not known, and so counts.
    """
    here, now_ns = _here, perf_counter_ns()
    if now_ns - here.read_ns < _FRESH_NS:
        return now_ns - here.waited_ns
    return here.own_ns(now_ns)


class PoolWaits:
    """What the threads of this process that are not Python's have waited for a processor.

    They are those among which torch's operators divide their work; where one of them is kept from
    running, the others wait for it.
    """

    def __init__(self) -> None:
        self._known_ns: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}
        self._total_ns = 0
        self._num_readings = 0
        self._next_ns = 0

    def waited_ns(self) -> int:
        """Return their waiting up to now, or a moment ago, summed over threads, in nanoseconds."""
        now_ns = perf_counter_ns()
        if now_ns >= self._next_ns:
            self._read()
            took_ns = perf_counter_ns() - now_ns
            self._next_ns = now_ns + max(_FRESH_NS, int(took_ns / _READING_SHARE))
        return self._total_ns

    def _read(self) -> None:
        if not self._num_readings % _LOOK_EVERY:
            self._look()
        self._num_readings += 1
        for thread, descriptor in list(self._descriptors.items()):
            try:
                waited_ns = _read_waited_ns(descriptor)
            except (OSError, ValueError, IndexError):  # it has ended
                os.close(self._descriptors.pop(thread))
                continue
            self._total_ns += waited_ns - self._known_ns.get(thread, waited_ns)
            self._known_ns[thread] = waited_ns

    def _look(self) -> None:
        pythons = {thread.native_id for thread in threading.enumerate()}
        with contextlib.suppress(OSError):
            for folder in Path("/proc/self/task").iterdir():
                thread = int(folder.name)
                if thread in pythons or thread in self._descriptors:
                    continue
                with contextlib.suppress(OSError):
                    path = folder / "schedstat"
                    self._descriptors[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Read no more."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

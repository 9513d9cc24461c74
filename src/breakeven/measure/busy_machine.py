"""Load by other processes: a clock that leaves waiting for a processor out, and their share.

If other threads hold all processors, a runnable thread waits while the wall clock runs on. Linux
counts that wait per thread, in nanoseconds, in the second field of its ``schedstat``
(Documentation/scheduler/sched-stats.rst). Waits for a lock, a file or a sleep do not count.
Systems without such a file use the wall clock.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from pathlib import Path
from time import perf_counter_ns

from breakeven.memory import num_page_faults

# Read a thread's wait again after this time: one reading takes 1 µs.
_FRESH_NS = 100_000
# Two readings further apart than this were interrupted.
_INTERRUPTED_NS = 20_000
_MOST_TRIES = 5
# Limit reading other threads' files to this share of the time.
_READING_SHARE = 0.01
# Threads come and go: list them again after this number of readings.
_LOOK_EVERY = 32
_STATISTICS = Path("/proc/stat")
_Times = tuple[float, float, float]


class _Waits:
    """The open file that holds a thread's waiting time.

    Raises:
        OSError: The file does not exist.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        # The script may have closed it.
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def read_ns(self) -> int | None:
        """Return the waiting so far, in nanoseconds; None if the thread has ended."""
        try:
            return int(os.pread(self._descriptor, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None


class _ThisThread(threading.local):
    """The calling thread's waiting time since its first call."""

    def __init__(self) -> None:
        self._waits: _Waits | None = None
        self._first_ns = self._last_ns = self._read_ns = self._waited_ns = 0
        with contextlib.suppress(OSError):
            self._waits = _Waits("/proc/thread-self/schedstat")
            self._first_ns = self._waits.read_ns() or 0

    def own_time_ns(self, now_ns: int) -> int:
        """Return this thread's time at ``now_ns`` or shortly after; it never decreases."""
        if now_ns - self._read_ns >= _FRESH_NS and self._waits is not None:
            for _ in range(_MOST_TRIES):
                waited_ns = self._waits.read_ns()
                if waited_ns is not None:
                    self._waited_ns = waited_ns - self._first_ns
                after_ns = perf_counter_ns()
                if after_ns - now_ns < _INTERRUPTED_NS:
                    break
                now_ns = after_ns
            self._read_ns = now_ns
        self._last_ns = max(self._last_ns, now_ns - self._waited_ns)
        return self._last_ns


_here = _ThisThread()


def _forget() -> None:
    """Start again after a fork: the child runs another thread."""
    global _here
    _here = _ThisThread()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


def own_time_ns() -> int:
    """Return this thread's time in nanoseconds, without its waits for a processor.

    The time counts from an arbitrary moment, which differs between threads, and never decreases.
    A wait within 0.1 ms of a reading counts at first; the next reading subtracts it.
    """
    return _here.own_time_ns(perf_counter_ns())


class PoolWaits:
    """The time that this process's threads other than Python's have waited for a processor.

    torch's operators divide their work among them. If one cannot run, the others wait for it.
    """

    def __init__(self) -> None:
        self._own_thread: int | None = None
        self._waits: dict[int, _Waits] = {}
        self._known_ns: dict[int, int] = {}
        self._total_ns = 0
        self._next_ns = 0
        self.num_readings = 0

    def count_this_thread(self) -> None:
        """Count the calling thread's waits too, if a wall clock times that thread."""
        self._own_thread = threading.get_native_id()
        self._look()

    def waited_ns(self) -> int:
        """Return the waiting time up to the last reading, in nanoseconds.

        Between two readings, the thread with the longest wait counts.
        """
        now_ns = perf_counter_ns()
        if now_ns >= self._next_ns:
            self._read()
            took_ns = perf_counter_ns() - now_ns
            self._next_ns = now_ns + max(_FRESH_NS, int(took_ns / _READING_SHARE))
        return self._total_ns

    def pause(self) -> None:
        """Stop counting until `resume`: count what was waited up to now."""
        self._read()

    def resume(self) -> None:
        """Count again, after a pause."""
        total_ns = self._total_ns
        self._read()
        self._total_ns = total_ns

    def _read(self) -> None:
        if not self.num_readings % _LOOK_EVERY:
            self._look()
        self.num_readings += 1
        longest_ns = 0
        for thread, waits in list(self._waits.items()):
            waited_ns = waits.read_ns()
            if waited_ns is None:
                del self._waits[thread], self._known_ns[thread]
                continue
            longest_ns = max(longest_ns, waited_ns - self._known_ns[thread])
            self._known_ns[thread] = waited_ns
        self._total_ns += longest_ns

    def _look(self) -> None:
        # In a forked process, Python still has the thread id of the parent process.
        pythons = {thread.native_id for thread in threading.enumerate()}
        pythons = (pythons | {threading.get_native_id()}) - {self._own_thread}
        with contextlib.suppress(OSError):
            for folder in Path("/proc/self/task").iterdir():
                thread = int(folder.name)
                if thread in pythons or thread in self._waits:
                    continue
                with contextlib.suppress(OSError):
                    waits = _Waits(str(folder / "schedstat"))
                    self._known_ns[thread] = waits.read_ns() or 0
                    self._waits[thread] = waits


class OtherLoad:
    """The share of the machine's processors that other processes have used since creation.

    On systems other than Linux the share is 0.

    Args:
        counts_group: Count the other processes of this process group, such as a loader's workers,
            as own. Finding them takes some milliseconds: too long for pauses.
    """

    def __init__(self, *, counts_group: bool = False) -> None:
        self._counts_group = counts_group
        self._start_s = self._times_s()
        self._paused_s: _Times | None = None

    def pause(self) -> None:
        """Stop counting until `resume`."""
        self._paused_s = self._times_s()

    def resume(self) -> None:
        """Count again, after a pause."""
        assert self._paused_s is not None
        times_s = zip(self._start_s, self._times_s(), self._paused_s, strict=True)
        busy_s, own_s, total_s = (start + now - paused for start, now, paused in times_s)
        self._start_s, self._paused_s = (busy_s, own_s, total_s), None

    def fraction(self) -> float:
        """Return the share of all processors' time, 0 to 1, that went to other processes."""
        times_s = zip(self._start_s, self._paused_s or self._times_s(), strict=True)
        busy_s, own_s, total_s = (now - start for start, now in times_s)
        return min(1.0, max(0.0, (busy_s - own_s) / total_s)) if total_s > 0 else 0.0

    def _times_s(self) -> _Times:
        """Return three sums over all processors, in seconds: busy, busy for this process, total.

        All are NaN if the system does not report them.
        """
        try:
            fields = _STATISTICS.read_text().splitlines()[0].split()[1:]
        except (OSError, IndexError):
            return math.nan, math.nan, math.nan
        # user nice system idle iowait irq softirq steal; guest time is part of user time.
        # Source: proc(5), /proc/stat.
        times = [int(field) / _ticks_per_s() for field in fields[:8]]
        total_s = sum(times)
        busy_s = total_s - times[3] - times[4]
        own = os.times()
        own_s = own.user + own.system + own.children_user + own.children_system
        return busy_s, own_s + (_others_of_group_s() if self._counts_group else 0.0), total_s


def _others_of_group_s() -> float:
    """Return the processor time of the group's other living processes, in seconds."""
    group, own, ticks = str(os.getpgrp()), str(os.getpid()), 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold spaces: state, parent and group follow it, and
            # user and system time are the 12th and 13th field after it.
            # Source: proc(5), /proc/pid/stat.
            fields = status.read_text().rpartition(")")[2].split()
            if fields[2] == group and status.parent.name != own:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _ticks_per_s()


def _ticks_per_s() -> int:
    """Return the time unit of the files above, which only Linux has."""
    return os.sysconf("SC_CLK_TCK")


class PageFaults:
    """Counts the page faults of this process per step.

    It reads the count only after 1, 2, 4, 8, ... steps, so that short steps stay short.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []

    def mark(self, num_steps: int) -> None:
        """Note the number of completed steps.

        Args:
            num_steps: At least 1.
        """
        if num_steps & (num_steps - 1) == 0:
            self._marks.append((num_steps, num_page_faults()))

    def per_step(self, num_steps: int) -> float:
        """Return the page faults per step in the later half of the run; 0 if it has no step.

        Args:
            num_steps: Number of completed steps.
        """
        early = [mark for mark in self._marks if 2 * mark[0] <= num_steps]
        if not early:
            return 0.0
        before, faults = early[-1]
        return (num_page_faults() - faults) / (num_steps - before)

"""Time that other work on the machine does not stretch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter_ns, sleep

import pytest
from scripted_clock import ScriptedClock

from breakeven.measure import PoolWaits, StepTimer, own_time_ns
from breakeven.timing import Measurement

needs_schedstat = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this system does not count waiting"
)
# Works beside a process on the same processor, and prints its own time over the wall clock's.
BESIDE = """
import os, subprocess, sys
from time import perf_counter_ns
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from breakeven.measure import own_time_ns
rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    wall_ns, own_ns = perf_counter_ns(), own_time_ns()
    while perf_counter_ns() - wall_ns < 1_000_000_000:
        own_time_ns()
    print((own_time_ns() - own_ns) / (perf_counter_ns() - wall_ns))
finally:
    rival.kill()
"""


def test_time_goes_on_and_contains_what_a_thread_waits_for_by_itself() -> None:
    wall_ns, own_ns = perf_counter_ns(), own_time_ns()
    sleep(0.05)
    elapsed_ns = own_time_ns() - own_ns
    assert 40_000_000 < elapsed_ns <= perf_counter_ns() - wall_ns
    times = [own_time_ns() for _ in range(2_000)]
    assert times == sorted(times)


@needs_schedstat
def test_waiting_for_a_processor_is_left_out() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], capture_output=True, check=True, text=True
    )
    # Two share a processor, so that each gets about half of it.
    assert 0.1 < float(done.stdout) < 0.8


@needs_schedstat
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_child_has_a_time_of_its_own() -> None:
    own_time_ns()
    child = os.fork()
    if not child:
        begun_ns = own_time_ns()
        sleep(0.02)
        os._exit(0 if own_time_ns() - begun_ns > 15_000_000 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_each_thread_may_ask() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(own_time_ns())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert min(found) > 0


def test_waiting_of_a_pool_only_grows() -> None:
    pool = PoolWaits()
    waits = []
    for _ in range(5):
        waits.append(pool.waited_ns())
        sleep(0.002)
    assert waits == sorted(waits)
    pool.close()


class ScriptedPool(PoolWaits):
    """Waits that are given."""

    def __init__(self, waited_ns: list[int]) -> None:
        super().__init__()
        self._given = iter(waited_ns)
        self._last_ns = 0

    def waited_ns(self) -> int:
        """Return the next of them, and the last one over and over."""
        self._last_ns = next(self._given, self._last_ns)
        return self._last_ns


def test_samples_that_were_held_up_do_not_count() -> None:
    # Every third step waits for 9 of its 10 ms.
    times_ns = [0]
    waits_ns = [0]
    for number in range(30):
        is_held_up = number % 3 == 2
        times_ns.append(times_ns[-1] + (10_000_000 if is_held_up else 1_000_000))
        waits_ns.append(waits_ns[-1] + (9_000_000 if is_held_up else 0))
    timer = StepTimer(ScriptedClock(times_ns), budget_s=0.1, pool=ScriptedPool(waits_ns))
    while not timer.mark(0):
        pass
    measurement = timer.measurement()
    assert measurement is not None
    assert not measurement.is_disturbed
    assert set(measurement.steady_ns) == {1_000_000}


def test_a_quiet_moment_is_waited_for() -> None:
    clock = ScriptedClock([0], then_every_ns=10_000_000)
    busy = [9_000_000 * number for number in range(13)]  # and quiet from then on
    timer = StepTimer(clock, budget_s=0.1, pool=ScriptedPool(busy))
    num_steps = 0
    while not timer.mark(0):
        num_steps += 1
    assert num_steps > 15  # 10 were enough on a quiet machine
    measurement = timer.measurement()
    assert measurement is not None
    assert not measurement.is_disturbed


def test_steps_that_are_all_held_up_give_a_bound() -> None:
    measurement = Measurement(samples_ns=(10_000,) * 8, waited_ns=(7_000,) * 8)
    assert measurement.is_disturbed
    estimate = measurement.estimate
    assert (estimate.low_ns, estimate.value_ns, estimate.high_ns) == (3_000, 10_000, 10_000)
    # Threads wait beside each other, so that the sum may be longer than the step.
    many = Measurement(samples_ns=(10_000,) * 8, waited_ns=(70_000,) * 8)
    assert 0 < many.estimate.low_ns < 1_000

"""Time that other work on the machine does not stretch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter_ns, sleep

import pytest

from breakeven.measure import PoolWaits, StepTimer, own_time_ns
from breakeven.timing import Measurement
from factories.scripted_clock import ScriptedClock

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


def test_each_thread_has_a_time_and_one_file_while_it_lives() -> None:
    own_time_ns()
    num_open = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    found: list[int] = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: found.append(own_time_ns()))
        thread.start()
        thread.join()
    assert len(found) == 20
    if num_open:
        assert len(list(Path("/proc/self/fd").iterdir())) < num_open + 10


@needs_schedstat
def test_time_goes_on_where_a_script_closes_what_it_did_not_open() -> None:
    script = (
        "import os\n"
        "from breakeven.measure import PoolWaits, own_time_ns\n"
        "pool = PoolWaits()\n"
        "before = own_time_ns(), pool.waited_ns()\n"
        "os.closerange(3, 100)\n"
        "times = [own_time_ns() for _ in range(10_000)]\n"
        "assert times == sorted(times) and times[-1] > before[0]\n"
        "assert pool.waited_ns() >= before[1]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@needs_schedstat
def test_waiting_of_a_pool_is_that_of_its_threads() -> None:
    """Two threads of torch on one processor wait for each other."""
    script = (
        "import os\n"
        "import torch\n"
        "from breakeven.measure import PoolWaits\n"
        "torch.set_num_threads(2)\n"
        "product = torch.ones(600, 600)\n"
        "product @ product\n"
        "for thread in os.listdir('/proc/self/task'):\n"
        "    os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})\n"
        "pool = PoolWaits()\n"
        "before_ns = pool.waited_ns()\n"
        "for _ in range(50):\n"
        "    product @ product\n"
        "print(pool.waited_ns() - before_ns, pool.num_readings)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60
    )
    waited_ns, num_readings = map(int, done.stdout.split())
    assert num_readings > 1
    assert waited_ns > 1_000_000


class ScriptedPool(PoolWaits):
    """Waits that are given, of which each so many are read."""

    def __init__(self, waited_ns: list[int], read_every: int = 1) -> None:
        super().__init__()
        self._given = iter(waited_ns)
        self._last_ns = self._read_ns = 0
        self._read_every = read_every
        self._num_asked = 0

    def waited_ns(self) -> int:
        """Return the next of them, and the last one over and over."""
        self._last_ns = next(self._given, self._last_ns)
        if not self._num_asked % self._read_every:
            self._read_ns = self._last_ns
            self.num_readings += 1
        self._num_asked += 1
        return self._read_ns


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


def test_waiting_that_is_read_rarely_belongs_to_all_samples_between() -> None:
    """Steps of 1 ms wait for 0.9 ms of it each; only every fifth time that is read."""
    clock = ScriptedClock([0], then_every_ns=1_000_000)
    waits_ns = [900_000 * number for number in range(1_000)]
    timer = StepTimer(clock, budget_s=0.05, pool=ScriptedPool(waits_ns, read_every=5))
    while not timer.mark(0):
        pass
    measurement = timer.measurement()
    assert measurement is not None
    assert measurement.is_disturbed
    assert measurement.estimate.low_ns < 200_000


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
    # Of few samples the interval is no narrower than of as many that nothing disturbed.
    few = Measurement(samples_ns=(100, 110), waited_ns=(3, 3)).estimate
    calm = Measurement(samples_ns=(100, 110)).estimate
    assert (few.low_ns, few.high_ns) == (calm.low_ns, calm.high_ns)
    # Something of a step is its own in any case.
    many = Measurement(samples_ns=(10_000,) * 8, waited_ns=(70_000,) * 8)
    assert 0 < many.estimate.low_ns < 1_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_thread_that_asks_is_none_of_the_pool_in_a_forked_process_either() -> None:
    process = os.fork()
    if process == 0:
        waits = PoolWaits()
        waits.waited_ns()
        os._exit(threading.get_native_id() in waits._waits)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0

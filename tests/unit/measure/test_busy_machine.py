"""Time that other work on the machine does not stretch, the share of that, and pages."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, sleep
from types import SimpleNamespace

import pytest

from breakeven.measure import OtherLoad, PageFaults, PoolWaits, StepTimer, busy_machine, own_time_ns
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


def printed_by(program: str) -> str:
    """Return what a program of its own prints."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=60).stdout


@needs_schedstat
def test_waiting_for_a_processor_is_left_out() -> None:
    # Two share a processor, so that each gets about half of it.
    # Further load leaves it less.
    assert 0.0 < float(printed_by(BESIDE)) < 0.8


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
    printed_by("""
import os
from breakeven.measure import PoolWaits, own_time_ns
pool = PoolWaits()
before = own_time_ns(), pool.waited_ns()
os.closerange(3, 100)
times = [own_time_ns() for _ in range(10_000)]
assert times == sorted(times) and times[-1] > before[0]
assert pool.waited_ns() >= before[1]
""")


@needs_schedstat
def test_waiting_of_a_pool_is_that_of_its_threads() -> None:
    """Two threads of torch on one processor wait for each other."""
    printed = printed_by("""
import os
import torch
from breakeven.measure import PoolWaits
torch.set_num_threads(2)
product = torch.ones(600, 600)
product @ product
for thread in os.listdir('/proc/self/task'):
    os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
pool = PoolWaits()
before_ns = pool.waited_ns()
for _ in range(50):
    product @ product
print(pool.waited_ns() - before_ns, pool.num_readings)
""")
    waited_ns, num_readings = map(int, printed.split())
    assert num_readings > 1
    assert waited_ns > 1_000_000


def test_waits_during_a_pause_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PoolWaits()
    waited_ns = iter([0, 10, 1_000, 1_003])
    thread = SimpleNamespace(read_ns=lambda: next(waited_ns))
    monkeypatch.setattr(pool, "_look", lambda: None)
    monkeypatch.setattr(pool, "_waits", {1: thread})
    monkeypatch.setattr(pool, "_known_ns", {1: 0})
    pool._read()
    pool.pause()
    pool.resume()
    pool._read()
    assert pool._total_ns == 13


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


def measured(clock: ScriptedClock, budget_s: float, pool: ScriptedPool) -> Measurement:
    timer = StepTimer(clock, budget_s, pool=pool)
    while not timer.mark(0):
        pass
    measurement = timer.measurement()
    assert measurement is not None
    return measurement


def test_samples_that_were_held_up_do_not_count() -> None:
    # Every third step waits for 9 of its 10 ms.
    times_ns = [0]
    waits_ns = [0]
    for number in range(30):
        is_held_up = number % 3 == 2
        times_ns.append(times_ns[-1] + (10_000_000 if is_held_up else 1_000_000))
        waits_ns.append(waits_ns[-1] + (9_000_000 if is_held_up else 0))
    measurement = measured(ScriptedClock(times_ns), 0.1, ScriptedPool(waits_ns))
    assert not measurement.is_disturbed
    assert set(measurement.steady_ns) == {1_000_000}


def test_waiting_that_is_read_rarely_belongs_to_all_samples_between() -> None:
    """Steps of 1 ms wait for 0.9 ms of it each; only every fifth time that is read."""
    clock = ScriptedClock([0], then_every_ns=1_000_000)
    waits_ns = [900_000 * number for number in range(1_000)]
    measurement = measured(clock, 0.05, ScriptedPool(waits_ns, read_every=5))
    assert measurement.is_disturbed
    assert measurement.estimate.low_ns < 200_000


def test_a_quiet_moment_is_waited_for() -> None:
    clock = ScriptedClock([0], then_every_ns=10_000_000)
    busy = [9_000_000 * number for number in range(13)]  # and quiet from then on
    measurement = measured(clock, 0.1, ScriptedPool(busy))
    assert len(measurement.samples_ns) > 15  # 10 were enough on a quiet machine
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


Tell = Callable[..., None]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Return a function that says what the system counts, in seconds of all processors."""
    path = tmp_path / "stat"
    monkeypatch.setattr(busy_machine, "_STATISTICS", path)

    def write(*, others: float = 0.0, own: float = 0.0, idle: float = 0.0) -> None:
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        user, rest = (round(value * ticks_per_s) for value in (own + others, idle))
        # Half of the rest is waiting for disks; guest time, the last but one, is in user time.
        path.write_text(f"cpu  {user} 0 0 {rest // 2} {rest - rest // 2} 0 0 0 {user} 0\ncpu0 1\n")
        times = SimpleNamespace(user=own, system=0.0, children_user=0.0, children_system=0.0)
        monkeypatch.setattr(os, "times", lambda: times)

    return write


@pytest.mark.parametrize(
    ("others", "own", "idle", "fraction"),
    [
        (0.0, 1.0, 1.0, 0.0),
        (1.0, 1.0, 2.0, 0.25),
        (2.0, 0.0, 2.0, 0.5),
        (4.0, 0.0, 0.0, 1.0),
        # The counters of the system and of the process tick apart.
        (-0.1, 1.0, 1.0, 0.0),
        (0.0, 0.0, 0.0, 0.0),
    ],
)
def test_fraction_is_the_time_of_others_over_all_time(
    tell: Tell, others: float, own: float, idle: float, fraction: float
) -> None:
    tell(others=500.0, own=3.0, idle=900.0)
    load = OtherLoad()
    tell(others=500.0 + others, own=3.0 + own, idle=900.0 + idle)
    assert load.fraction() == pytest.approx(fraction, abs=0.01)


def test_system_that_does_not_tell_counts_as_quiet(tmp_path: Path, tell: Tell) -> None:
    load = OtherLoad()
    assert load.fraction() == 0.0
    tell(others=1.0)
    assert load.fraction() == 0.0
    counting = OtherLoad()
    (tmp_path / "stat").write_text("")
    assert counting.fraction() == 0.0


def test_a_pause_is_not_counted(tell: Tell) -> None:
    tell()
    load = OtherLoad()
    tell(own=1.0, idle=1.0)
    load.pause()
    tell(own=1.0, others=8.0, idle=2.0)
    load.resume()
    tell(own=2.0, others=9.0, idle=2.0)
    # 2 s before the pause and 2 s after it, 1 s of which went to others.
    assert load.fraction() == pytest.approx(0.25, abs=0.01)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system does not tell")
def test_living_processes_of_the_group_are_counted_where_that_is_asked() -> None:
    # What ends meanwhile, such as a compiler of a test beside this one, takes its time with it.
    assert any(_counts_a_process() for _ in range(5))


def _counts_a_process() -> bool:
    before_s = busy_machine._others_of_group_s()
    spin = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{spin}\nprint(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    found_s = busy_machine._others_of_group_s() - before_s
    child.communicate(b"\n")
    return found_s > 0.2


_PAGES = 64


def _touch_new_pages() -> None:
    with mmap.mmap(-1, _PAGES * mmap.PAGESIZE) as memory:
        for page in range(_PAGES):
            memory[page * mmap.PAGESIZE] = 1


# The first steps do not count, and one step says nothing.
@pytest.mark.parametrize(
    ("num_steps", "num_touching", "low", "high"),
    [(16, 16, _PAGES, 2 * _PAGES), (16, 2, 0, _PAGES / 4), (1, 1, 0, 1)],
)
def test_new_pages_of_a_step_are_counted(
    num_steps: int, num_touching: int, low: float, high: float
) -> None:
    faults = PageFaults()
    for step in range(1, num_steps + 1):
        if step <= num_touching:
            _touch_new_pages()
        faults.mark(step)
    assert low <= faults.per_step(num_steps) < high

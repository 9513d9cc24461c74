from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from breakeven.measure import OtherLoad
from breakeven.measure import busy_machine as module

Tell = Callable[..., None]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Return a function that says what the system counts, in seconds of all processors."""
    path = tmp_path / "stat"
    monkeypatch.setattr(module, "_STATISTICS", path)

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
    before_s = module._others_of_group_s()
    spin = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{spin}\nprint(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    found_s = module._others_of_group_s() - before_s
    child.communicate(b"\n")
    return found_s > 0.2

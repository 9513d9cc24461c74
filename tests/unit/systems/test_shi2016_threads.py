"""How many threads are tried on this CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakeven.processor import num_physical_cores
from breakeven.systems.shi2016 import thread_counts
from breakeven.systems.shi2016_claims import gains

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system does not tell a process's processors"
)


@pytest.mark.parametrize(
    ("num_cores", "counts"),
    [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 64))],
)
def test_powers_of_two_up_to_the_cores(num_cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(num_cores) == counts


def topology(folder: Path, siblings: dict[int, str]) -> Path:
    for number, text in siblings.items():
        place = folder / f"cpu{number}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{text}\n")
    return folder


@needs_affinity
def test_two_threads_of_a_core_are_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert num_physical_cores(folder) == 2


@needs_affinity
def test_only_cores_that_the_process_may_use_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = topology(tmp_path, {0: "0", 1: "1", 2: "2", 3: "3"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert num_physical_cores(folder) == 1


@needs_affinity
def test_where_the_kernel_does_not_tell_each_processor_is_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert num_physical_cores(tmp_path) == 3


def test_gains_are_factors_from_each_time_to_the_next() -> None:
    assert gains((8.0, 4.0, 5.0)) == (2.0, 0.8)
    assert gains((8.0,)) == ()

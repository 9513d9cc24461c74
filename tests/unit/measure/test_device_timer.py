"""The time of a call on a GPU: the order in which its queue is filled, marked and waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from breakeven.errors import BreakevenError
from breakeven.measure import DeviceTimer
from breakeven.measure import device_timer as home


def test_on_a_cpu_the_hosts_clock_counts() -> None:
    calls: list[int] = []
    found = DeviceTimer(torch.device("cpu")).time_call(lambda: calls.append(1), budget_s=0.01)
    assert found.time_ns > 0
    # One to warm up, one alone, ten together.
    assert found.num_calls + 12 == len(calls)
    assert found.spread >= 1


class Backend:
    """A backend whose events say that a block of calls took 3 ms."""

    def __init__(self, *, can_sleep: bool, num_begun: int = 0) -> None:
        self.told: list[str] = []
        # Blocks that the device begins before all of it is issued.
        self.num_begun = num_begun
        self.Event = self._event
        self.device: Any = lambda _: nullcontext()
        if can_sleep:
            self._sleep = lambda cycles: self.told.append("sleep")

    def _event(self, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        return SimpleNamespace(
            record=lambda: self.told.append("record"),
            elapsed_time=lambda _: 3.0,
            query=self._has_begun,
        )

    def _has_begun(self) -> bool:
        self.num_begun -= 1
        return self.num_begun >= 0

    def synchronize(self, device: torch.device) -> None:
        assert device.type == "cuda"
        self.told.append("wait")


@pytest.mark.parametrize("can_sleep", [True, False])
def test_events_time_a_block_that_was_issued_into_a_full_queue(
    monkeypatch: pytest.MonkeyPatch, can_sleep: bool
) -> None:
    backend = Backend(can_sleep=can_sleep)
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    square = torch.zeros(2, 2)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: square)
    monkeypatch.setattr(torch, "mm", lambda *_: backend.told.append("sleep"))
    for name, value in (("_MOST_CALLS", 2), ("_FIRST_CALLS", 1), ("_NUM_FILLS_TIMED", 1),
                        ("_MOST_FILLS", 1)):  # fmt: skip
        monkeypatch.setattr(home, name, value)
    monkeypatch.setattr(home, "perf_counter_ns", count(0, 1_000).__next__)
    timer = DeviceTimer(torch.device("cuda", 0))
    backend.told.clear()
    found = timer.time_call(lambda: backend.told.append("call"), budget_s=0.0)
    assert found.time_ns == 1.5e6
    assert found.num_calls == 4
    warm_up = ["call", *["wait", "call", "wait"] * 2, "wait", "sleep", "wait"]
    block = ["sleep", "record", "call", "call", "record", "wait"]
    assert backend.told == [*warm_up, *block * 2]


def test_a_block_into_which_the_host_came_is_timed_again_behind_a_longer_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Backend(can_sleep=True, num_begun=2)
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    for name, value in (("_MOST_CALLS", 1), ("_FIRST_CALLS", 1), ("_LEAST_BLOCKS", 2),
                        ("_LEAST_FILL_NS", 1.0), ("_FILL_FACTOR", 0.0)):  # fmt: skip
        monkeypatch.setattr(home, name, value)
    monkeypatch.setattr(home, "perf_counter_ns", count(0, 1_000).__next__)
    timer = DeviceTimer(torch.device("cuda", 0))
    backend.told.clear()
    found = timer.time_call(lambda: backend.told.append("call"), budget_s=0.0)
    assert found.num_calls == 2
    block = ["record", "call", "record", "wait"]
    expected = [told for number in (1, 2, 4, 4) for told in (*["sleep"] * number, *block)]
    assert backend.told[-len(expected) :] == expected


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_a_backend_without_events_that_tell_the_time_is_timed_from_wait_to_wait(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    told: list[str] = []

    def elapsed_time(_: object) -> float:
        raise NotImplementedError("elapsed_time is not supported by XPUEvent.")

    def event(*, enable_timing: bool) -> SimpleNamespace:
        assert kind != "mps"
        return SimpleNamespace(record=lambda: None, elapsed_time=elapsed_time)

    backend = SimpleNamespace(synchronize=lambda *_: told.append("wait"), Event=event)
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    monkeypatch.setattr(home, "_MOST_CALLS", 1)
    monkeypatch.setattr(home, "_FIRST_CALLS", 1)
    timer = DeviceTimer(torch.device(kind))
    told.clear()
    found = timer.time_call(lambda: told.append("call"), budget_s=10.0, fills_queue=True)
    assert found.num_calls == 40
    assert told == ["call", *["wait", "call", "wait"] * 42]


def test_the_device_that_is_timed_is_the_current_one_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Backend(can_sleep=True)
    current: list[torch.device] = []

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    backend.device = device
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    second = torch.device("cuda", 1)
    timer = DeviceTimer(second)
    seen: list[torch.device] = []
    record = backend.Event(enable_timing=True).record
    monkeypatch.setattr(backend, "synchronize", seen.append)
    monkeypatch.setattr(backend, "_sleep", lambda _: seen.append(current[-1]))
    timer.time_call(lambda: (record(), seen.append(current[-1])), budget_s=0.0)
    timer.synchronize()
    assert {*seen} == {second}
    assert current == []


def test_what_takes_too_long_is_not_timed() -> None:
    calls: list[int] = []

    def slow() -> None:
        calls.append(1)
        sleep(0.01)

    with pytest.raises(BreakevenError, match=r"a call takes .* ms: not timed"):
        DeviceTimer(torch.device("cpu")).time_call(slow, budget_s=0.1, most_s=0.005)
    assert len(calls) == 2


def test_of_a_call_that_takes_longer_than_the_budget_few_are_timed() -> None:
    found = DeviceTimer(torch.device("cpu")).time_call(lambda: sleep(0.02), budget_s=0.001)
    assert found.num_calls == 2
    assert found.time_ns > 1.5e7

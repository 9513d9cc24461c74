"""The time of a call on a GPU: the order in which its queue is filled, marked and waited for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from breakeven.measure import DeviceTimer
from breakeven.measure import device_timer as home


def test_on_a_cpu_the_hosts_clock_counts() -> None:
    calls: list[int] = []
    found = DeviceTimer(torch.device("cpu")).time_call(lambda: calls.append(1), budget_s=0.01)
    assert found.time_ns > 0
    assert found.num_calls + 3 == len(calls)
    assert found.spread >= 1


class Backend:
    """A backend whose events say that a block of calls took 3 ms."""

    def __init__(self, *, can_sleep: bool) -> None:
        self.told: list[str] = []
        self.Event = self._event
        if can_sleep:
            self._sleep = lambda cycles: self.told.append("sleep")

    def _event(self, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        return SimpleNamespace(
            record=lambda: self.told.append("record"), elapsed_time=lambda _: 3.0
        )

    def synchronize(self) -> None:
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
    monkeypatch.setattr(home, "_MOST_CALLS", 2)
    timer = DeviceTimer(torch.device("cuda", 0))
    found = timer.time_call(lambda: backend.told.append("call"), budget_s=0.0)
    assert found.time_ns == 1.5e6
    assert found.num_calls == 10
    block = ["sleep", "record", "call", "call", "record", "wait"]
    assert backend.told == ["call", "call", "wait", "call", "wait", *block * 5]


def test_a_backend_without_events_is_timed_from_wait_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    backend = SimpleNamespace(synchronize=lambda: told.append("wait"))
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    monkeypatch.setattr(home, "_MOST_CALLS", 1)
    found = DeviceTimer(torch.device("mps")).time_call(lambda: told.append("call"), budget_s=0.0)
    assert found.num_calls == 5
    assert told == ["call", "call", "wait", "call", "wait", *["wait", "call", "wait"] * 5]

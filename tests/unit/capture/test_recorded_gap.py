"""What lies between two steps, recorded in place of a step."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from breakeven.capture import TracedRun
from breakeven.capture.record import step_tracer
from breakeven.capture.record.device_map import DEVICE, DeviceMap
from breakeven.capture.record.operators import run_on_cpu
from breakeven.capture.record.recorder import StepRecorder
from breakeven.capture.sessions.in_process import _request
from breakeven.capture.sessions.traced import TracedSession
from breakeven.studies.host_work import before_step
from breakeven.trace import Copy, HostWork, Op, Phase, Sync

STEPS_PER_ROLLOUT = 4


def record_after(
    num_updates: int, *, num_observations: int = 40, is_moved: bool = False
) -> TracedRun | None:
    """Train a policy by rollouts, each before so many steps, and record what is asked for."""
    request = replace(
        _request("made up"), is_moved=is_moved, is_traced=True, records_after=num_updates
    )
    is_done = threading.Event()
    with TracedSession(request, is_done.set) as session:
        place = "cpu" if is_moved else "cuda"
        policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(place)
        optimizer = torch.optim.SGD(policy.parameters(), 0.1)
        for _ in range(4):
            with torch.no_grad():
                for _ in range(num_observations):
                    policy(torch.zeros(1, 4).to(place)).argmax().item()
            for _ in range(STEPS_PER_ROLLOUT):
                optimizer.zero_grad()
                policy(torch.zeros(16, 4, device=place)).mean().backward()
                optimizer.step()
                if is_done.is_set():
                    return session.result()
        return session.result()


def step_of() -> TracedRun:
    found = record_after(1)
    assert found is not None
    return found


def test_what_follows_an_update_is_recorded_up_to_the_next() -> None:
    step, rollout = step_of(), record_after(STEPS_PER_ROLLOUT)
    assert rollout is not None
    assert rollout.recorded_fraction == 1.0
    own = before_step(rollout.trace.events, step.trace.events)
    assert len(own) + len(step.trace.events) == pytest.approx(len(rollout.trace.events), abs=3)
    # Each observation is copied up, and each action read back.
    assert sum(isinstance(event, Copy) and event.is_to_device for event in own) == 40
    assert sum(isinstance(event, Sync) for event in own) == 40
    assert {event.phase for event in own if isinstance(event, Op)} == {Phase.FORWARD}
    nothing = before_step(step.trace.events, step.trace.events)
    assert all(isinstance(event, HostWork) for event in nothing)


def test_a_part_of_what_goes_on_for_long_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    step, whole = step_of(), record_after(4, num_observations=30)
    monkeypatch.setattr(step_tracer, "_MOST_BETWEEN_EVENTS", 256)
    part = record_after(4, num_observations=400)
    assert whole is not None
    assert part is not None
    assert not any(event.phase is Phase.BACKWARD for event in part.trace.events)
    # Of all that is done, some thousand events, as many as of the whole one.
    per_observation = len(part.trace.events) / (part.recorded_fraction * 400)
    num_own = len(whole.trace.events) - len(step.trace.events)
    assert per_observation == pytest.approx(num_own / 30, rel=0.2)


def test_what_never_uses_a_gpu_is_recorded_as_if_moved() -> None:
    rollout = record_after(STEPS_PER_ROLLOUT, is_moved=True)
    assert rollout is not None
    assert rollout.trace.uses_device
    assert sum(isinstance(event, Sync) for event in rollout.trace.events) >= 40


def test_a_script_that_ends_before_has_no_gap() -> None:
    assert record_after(17) is None


def drawn(generator: torch.Generator | None) -> tuple[list[int], int]:
    """Return numbers that are drawn while they are recorded, and how often that was computed."""
    computed: list[str] = []

    def run(func: Any, name: str, args: Any, kwargs: Any) -> Any:
        computed.append(name)
        return run_on_cpu(func, name, args, kwargs)

    weights = torch.ones(4, 100)
    with StepRecorder(DeviceMap(DEVICE), run):
        indices = torch.multinomial(weights, 1, generator=generator)
    return indices.flatten().tolist(), computed.count("aten.multinomial")


def test_what_draws_is_timed_again_and_draws_the_same() -> None:
    torch.manual_seed(0)
    numbers, count = drawn(None)
    after = torch.rand(3)
    assert count == 2
    torch.manual_seed(0)
    assert torch.multinomial(torch.ones(4, 100), 1).flatten().tolist() == numbers
    assert torch.equal(torch.rand(3), after)
    # A generator of the script's own would go on.
    assert drawn(torch.Generator().manual_seed(0))[1] == 1

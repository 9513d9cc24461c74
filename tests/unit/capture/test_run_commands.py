"""The run of a script to its end: how it begins, and the count of steps behind its live line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from breakeven.capture.process.run_to_end import EndRequest, StepCounter, _clock, become_script
from breakeven.trace import Configuration


@pytest.mark.parametrize(
    ("updates", "num_steps"),
    [
        ("", 0),
        ("AAAA", 4),
        ("ABABAB", 3),  # a GAN
        ("CCCGCCCG", 6),  # a critic that is updated more often
        ("AAABBB", 5),  # one training after another: the first step of the next is not told apart
    ],
)
def test_a_round_of_all_optimizers_is_a_step(updates: str, num_steps: int) -> None:
    counter = StepCounter()
    for time_s, optimizer in enumerate(updates):
        counter.count(ord(optimizer), float(time_s))
    assert counter.num_steps == num_steps


def test_speed_is_from_the_first_step_to_the_last() -> None:
    counter = StepCounter()
    assert counter.steps_per_s == 0
    # What comes before the first step, such as reading the data, is no part of its speed.
    counter.count(1, 100.0)
    assert counter.steps_per_s == 0
    for number in range(1, 5):
        counter.count(1, 100.0 + number / 2)
    assert counter.steps_per_s == 2.0


@pytest.mark.parametrize(
    ("duration_s", "text"), [(0.4, "0:00"), (61.6, "1:02"), (3600, "1:00:00"), (1e6, "277:46:40")]
)
def test_time_left_as_a_clock_shows_it(duration_s: float, text: str) -> None:
    assert _clock(duration_s) == text


def test_where_a_process_cannot_be_replaced_it_waits_for_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def call(command: list[str]) -> int:
        commands.append(command)
        return 7

    refuse: Callable[..., None] = pytest.fail
    monkeypatch.delattr(os, "fork", raising=False)
    monkeypatch.setattr(os, "execv", refuse)
    monkeypatch.setattr(subprocess, "call", call)
    request = EndRequest(
        is_module=False, device="cpu", has_cuda=False, configuration=Configuration(),
        num_steps=0, is_quiet=True,
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        become_script(request, "train.py", ["--lr", "1"])
    assert ended.value.code == 7
    assert commands[0][-3:] == ["train.py", "--lr", "1"]

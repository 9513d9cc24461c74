"""Interleaved runs take turns: in order, to the end of both, each on a clock of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from itertools import count

import pytest

from breakeven.capture import FailureKind, RunFailure, alternate
from breakeven.capture.messages import Answer
from breakeven.capture.sessions.interleaved_runs import TurnClock, Turns
from breakeven.measure import PoolWaits
from breakeven.timing import TurnKind
from factories.scripted_clock import ScriptedClock


def _run(name: str, num_turns: int, log: list[str]) -> Generator[None, None, Answer]:
    for turn in range(num_turns):
        log.append(f"{name}{turn}")
        yield
    log.append(f"{name} answers")
    return RunFailure(kind=FailureKind.NO_STEP, message=name)


def test_turns_go_back_and_forth_until_both_have_answered() -> None:
    log: list[str] = []
    ticks = count()
    runs = _run("a", 2, log), _run("b", 4, log)
    first, second = alternate(runs, TurnKind.LONG, clock_ns=lambda: next(ticks))
    assert log == ["a0", "b0", "a1", "b1", "a answers", "b2", "b3", "b answers"]
    assert [first[0].message, second[0].message] == ["a", "b"]  # pyright: ignore
    # Of a clock that ticks at each look, a turn takes one.
    assert (first[1], second[1]) == (3, 5)


@pytest.mark.parametrize(
    ("kind", "turn_ns"), [(TurnKind.SHORT, 4_000_000), (TurnKind.LONG, 60_000_000)]
)
def test_a_clock_stands_still_while_the_other_run_has_its_turn(
    kind: TurnKind, turn_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(
        "breakeven.capture.sessions.interleaved_runs.perf_counter_ns", lambda: now[0]
    )
    turn_read, turn_write = os.pipe()
    answer_read, answer_write = os.pipe()
    turns = Turns(turn_read, lambda _: os.write(answer_write, b"."), kind)

    def grant_turn() -> None:
        os.read(answer_read, 100)
        now[0] += 500_000_000
        os.write(turn_write, b".")

    for duration_ns, paused_ns in ((None, 500), (turn_ns - 1, 500), (1, 1_000)):
        is_pause = turns.paused_ns < paused_ns * 1_000_000
        granting = threading.Thread(target=grant_turn)
        if is_pause:
            granting.start()
        if duration_ns is None:
            turns.wait()
        else:
            now[0] += duration_ns
            turns.end_step(None)
        assert turns.paused_ns == paused_ns * 1_000_000
        if is_pause:
            granting.join()
    for fd in (turn_read, turn_write, answer_read, answer_write):
        os.close(fd)


def test_counters_of_load_pause_during_the_other_runs_turn() -> None:
    turn_read, turn_write = os.pipe()
    calls: list[str] = []

    def send(_: object) -> None:
        calls.append("turn ends")
        os.write(turn_write, b".")

    class Counter(PoolWaits):
        def pause(self) -> None:
            calls.append("pause")

        def resume(self) -> None:
            calls.append("resume")

    Turns(turn_read, send, TurnKind.LONG).wait(None, Counter())
    assert calls == ["pause", "turn ends", "resume"]
    os.close(turn_read)
    os.close(turn_write)


def test_what_a_clock_leaves_out_of_a_pause_is_left_out_once() -> None:
    """A run that wakes up beside other work waits for its processor: not its own clock's time."""
    turn_read, turn_write = os.pipe()
    turns = Turns(turn_read, lambda _: os.write(turn_write, b"."), TurnKind.LONG)
    # It stood still for all of the pause but 3 ns, however long that was.
    clock = TurnClock(ScriptedClock([1_000, 1_003, 1_010, 1_025]), turns)
    turns.wait()
    assert (clock.now_ns(), clock.now_ns()) == (1_007, 1_022)
    os.close(turn_read)
    os.close(turn_write)


def test_the_time_of_a_turn_that_is_waited_for_counts_as_paused() -> None:
    """A run must not reach its time limit while the other one compiles."""
    turn_read, turn_write = os.pipe()
    answer_read, answer_write = os.pipe()
    turns = Turns(turn_read, lambda _: os.write(answer_write, b"."), TurnKind.SHORT)
    waiting = threading.Thread(target=turns.wait)
    waiting.start()
    os.read(answer_read, 100)
    before_ns = turns.paused_ns
    while turns.paused_ns <= before_ns:
        pass
    os.write(turn_write, b".")
    waiting.join()
    after_ns = turns.paused_ns
    assert after_ns > before_ns
    assert turns.paused_ns == after_ns
    for fd in (turn_read, turn_write, answer_read, answer_write):
        os.close(fd)

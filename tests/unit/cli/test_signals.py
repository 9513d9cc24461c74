from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from breakeven.cli import dispatch
from breakeven.cli.dispatch import EndingSignal, EndingSignals

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def time_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time in a list, to be changed."""
    now = [1_000.0]
    monkeypatch.setattr(dispatch, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_raises_where_the_program_stands(number: signal.Signals) -> None:
    signals = EndingSignals()
    signals.listen()
    assert signals.exit_code == 0
    with pytest.raises(EndingSignal) as caught:
        os.kill(os.getpid(), number)
    assert caught.value.number == number
    assert signals.exit_code == 128 + number


def test_the_next_signal_does_not_disturb_the_way_out(time_s: list[float]) -> None:
    signals = EndingSignals()
    signals.listen()
    with pytest.raises(EndingSignal):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    # Long after, the first one must have been lost.
    time_s[0] += 60.0
    with pytest.raises(EndingSignal):
        os.kill(os.getpid(), signal.SIGINT)
    assert signals.exit_code == 128 + signal.SIGTERM


def test_a_signal_that_comes_in_a_finalizer_is_not_lost() -> None:
    class Ending:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGHUP)  # Python drops what a finalizer raises

    def end_and_wait() -> None:
        Ending()
        time.sleep(5.0)

    EndingSignals().listen()
    with pytest.raises(EndingSignal) as caught:
        end_and_wait()
    assert caught.value.number == signal.SIGHUP


def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    EndingSignals().listen()
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_program_that_has_ended_is_not_ended_again() -> None:
    signals = EndingSignals()
    signals.listen()
    signals.ignore()
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.exit_code == 0


def test_a_script_that_takes_over_has_the_handlers_of_before() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in ENDING]
    signals = EndingSignals()
    signals.listen()
    assert [signal.getsignal(number) for number in ENDING] != before
    signals.leave()
    assert [signal.getsignal(number) for number in ENDING] == before

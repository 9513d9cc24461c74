from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import msgspec
import pytest

from breakeven.capture import FailureKind, RunFailure
from breakeven.capture.failures import failure_in_frame, failure_of


def raised(path: Path, text: str) -> BaseException:
    """Return what a script raises."""
    path.write_text(text)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        exec(compile(text, str(path), "exec"), {})
    return caught.value


def test_breakevens_line_is_that_which_the_script_called(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = "from breakeven.units import format_duration\nformat_duration(None)\n"
    failure = failure_of(raised(path, text), num_steps=3)
    assert failure.location is not None
    assert (failure.location.file, failure.location.line) == (str(path), 2)
    assert failure.our_line is not None
    assert failure.our_line.file == "breakeven/units.py"
    assert "TypeError" in failure.traceback
    assert failure.num_steps == 3


def test_script_that_calls_nothing_of_breakevens_names_none_of_its_lines(tmp_path: Path) -> None:
    failure = failure_of(raised(tmp_path / "train.py", "1 / 0\n"), num_steps=0)
    assert failure.our_line is None
    assert (failure.exception, failure.missing) == ("ZeroDivisionError", "")


def test_module_is_absent_by_name_or_without_one(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    assert failure_of(raised(path, "import nowhere.at_all\n"), 0).missing == "nowhere"
    assert failure_of(raised(path, "raise ModuleNotFoundError('get it')\n"), 0).missing == ""


def stopped(path: Path, text: str) -> RunFailure:
    """Return what is told of a script that is ended where it calls ``stop()``."""
    path.write_text(text)
    failures: list[RunFailure] = []

    def stop() -> None:
        failures.append(failure_in_frame(FailureKind.TIME_LIMIT, "1 s", sys._getframe(1), 0))

    # In a thread, where no line of this file calls the script.
    script = threading.Thread(target=exec, args=(compile(text, str(path), "exec"), {"stop": stop}))
    script.start()
    script.join()
    return failures[0]


def test_script_that_is_ended_in_a_function_is_told_with_its_outermost_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.py"
    text = "def evaluate():\n    for _ in [0]:\n        stop()\n\n\nlosses = evaluate()\n"
    failure = stopped(path, text)
    assert failure.location is not None
    assert (failure.location.line, failure.source) == (3, "stop()")
    assert failure.caller is not None
    assert (failure.caller.file, failure.caller.line) == (str(path), 6)
    assert failure.caller_source == "losses = evaluate()"


def test_script_that_is_ended_in_its_own_line_has_no_caller(tmp_path: Path) -> None:
    failure = stopped(tmp_path / "train.py", "stop()\n")
    assert failure.source == "stop()"
    assert failure.caller is None


def test_traceback_keeps_its_lines_beside_a_message_without_end(tmp_path: Path) -> None:
    text = "def fail():\n    raise RuntimeError('backend not there ' * 1_000)\n\nfail()\n"
    told = failure_of(raised(tmp_path / "train.py", text), num_steps=0).traceback
    assert "in fail" in told
    assert told.rstrip().endswith("...")
    assert len(told) < 8_000


@pytest.fixture
def any_depth() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.timing
@pytest.mark.usefixtures("any_depth")
def test_recursion_without_end_is_told_by_its_end(tmp_path: Path) -> None:
    text = "def fall(depth):\n    return 1 // depth + fall(depth - 1)\n\nfall(100_000)\n"
    error = raised(tmp_path / "train.py", text)
    begun_s = perf_counter()
    failure = failure_of(error, num_steps=0)
    told_s = perf_counter()
    traceback.format_exception(error)
    assert told_s - begun_s < perf_counter() - told_s
    assert failure.exception == "ZeroDivisionError"
    assert failure.location is not None
    assert failure.location.line == 2
    assert "fall(depth - 1)" in failure.traceback


@pytest.mark.usefixtures("any_depth")
def test_where_a_deep_stack_stands_is_a_short_message() -> None:
    def stand(depth: int) -> RunFailure:
        if depth:
            return stand(depth - 1)
        return failure_in_frame(FailureKind.TIME_LIMIT, "1 s", sys._getframe(), 0)

    failure = stand(20_000)
    assert failure.location is not None
    assert failure.location.function == "stand"
    assert len(msgspec.json.encode(failure)) < 1_000


def test_words_that_are_no_unicode_can_be_sent(tmp_path: Path) -> None:
    failure = failure_of(raised(tmp_path / "train.py", "raise ValueError('\\udcff \\ud800')"), 0)
    assert msgspec.json.decode(msgspec.json.encode(failure), type=RunFailure) == failure


@pytest.mark.parametrize("raises", ["raise Odd", "raise SystemExit(Odd())"])
def test_what_cannot_be_shown_is_told_by_its_class(tmp_path: Path, raises: str) -> None:
    text = "class Odd(Exception):\n    def __str__(self):\n        raise KeyError\n" + raises
    failure = failure_of(raised(tmp_path / "train.py", text), 0)
    assert failure.message == "<Odd without words>"
    assert failure.location is not None
    assert failure.location.line == 4

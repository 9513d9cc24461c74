from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.capture._failure_facts import failure_of


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


def test_traceback_keeps_its_lines_beside_a_message_without_end(tmp_path: Path) -> None:
    text = "def fail():\n    raise RuntimeError('backend not there ' * 1_000)\n\nfail()\n"
    told = failure_of(raised(tmp_path / "train.py", text), num_steps=0).traceback
    assert "in fail" in told
    assert told.rstrip().endswith("...")
    assert len(told) < 8_000

from __future__ import annotations

import inspect
import pickle
import traceback

import msgspec
import pytest

from breakeven import errors
from breakeven.errors import (
    BreakevenError,
    Caveat,
    ScriptError,
    StoredDataError,
    UnknownDeviceError,
    UsageError,
)
from faststep.errors import FastStepError


def test_an_error_is_its_message_and_keeps_its_hint_apart() -> None:
    error = BreakevenError("no device called “t5”", hint="run breakeven devices")
    assert str(error) == "no device called “t5”"
    assert error.message == "no device called “t5”"
    assert error.hint == "run breakeven devices"


def test_an_error_needs_no_hint() -> None:
    assert BreakevenError("the disk is full").hint is None
    assert not hasattr(BreakevenError("the disk is full"), "__notes__")


@pytest.mark.parametrize("kind", [BreakevenError, ScriptError, FastStepError])
def test_a_traceback_shows_the_hint_once(kind: type[BreakevenError]) -> None:
    error = pickle.loads(pickle.dumps(kind("the disk is full", hint="remove a file")))
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert lines[-1] == "hint: remove a file"
    assert sum("remove a file" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (BreakevenError("x"), 3),
        (UsageError("x"), 2),
        (UnknownDeviceError("x"), 3),
        (ScriptError("x"), 3),
        (StoredDataError("x"), 3),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_all_else_with_3(
    error: BreakevenError, exit_code: int
) -> None:
    assert error.exit_code == exit_code


def test_every_error_of_the_module_can_be_caught_as_one() -> None:
    classes = [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, Exception)
    ]
    assert len(classes) >= 5
    assert all(issubclass(value, BreakevenError) for value in classes)


def test_a_script_error_says_where_and_what_the_script_printed() -> None:
    error = ScriptError(
        "the script failed", hint="mend it", file="train.py", line=7, output="epoch 1\n"
    )
    assert (error.file, error.line, error.output) == ("train.py", 7, "epoch 1\n")
    assert (error.message, error.hint) == ("the script failed", "mend it")


def test_a_script_error_without_a_place_has_none() -> None:
    error = ScriptError("the script never called an optimizer")
    assert (error.file, error.line, error.output, error.hint) == (None, None, "", None)


def test_a_caveat_is_a_frozen_value_that_survives_json() -> None:
    caveat = Caveat(code="uncosted-op", message="aten.foo has no cost of its own.")
    assert msgspec.json.decode(msgspec.json.encode(caveat), type=Caveat) == caveat
    with pytest.raises(AttributeError):
        caveat.code = "other"  # type: ignore[misc]

"""A loop that is changed in memory has the lines of its file."""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest

from breakeven.rewrite import NoPatch, code_of_fast_step

SCRIPT = '''\
"""Train."""
import torch


def train(loader, model, criterion, optimizer):
    """Train for an epoch."""
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        # Forward.
        output = model(x)
        loss = criterion(
            output,
            y,
        )
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running


def main(loader):
    model = torch.nn.Linear(4, 1)
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters())
    for epoch in range(2):
        print(train(loader, model, criterion, optimizer))


def after():
    raise KeyError("after")
'''


class _Step:
    def __init__(self, *_: object, **__: object) -> None:
        self.num_steps = 0

    def __call__(self, *_: object) -> Any:
        self.num_steps += 1
        if self.num_steps == 3:
            raise ValueError("in the third step")
        return types.SimpleNamespace(item=lambda: 1.0)


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names of the script after its code with a fast step ran."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    code = code_of_fast_step(path.read_bytes(), str(path))
    assert isinstance(code, types.CodeType)
    monkeypatch.setattr(sys.modules["breakeven"], "fast_step", _Step, raising=False)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "trained"}
    exec(code, names)
    return names


def _line(text: str) -> int:
    return next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def test_functions_begin_at_their_lines(changed: dict[str, Any]) -> None:
    for name in ("train", "main", "after"):
        assert changed[name].__code__.co_firstlineno == _line(f"def {name}(")
    assert inspect.getsource(changed["after"]) == "".join(SCRIPT.splitlines(True)[-2:])
    assert inspect.getsource(changed["train"]).startswith("def train(loader, model, criterion, opt")


def test_a_traceback_shows_the_lines_of_the_file(
    changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="third") as caught:
        changed["main"]([(0, 0), (1, 1)])
    assert capsys.readouterr().out == "2.0\n"  # the step was called
    frames = traceback.extract_tb(caught.value.__traceback__)
    of_file = [
        (frame.lineno, frame.line) for frame in frames if frame.filename.endswith("train.py")
    ]
    assert of_file == [
        (_line("print(train("), "print(train(loader, model, criterion, optimizer))"),
        (_line("loss = criterion("), "loss = criterion("),
    ]
    shown = "".join(traceback.format_exception(caught.value))
    assert "^^^" not in shown.partition("loss = criterion(\n")[2].partition("\n")[0]
    with pytest.raises(KeyError) as caught:
        changed["after"]()
    assert caught.tb.tb_next is not None
    assert caught.tb.tb_next.tb_lineno == _line("raise KeyError")


def test_every_line_that_runs_is_one_of_the_file(changed: dict[str, Any]) -> None:
    lines = SCRIPT.splitlines()
    codes = [changed[name].__code__ for name in ("train", "main", "after")]
    found = {line for code in codes for _, _, line in code.co_lines() if line is not None}
    assert max(found) <= len(lines)
    # What is gone has no code of its own but the line in whose place the step is called.
    gone = ("optimizer.zero_grad()", "output = model(x)", "loss.backward()", "optimizer.step()")
    assert not found & {_line(text) for text in gone}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"import torch\n", "does not call backward"),
        (b"x = '\xff'\n", "UTF-8"),
        (b"def f(:\n", "cannot be parsed"),
    ],
)
def test_what_cannot_be_changed_says_why(source: bytes, reason: str) -> None:
    found = code_of_fast_step(source, "train.py")
    assert isinstance(found, NoPatch)
    assert reason in found.reason


def test_statements_of_every_kind_keep_their_lines() -> None:
    more = """

def other(value, *rest, key=None, **named):
    match value:
        case {"a": first, **others} if first:
            return [one for one in others]
        case [int(), *_] | None:
            pass
    try:
        from os import path as here
    except* OSError as error:
        raise
    return f"{value!r:>{key}}"
"""
    code = code_of_fast_step((SCRIPT + more).encode(), "train.py")
    plain = compile(SCRIPT + more, "train.py", "exec")
    assert isinstance(code, types.CodeType)

    def lines(whole: types.CodeType) -> list[Any]:
        (own,) = (c for c in whole.co_consts if getattr(c, "co_name", "") == "other")
        return list(own.co_positions())

    assert lines(code) == lines(plain)

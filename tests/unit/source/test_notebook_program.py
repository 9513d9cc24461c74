"""The program of a notebook: its cells, the lines that are not Python, and their numbers."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import ScriptError
from breakeven.source import notebook_of, read_notebook
from breakeven.trace import CELL_LINES, Location, line_text, line_words
from factories.notebooks import write_notebook


def program(*cells: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the Python code of the cells, and the skipped lines."""
    found = notebook_of(dict(enumerate(cells, start=1)), "a.ipynb")
    return list(found.cells.values()), found.skipped


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("%matplotlib inline", "pass"),
        ("  %load_ext tensorboard", "  pass"),
        ("!pip install -q 'torch>=2'", "pass"),
        ("!echo it's", "pass"),
        ("model?", "pass"),
        ("?model", "pass"),
        ("pip install torch", "pass"),
        ("gpu = !nvidia-smi", "gpu = []"),
        ("seconds = %timeit -o f()", "seconds = None"),
    ],
)
def test_a_magic_is_skipped_and_listed(line: str, code: str) -> None:
    before = "if True:\n" if line.startswith(" ") else "x = 1\n"
    codes, skipped = program(f"{before}{line}\ny = 2")
    assert codes == [f"{before}{code}\ny = 2"]
    assert skipped == (f"cell 1, line 2: `{line.strip()}`",)


def test_a_timed_statement_runs() -> None:
    assert program("%time x = train()") == (["x = train()"], ())


def test_a_command_that_goes_on_in_the_next_line_is_skipped_whole() -> None:
    codes, skipped = program("!pip install \\\n  torch\nx = 1")
    assert codes == ["\npass\nx = 1"]
    assert skipped == ("cell 1, line 1: `!pip install \\`",)


@pytest.mark.parametrize(
    "code",
    ["print('%d'\n% 3)", "s = '''\n%magic\n!ls\n'''", "is_it = a != b", "x = y %z", "pip = 3"],
)
def test_python_that_looks_like_a_magic_is_kept(code: str) -> None:
    assert program(code) == ([code], ())


@pytest.mark.parametrize("magic", ["%%time", "%%capture out", "%%breakeven check --device T4"])
def test_a_cell_magic_about_python_keeps_its_cell(magic: str) -> None:
    assert program(f"{magic}\nx = 1") == (["\nx = 1"], ())


@pytest.mark.parametrize("magic", ["%%bash", "%%writefile a.py", "%%html", "%%"])
def test_a_cell_in_another_language_is_skipped_and_listed(magic: str) -> None:
    assert program("x = 1", f"{magic}\nls") == (["x = 1", ""], (f"cell 2, line 1: `{magic}`",))


def test_an_error_of_the_user_is_kept_for_python_to_report() -> None:
    assert program("%matplotlib inline\nif x\n  y") == (
        ["pass\nif x\n  y"],
        ("cell 1, line 1: `%matplotlib inline`",),
    )


@given(st.lists(st.lists(st.sampled_from(["x = 1", "", "# y", "%time z = 2"]), max_size=9)))
def test_each_line_has_the_number_of_its_cell(cells: list[list[str]]) -> None:
    found = notebook_of({n: "\n".join(c) for n, c in enumerate(cells, start=1)}, "a.ipynb")
    ast.parse(found.text)
    lines = [*found.text.split("\n"), *[""] * 9]
    for number, cell in enumerate(cells, start=1):
        for at, line in enumerate(cell, start=1):
            assert lines[number * CELL_LINES + at - 1] == line.removeprefix("%time ")


def test_a_line_is_shown_with_its_cell() -> None:
    at = Location(file="/a/train.ipynb", line=3002)
    assert (at.place, at.text) == ("/a/train.ipynb cell 3, line 2", "train.ipynb cell 3, line 2")
    assert at.words == line_words("train.IPYNB", 3002) == "cell 3, line 2"
    assert line_text("train.py", 3002) == ":3002"
    assert line_words("train.py", 3002) == "line 3002"


def test_empty_cells_have_no_number_as_in_jupyter(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "a.ipynb", "x = 1", " \n", "y = 2")
    assert read_notebook(path.read_bytes(), "a.ipynb").cells == {1: "x = 1", 2: "y = 2"}


def test_format_3_is_read() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["text"]},
        {"cell_type": "code", "language": "python", "input": ["x = 1\n", "y = 2"]},
    ]
    document = {"nbformat": 3, "metadata": {"name": ""}, "worksheets": [{"cells": cells}]}
    found = read_notebook(json.dumps(document).encode(), "a.ipynb")
    assert found.cells == {1: "x = 1\ny = 2"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "a.ipynb is not a notebook: Input data was truncated"),
        (b"import torch", "a.ipynb is not a notebook: JSON is malformed"),
        (b"{}", "a.ipynb is not a notebook: Object missing required field `nbformat`"),
        (b'{"nbformat": 4, "cells": 3}', "a.ipynb is not a notebook: Expected `array`"),
        (b'{"nbformat": 4, "metadata": {"a": "\xff"}}', "a.ipynb is not a notebook: 'utf-8' codec"),
        (b'{"nbformat": 4}', "a.ipynb has no code cells"),
        (
            b'{"nbformat": 4, "metadata": {"kernelspec": {"language": "julia"}}}',
            "a.ipynb is written in julia",
        ),
    ],
)
def test_a_file_that_is_no_notebook_is_refused(document: bytes, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        read_notebook(document, "a.ipynb")


def test_a_cell_whose_lines_have_no_number_is_refused() -> None:
    with pytest.raises(ScriptError, match=r"cell 2 of a.ipynb has 1,000 lines, and the limit is"):
        program("x = 1", "y = 2\n" * 1000)

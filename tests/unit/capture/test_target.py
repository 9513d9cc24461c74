"""What the user names is found, or refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.capture import find_target
from breakeven.errors import ScriptError
from factories.notebooks import write_notebook


@pytest.mark.parametrize("name", ["missing.py", "x" * 300 + ".py", "a\0b.py", "missing.py:step"])
def test_a_name_that_no_file_has_is_refused(name: str) -> None:
    with pytest.raises(ScriptError, match="there is no file"):
        find_target(name)


def test_the_nearest_names_of_the_folder_are_shown(tmp_path: Path) -> None:
    for name in ("train.py", "trainer.py", "evaluate.py", "train.ipynb", "xs.py"):
        (tmp_path / name).touch()
    hints = {"tarin.py": "train.py, trainer.py", "tarin.ipynb": "train.ipynb", "trainr": None}
    for wrong, near in hints.items():
        with pytest.raises(ScriptError) as raised:
            find_target(str(tmp_path / wrong))
        assert raised.value.hint == f"nearest there: {near or 'trainer.py, train.py'}"
    with pytest.raises(ScriptError) as raised:
        find_target(str(tmp_path / "a.py"))
    assert raised.value.hint == "check the path"


def test_a_stored_run_is_not_run_as_a_script(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(ScriptError, match="is no script") as raised:
        find_target(str(tmp_path / "run.json"))
    assert raised.value.hint == f"to show a stored run: breakeven report {tmp_path}/run.json"


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "train.py"
    link.symlink_to("y" * 3_000)
    with pytest.raises(ScriptError, match="there is no file"):
        find_target(str(link))


def test_a_notebook_lists_what_does_not_run(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "a.ipynb", *(f"!command {n}" for n in range(1, 8)), "x = 1")
    target = find_target(str(path))
    assert target.is_notebook
    (caveat,) = target.caveats
    assert "cell 1, line 1: `!command 1`; cell 2" in caveat.message
    assert caveat.message.endswith("cell 5, line 1: `!command 5`; and 2 more")
    assert find_target(str(write_notebook(tmp_path / "b.ipynb", "x = 1"))).caveats == ()


def test_a_function_of_a_notebook_is_refused(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "a.ipynb", "def step(): pass")
    with pytest.raises(ScriptError, match="names a function of a notebook") as raised:
        find_target(f"{path}:step")
    assert "jupyter nbconvert" in (raised.value.hint or "")


def test_a_notebook_without_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="has no code cells"):
        find_target(str(write_notebook(tmp_path / "a.ipynb")))

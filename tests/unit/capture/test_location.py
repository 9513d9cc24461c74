from __future__ import annotations

import json
import linecache
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import breakeven
from breakeven.capture import location
from breakeven.capture.location import is_user_file, locate, location_of, name_cells, text_of
from breakeven.capture.target import as_text
from factories.fake_steps import next_line


@pytest.mark.parametrize(
    "file",
    [
        torch.__file__,
        json.__file__,
        breakeven.__file__,
        "<string>",
        "<frozen importlib._bootstrap>",
        str(Path(sysconfig.get_paths()["purelib"]) / "lightning" / "loop.py"),
        "/opt/other/lib/python3.12/site-packages/lightning/loop.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
    ],
)
def test_libraries_and_breakeven_are_not_the_users(file: str) -> None:
    assert not is_user_file(file)


@pytest.mark.parametrize(
    "file",
    [__file__, "/home/me/train.py", "train.py", "/home/me/site-packages.py", "/home/me/lib/x.py"],
)
def test_other_files_are_the_users(file: str) -> None:
    assert is_user_file(file)


def test_scripts_that_breakeven_ships_are_run_as_anyones() -> None:
    package = Path(breakeven.__file__).parent
    assert is_user_file(str(package / "workloads" / "scripts" / "disc_mlp.py"))
    assert not is_user_file(str(package / "workloads" / "own.py"))


def test_neighbour_of_the_package_is_the_users() -> None:
    package = Path(breakeven.__file__).parent
    assert is_user_file(f"{package}_experiments/train.py")


def test_line_is_that_of_the_user_who_called_the_library() -> None:
    def key(number: int) -> int:
        found.append(locate(sys._getframe()))
        return number

    def encode(value: object) -> str:
        # The frame of the library, as it calls back.
        found.append(locate(sys._getframe(1)))
        return "x"

    found: list = []
    line = next_line()
    json.dumps([object()], default=encode)
    assert (found[0].file, found[0].line) == (__file__, line)
    assert found[0].function == "test_line_is_that_of_the_user_who_called_the_library"
    key(1)
    assert found[1].function == "key"


def test_no_frame_has_no_line() -> None:
    assert locate(None) is None


def test_file_name_that_is_no_unicode_can_be_shown() -> None:
    name = b"/home/me/tr\xffin.py".decode(errors="surrogateescape")
    assert as_text(name) == "/home/me/tr\\xffin.py"
    assert location_of(name, 3).file.encode() == b"/home/me/tr\\xffin.py"
    assert as_text("/home/mé/train.py") == "/home/mé/train.py"
    assert as_text("half \ud800") == "half \\ud800"


def test_packages_installed_beside_the_users_files_are_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "trainer-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("trainer/loop.py,sha256=0,1\none_file.py,,\n../../bin/train,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for cached in (is_user_file, location._installed_beside):
        cached.cache_clear()
    try:
        found = {
            name: is_user_file(str(tmp_path / name))
            for name in ("trainer/loop.py", "one_file.py", "trainer_of_mine.py", "bin/train.py")
        }
    finally:
        for cached in (is_user_file, location._installed_beside):
            cached.cache_clear()
    assert found == {
        "trainer/loop.py": False, "one_file.py": False,
        "trainer_of_mine.py": True, "bin/train.py": True,
    }  # fmt: skip


def test_the_code_of_a_cell_is_the_users_and_names_its_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(location, "_cells", {})
    monkeypatch.setattr(linecache, "cache", {})
    name = "<ipython-input-3-5d2c>"
    assert not is_user_file(name)
    name_cells("train.ipynb", {name: 3}, "\n" * 3000 + "x = 1\ny = 2")
    assert is_user_file(name)
    assert location_of(name, 2).text == "train.ipynb cell 3, line 2"
    assert linecache.getline("train.ipynb", 3002) == "y = 2\n"
    assert text_of("train.ipynb").endswith("x = 1\ny = 2\n")
    is_user_file.cache_clear()

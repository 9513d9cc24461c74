"""How large the code is: what counts, and when a room is above its limits."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from lab.size import ALL, Calls, Size, grown, lower, room_sizes, size_of

SOURCE = dedent('''
    """Two lines
    of docstring."""
    import msgspec  # a comment beside code

    # a comment

    TEXT = """one

    three"""


    class Value(msgspec.Struct, frozen=True):
        """A value."""

        _count: int = 0

        def _once(self):
            return self._count

        def both(self):
            "Docstring."
            return _twice(_twice(self._once()))


    def _twice(value):
        return (
            value
        )
''')


def test_counts_neither_blank_lines_nor_comments_nor_docstrings() -> None:
    # import, three lines of text, class, field, two functions of two lines, and one of four.
    assert size_of(SOURCE).code_lines == 1 + 3 + 1 + 1 + 2 + 2 + 4


def test_counts_tokens_but_no_comments_or_layout() -> None:
    assert size_of("x = f(1)  # why\n\nif x:\n    pass\n").tokens == 6 + 3 + 1
    assert size_of('"""A docstring\nof two lines."""\n').tokens == 1


def test_measures_functions_from_def_to_end() -> None:
    assert sorted(size_of(SOURCE).function_lines) == [2, 3, 4]
    assert size_of("@cached\ndef f():\n    pass\n").function_lines == (2,)


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("@dataclass\nclass A: ...", 1),
        ("@dataclasses.dataclass(frozen=True)\nclass A: ...", 1),
        ("class A(msgspec.Struct, frozen=True): ...", 1),
        ("class A(NamedTuple): ...", 1),
        ("class A(Protocol): ...", 0),
        ("class A(enum.Enum): ...", 0),
        ("@final\nclass A: ...", 0),
    ],
)
def test_knows_types_of_values(code: str, number: int) -> None:
    assert size_of(code).num_value_types == number


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("def _f(): ...\n_f()", 1),
        ("def _f(): ...\n_f()\n_f()", 0),
        ("def _f(): ...", 1),
        ("class A:\n    def _f(self): ...\n    def g(self): self._f()", 1),
        ("def f(): ...\nf()", 0),
        ("class A:\n    def __len__(self): ...", 0),
    ],
)
def test_finds_private_functions_that_are_named_once(code: str, number: int) -> None:
    assert size_of(code).num_private_once == number


def _checkout(tmp_path: Path) -> Path:
    for path, code in {
        "src/pkg/a/one.py": "x = 1\n",
        "src/pkg/a/deep/two.py": "x = 1\ny = 2\n",
        "src/pkg/b.py": "x = 1\ny = 2\nz = 3\n",
        "lab/fit.py": "x = 1\n" * 4,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(code)
    return tmp_path


ROOMS = {
    "outer": {"paths": ["src/pkg/a", "src/pkg/b.py"]},
    "inner": {"paths": ["src/pkg/a/deep"]},
    "lab": {"paths": ["lab"]},
}


def test_a_file_is_of_the_room_of_its_innermost_path(tmp_path: Path) -> None:
    sizes = room_sizes(_checkout(tmp_path), ROOMS)
    lines = {name: size.code_lines for name, size in sizes.items()}
    assert lines == {ALL: 6, "outer": 4, "inner": 2, "lab": 4}
    assert sizes[ALL].num_files == 3


def test_each_file_has_a_room(tmp_path: Path) -> None:
    _checkout(tmp_path)
    rooms = {name: ROOMS[name] for name in ("inner", "lab")}
    with pytest.raises(ValueError, match=r"one\.py is in no room"):
        room_sizes(tmp_path, rooms)


def test_a_room_that_grew_is_named() -> None:
    budget = {
        "base": {"code_lines": 10, "tokens": 50},
        "cost": {"code_lines": 20, "tokens": 80},
    }
    sizes = {
        "base": Size(code_lines=10, tokens=50),
        "cost": Size(code_lines=19, tokens=83),
    }
    assert list(grown(sizes, budget)) == ["cost has 83 tokens, 3 above its limit of 80"]


def test_limits_are_only_lowered(tmp_path: Path) -> None:
    file = tmp_path / "budget.toml"
    file.write_text("# why\n[base]\nat_most = 5\ncode_lines = 10\ntokens = 50\n")
    lower(file, {"base": Size(code_lines=12, tokens=40)})
    assert file.read_text() == "# why\n[base]\nat_most = 5\ncode_lines = 10\ntokens = 40\n"


def test_notes_calls_up_to_a_depth_and_until_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "verdict").mkdir()
    run = tmp_path / "run.py"
    decision = tmp_path / "verdict" / "decision.py"
    run_code = dedent("""
        def main():
            [outer() for _ in range(2)]
            decide()
            late()

        def outer():
            deep()

        def deep():
            deeper()

        def deeper(): ...
        def late(): ...
    """)
    names: dict[str, object] = {}
    exec(compile(run_code, run, "exec"), names)
    exec(compile("def decide(): ...", decision, "exec"), names)
    calls = Calls(tmp_path, max_depth=3)
    main = names["main"]
    assert callable(main)
    before = sys.getprofile()
    sys.setprofile(calls)
    try:
        main()
    finally:
        sys.setprofile(before)
    assert calls.has_verdict
    assert calls.functions == {
        "run.py": ["main", "outer", "deep"],
        "verdict/decision.py": ["decide"],
    }

"""The names of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import breakeven
from breakeven.report import CheckReport

DOCS = Path(__file__).parents[2] / "docs" / "api"


def test_dir_has_the_public_names_only() -> None:
    assert dir(breakeven) == sorted(breakeven.__all__)
    assert len(breakeven.__all__) - 1 <= 20
    for name in breakeven.__all__:
        assert getattr(breakeven, name) is not None


def test_docs_list_the_public_names() -> None:
    table = (DOCS / "index.md").read_text("utf-8")
    listed = re.findall(r"^\| \[`(\w+)`\]\(", table, re.MULTILINE)
    assert sorted([*listed, "__version__"]) == dir(breakeven)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("check_step", r"breakeven\.ask\(step\)\.value"),
        ("check_target", r"breakeven\.ask\(target\)\.value"),
        ("CheckReport", r"breakeven\.report\.CheckReport"),
        ("DeviceSpec", r"breakeven\.device\.DeviceSpec"),
    ],
)
def test_former_name_warns_with_the_new_spelling(name: str, instead: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"breakeven.{name} is deprecated: use {instead}"):
        found = getattr(breakeven, name)
    assert found.__name__ == name
    assert name not in dir(breakeven)


def test_former_name_is_the_same_object() -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert breakeven.CheckReport is CheckReport  # type: ignore[attr-defined]

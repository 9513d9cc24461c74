"""The names of the package."""

from __future__ import annotations

import re
from pathlib import Path

import breakeven

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

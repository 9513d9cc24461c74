"""What the user names is found, or refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.capture import find_target
from breakeven.errors import ScriptError


@pytest.mark.parametrize("name", ["missing.py", "x" * 300 + ".py", "a\0b.py", "missing.py:step"])
def test_a_name_that_no_file_has_is_refused(name: str) -> None:
    with pytest.raises(ScriptError, match="there is no file"):
        find_target(name)


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "train.py"
    link.symlink_to("y" * 3_000)
    with pytest.raises(ScriptError, match="there is no file"):
        find_target(str(link))

"""Files that are written whole, and never over another unasked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from breakeven.errors import BreakevenError
from breakeven.store import ensure_writable, write_document


@pytest.mark.parametrize("step", [ensure_writable, write_document])
def test_existing_file_needs_force(step: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("mine")
    document = () if step is ensure_writable else (b"{}\n",)
    with pytest.raises(BreakevenError, match="exists and is not overwritten") as caught:
        step(path, *document, force=False)
    assert "--force" in (caught.value.hint or "")
    assert path.read_text() == "mine"
    step(path, *document, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match="there is no folder"):
        ensure_writable(tmp_path / "absent" / "report.json", force=False)
    with pytest.raises(BreakevenError, match="it is a folder"):
        ensure_writable(tmp_path, force=True)
    with pytest.raises(BreakevenError, match="not a regular file"):
        ensure_writable(Path(os.devnull), force=True)
    with pytest.raises(BreakevenError, match="File name too long"):
        write_document(tmp_path / ("x" * 300), b"{}", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real = tmp_path / "folder" / "report.json"
    real.write_text("old")
    link = tmp_path / "latest.json"
    link.symlink_to(real)
    write_document(link, b"{}\n", force=True)
    assert link.is_symlink()
    assert real.read_text() == "{}\n"

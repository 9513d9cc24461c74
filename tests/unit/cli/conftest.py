"""What tests of commands share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let terminals be 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")

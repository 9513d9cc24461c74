"""The versions that this machine has."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from breakeven.store import machine


def test_a_tree_that_is_not_installed_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(machine, "version", not_installed)
    assert machine.this_machine(gpu="").breakeven_version == "from source"
    assert machine.installed_version("timm") == ""

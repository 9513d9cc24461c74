"""Packages whose names are imported on first use."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

import breakeven
from breakeven.lazy import exports

PACKAGES = [
    "breakeven",
    *(f"breakeven.{name}" for name in (
        "capture", "measure", "report", "settings", "store", "timing", "tune", "verdict",
        "workloads",
    )),
]  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_hidden_by_a_module_of_its_package(package: str) -> None:
    names = exports(package) if package in sys.modules else exports(import_module(package).__name__)
    assert names
    modules = {found.name for found in iter_modules(import_module(package).__path__)}
    assert not names.keys() & modules


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'breakeven' has no attribute 'nothing'"):
        breakeven.nothing  # noqa: B018  # pyright: ignore


# What a script that `breakeven run` starts waits for, in the command and in its own process.
ON_THE_WAY = """
import sys
from pathlib import Path
import breakeven.cli
from breakeven.tune import RunTarget, check_runnable, stored_configuration
import breakeven.store.tuned_file
import breakeven.capture.process.run_to_end
import breakeven.settings
from breakeven.cli.output import say
say('a line', is_quiet=False)
print([name for name in ("torch", "numpy", "tomlkit", "rich") if name in sys.modules])
"""


def test_run_imports_nothing_slow_before_the_script() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_WAY], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

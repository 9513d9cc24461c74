"""The table of public scripts: what is run, with which arguments, on which data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from public_data import KINDS


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row.

    Args:
        name: By which ``--only`` finds it.
        repository: ``owner/name``, a folder within that of the repositories.
        script: Its file, relative to ``folder``; or with ``module`` the module's name.
        folder: Where it runs, within the repository.
        arguments: What it is given.
        module: Run as ``python -m`` does.
        path: Folders, relative to ``folder``, that Python is to find modules in.
        environment: Variables that it is given.
        terminal: It asks a terminal for its size, so it gets one of 80 x 24 characters.
        needs_gpu: It fails without a GPU, so it is not run by itself, but asked about.
        packages: Modules that must be there to import.
        own_packages: Folder within that of ``--packages`` whose modules go before all others.
        data: What is faked: ``kind``, ``to`` relative to ``folder``, and the kind's arguments.
        before: Arguments of ``python``, for what the repository runs once before.
        native_seconds: After which a script that still runs is taken to train.
        skip: Why it is not run.
        note: For a reader.
    """

    name: str
    repository: str
    script: str
    folder: str = "."
    arguments: tuple[str, ...] = ()
    module: bool = False
    path: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    terminal: bool = False
    needs_gpu: bool = False
    packages: tuple[str, ...] = ()
    own_packages: str = ""
    data: tuple[dict[str, Any], ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    native_seconds: float | None = None
    skip: str = ""
    note: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rows, and the commits of the repositories that it was made with."""

    script: tuple[Script, ...]
    commits: dict[str, str] = {}


class TableError(Exception):
    """A table cannot be read, or says what makes no sense."""


def read_tables(files: Sequence[Path]) -> Table:
    """Return the rows of all files as one table.

    Raises:
        TableError: A file is no such table, names a row twice, or a kind of data that nobody makes.
    """
    scripts: list[Script] = []
    commits: dict[str, str] = {}
    for file in files:
        try:
            table = msgspec.toml.decode(file.read_bytes(), type=Table)
        except (OSError, msgspec.DecodeError) as error:
            raise TableError(f"{file}: {error}") from None
        scripts += table.script
        commits |= table.commits
    seen: set[str] = set()
    for script in scripts:
        if script.name in seen:
            raise TableError(f"two rows are named {script.name}")
        seen.add(script.name)
        for entry in script.data:
            if entry.get("kind") not in KINDS or "to" not in entry:
                known = ", ".join(sorted(KINDS))
                raise TableError(
                    f"{script.name}: data needs `to`, and a `kind` of {known}: {entry}"
                )
    return Table(script=tuple(scripts), commits=commits)

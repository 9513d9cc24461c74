"""Removes the script's text and absolute paths from a stored run, to share it."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from breakeven.report.check_report import CheckReport
from breakeven.report.explain_report import ExplainReport
from breakeven.report.recording import record
from breakeven.report.text import with_texts

_Report = TypeVar("_Report", CheckReport, ExplainReport)


def without_source(report: _Report) -> _Report:
    """Return a run without the text of the user's files, and with short names for them.

    Paths become relative to the folder that contains all files of the run: the script's own if all
    others are in or below it. A file written elsewhere keeps only its last name. Names of modules
    and functions, and line numbers, stay. The command goes: its arguments may hold other paths.
    """
    found: dict[str, Any] = msgspec.to_builtins(replace(report, command=""))
    written = [write.path for write in report.writes.files] if report.writes else []
    names = _names(set(_files(found)), written)
    if names:
        longest_first = sorted(names, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)))
        found = with_texts(found, lambda text: pattern.sub(lambda path: names[path[0]], text))
    bare = msgspec.convert(found, type=type(report))
    recording = bare.recording
    if recording is None:
        return bare
    stored = record(
        recording.trace, recording.host, other_size=recording.other_size, cpu=recording.cpu
    )
    return replace(bare, recording=stored)


def _names(files: set[str], written: Sequence[str]) -> dict[str, str]:
    """Return the short name of each file that a run names by its absolute path.

    Args:
        files: The user's files, which determine the folder.
        written: Files that the script wrote, anywhere.
    """
    folders = [str(PurePath(path).parent) for path in files]
    folder = os.path.commonpath(folders) if folders else ""
    names: dict[str, str] = {}
    for path in map(PurePath, (*files, *written)):
        is_within = folder and path.is_relative_to(folder)
        names[str(path)] = path.relative_to(folder).as_posix() if is_within else path.name
    return names


def _files(value: Any) -> Iterator[str]:
    """Yield the absolute paths of files with a finding or cause, and of the target."""
    if isinstance(value, dict):
        for key, member in cast("dict[str, Any]", value).items():
            if key in ("file", "target") and isinstance(member, str):
                path = re.sub(r":\w+$", "", member)
                if PurePath(path).is_absolute():
                    yield path
            else:
                yield from _files(member)
    elif isinstance(value, list | tuple):
        for member in cast("Sequence[Any]", value):
            yield from _files(member)

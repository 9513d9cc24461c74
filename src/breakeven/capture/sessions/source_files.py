"""Which of the user's own files a run has read as code."""

from __future__ import annotations

import hashlib
import linecache
import os
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from breakeven.capture.answers import SourceFile
from breakeven.capture.location import as_text, is_user_file
from breakeven.capture.requests import Target, TargetKind
from breakeven.trace import Location, SourceText, StepTrace

# No file that a person writes is larger; generated ones and their trees cost seconds.
_MAX_SOURCE_BYTES = 1_000_000
# Of files that no event of the step leads to; what they hold matters to few rules.
_MAX_OTHER_BYTES = 2_000_000


def user_sources(target: Target) -> tuple[SourceFile, ...]:
    """Return the user's files that ``target`` ran or imported until now, in order of their names.

    Files that the script opens by itself, such as its data, are not among them.
    """
    paths = {os.path.realpath(name) for name in _names_of_code(target)}
    found: list[SourceFile] = []
    for path in sorted(paths):
        digest = file_digest(path)
        if digest is not None:  # removed meanwhile, as generated modules are
            found.append(SourceFile(path=as_text(path), sha256=digest))
    return tuple(found)


def mentions_cuda(target: Target) -> bool:
    """Return whether a line of the user's files that were run or imported names a GPU."""
    return any(
        "cuda" in line.partition("#")[0]
        for name in _names_of_code(target)
        for line in _text_of(name).splitlines()
    )


def source_texts(target: Target, trace: StepTrace) -> tuple[SourceText, ...]:
    """Return the text of the user's files that ``target`` ran or imported until now.

    Those that the trace names come first, cells of a notebook among them, then the others as far
    as there is room. Files that are too large to be code are left out.
    """
    texts: dict[str, str] = {}
    for location in _locations(trace):
        if location.file not in texts:
            texts[location.file] = _text_of(location.file)
    room = _MAX_OTHER_BYTES
    for name in sorted(_names_of_code(target)):
        path = as_text(name)
        if path not in texts and room > 0:
            texts[path] = _text_of(name)
            room -= len(texts[path])
    return tuple(SourceText(path=path, text=text) for path, text in texts.items() if text)


def _names_of_code(target: Target) -> set[str]:
    """Return the user's files that this process has as modules, and the target's own."""
    names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if target.kind is not TargetKind.MODULE and target.raw_path:
        names.add(target.path)  # a script that runs as `__main__` may have replaced that module
    return {name for name in names if isinstance(name, str) and is_user_file(name)}


def _locations(trace: StepTrace) -> Iterator[Location]:
    """Yield the lines that a trace names, whether in events or in what is known besides."""
    facts = trace.facts
    for stack in trace.stacks:
        yield from stack
    named = (*facts.loaders, *facts.optimizers, *facts.model_calls, *facts.calls)
    places = (*(fact.location for fact in named), *(one.dataset_location for one in facts.loaders))
    yield from (place for place in places if place is not None)


def _text_of(name: str) -> str:
    """Return the text of a file of Python; empty where there is none that can be shown."""
    try:
        if Path(name).stat().st_size > _MAX_SOURCE_BYTES:
            return ""
        with tokenize.open(name) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):  # it says another encoding than it has
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        # A notebook's cell is no file, but Python keeps its lines for tracebacks.
        return "".join(linecache.getlines(name))


def file_digest(path: str) -> str | None:
    """Return the SHA-256 of a file in hexadecimal; None where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None

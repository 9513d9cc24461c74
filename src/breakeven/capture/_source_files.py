"""Which of the user's own files a run has read as code."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from breakeven.capture._location import as_text, is_user_file
from breakeven.capture._protocol import SourceFile, Target, TargetKind


def user_sources(target: Target) -> tuple[SourceFile, ...]:
    """Return the user's files that ``target`` ran or imported until now, in order of their names.

    Files that the script opens by itself, such as its data, are not among them.
    """
    names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if target.kind is not TargetKind.MODULE and target.raw_path:
        names.add(target.path)  # a script that runs as `__main__` may have replaced that module
    paths = {
        os.path.realpath(name) for name in names if isinstance(name, str) and is_user_file(name)
    }
    found: list[SourceFile] = []
    for path in sorted(paths):
        digest = file_digest(path)
        if digest is not None:  # removed meanwhile, as generated modules are
            found.append(SourceFile(path=as_text(path), sha256=digest))
    return tuple(found)


def file_digest(path: str) -> str | None:
    """Return the SHA-256 of a file in hexadecimal; None where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None

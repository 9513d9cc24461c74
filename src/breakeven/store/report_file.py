"""Documents in files: written atomically."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from breakeven.errors import BreakevenError


def ensure_writable(path: Path, *, force: bool) -> None:
    """Check that ``write_document`` can write ``path``, before the work that makes the document.

    Args:
        path: The file to write.
        force: Whether a file of that name may be replaced.

    Raises:
        BreakevenError: The file exists, or its folder does not or cannot be written.
    """
    _refuse_existing(path, force=force)
    folder = path.resolve().parent
    if not folder.is_dir():
        raise BreakevenError(
            f"cannot write {path}: there is no folder {folder}",
            hint="make the folder first, or choose another file",
        )
    partial = _partial_file(path)
    try:
        _write_new(partial, b"")
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        # On a read-only file system, this fails too.
        with contextlib.suppress(OSError):
            partial.unlink()


def write_document(path: Path, document: bytes, *, force: bool) -> None:
    """Write ``document`` to ``path`` atomically: a reader sees all of it or nothing.

    Args:
        path: The file to write; a link is followed.
        document: A JSON document.
        force: Whether a file of that name may be replaced.

    Raises:
        BreakevenError: The file exists, or cannot be written.
    """
    partial = _partial_file(path)
    try:
        _write_new(partial, document)
        _refuse_existing(path, force=force)
        partial.replace(path.resolve())
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        # On a read-only file system, this fails too.
        with contextlib.suppress(OSError):
            partial.unlink()


def _refuse_existing(path: Path, *, force: bool) -> None:
    if not os.path.lexists(path):
        return
    if path.is_dir():
        raise BreakevenError(
            f"cannot write {path}: it is a folder", hint="name a file, such as report.json"
        )
    if path.exists() and not path.is_file():
        raise BreakevenError(
            f"cannot write {path}: it is not a regular file",
            hint="use --json to send the document to a pipe or device",
        )
    if not force:
        raise BreakevenError(
            f"{path} exists and is not overwritten", hint="add --force, or choose another file"
        )


def _partial_file(path: Path) -> Path:
    # Keep it in the same folder: a rename is atomic only within one file system.
    # Keep the name random: a killed process may have left another partial file.
    return path.resolve().parent / f".breakeven-{secrets.token_hex(8)}.partial"


def _write_new(path: Path, document: bytes) -> None:
    with path.open("xb") as file:
        file.write(document)
        file.flush()
        os.fsync(file.fileno())


def _not_written(path: Path, error: OSError) -> BreakevenError:
    return BreakevenError(
        f"cannot write {path}: {error.strerror}", hint="choose another file with -o"
    )


def lined_json(value: msgspec.Struct, lists: Mapping[str, Sequence[object]]) -> bytes:
    """Return JSON with one line for each field and for each entry of the given lists.

    Args:
        value: The struct to encode.
        lists: Entries of list fields by field name; bytes are JSON already.
    """

    def encoded(entry: object) -> str:
        return (entry if isinstance(entry, bytes) else msgspec.json.encode(entry)).decode()

    fields: list[str] = []
    for name in value.__struct_fields__:
        text = encoded(getattr(value, name))
        if entries := lists.get(name):
            text = "[\n" + ",\n".join(f"  {encoded(entry)}" for entry in entries) + "\n ]"
        fields.append(f' "{name}": {text}')
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()

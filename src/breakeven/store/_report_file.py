"""A report in a file: written whole or not at all, read back or refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from breakeven.errors import BreakevenError, StoredDataError
from breakeven.verdict import SCHEMA_VERSION, CheckReport


class _Header(msgspec.Struct):
    schema_version: int


def ensure_writable(path: Path, *, force: bool) -> None:
    """Check that ``write_document`` can write ``path``, before the work whose result goes there.

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
        partial.unlink(missing_ok=True)


def write_document(path: Path, document: bytes, *, force: bool) -> None:
    """Write ``document`` to ``path`` atomically: another program sees all of it or nothing.

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
        partial.unlink(missing_ok=True)


def read_report(path: str | os.PathLike[str]) -> CheckReport:
    """Return the report in ``path``, as ``breakeven check TARGET -o FILE`` wrote it.

    Raises:
        StoredDataError: The file cannot be read, is cut off, is no report, is of another schema
            version, or was edited so that it no longer fits the schema.
    """
    path = Path(path)
    rerun = "write it again: breakeven check TARGET -o FILE --force"
    try:
        document = path.read_bytes()
    except OSError as error:
        raise StoredDataError(f"cannot read {path}: {error.strerror}") from error
    if not document.strip():
        raise StoredDataError(f"{path} is cut off: it is empty", hint=rerun)
    try:
        header = msgspec.json.decode(document, type=_Header)
    except msgspec.ValidationError as error:
        raise StoredDataError(
            f"{path} is no report of breakeven: {error}",
            hint="reports are written by: breakeven check TARGET -o FILE",
        ) from error
    except msgspec.DecodeError as error:
        state = "is cut off" if "truncated" in str(error) else "is not JSON"
        raise StoredDataError(f"{path} {state}: {error}", hint=rerun) from error
    if header.schema_version != SCHEMA_VERSION:
        raise StoredDataError(
            f"{path} has schema version {header.schema_version}; "
            f"this breakeven reads version {SCHEMA_VERSION}",
            hint="read it with the breakeven that wrote it, or " + rerun,
        )
    try:
        return msgspec.json.decode(document, type=CheckReport)
    except msgspec.ValidationError as error:
        raise StoredDataError(
            f"{path} was edited or damaged: it does not fit its schema: {error}", hint=rerun
        ) from error


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
    # In the same folder, since a rename is atomic only within one file system.
    return path.resolve().parent / f".breakeven-{os.getpid()}.partial"


def _write_new(path: Path, document: bytes) -> None:
    with path.open("xb") as file:
        file.write(document)
        file.flush()
        os.fsync(file.fileno())


def _not_written(path: Path, error: OSError) -> BreakevenError:
    return BreakevenError(
        f"cannot write {path}: {error.strerror}", hint="choose another file with -o"
    )

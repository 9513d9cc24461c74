"""``breakeven.toml``: the configuration that ``tune`` found, for a person and the next run."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from breakeven.errors import Caveat, StoredDataError, UsageError
from breakeven.trace import Configuration
from breakeven.verdict import Machine, Numerics, Outcome, TuneReport

if TYPE_CHECKING:
    from tomlkit.items import Table

TUNED_FILE_NAME = "breakeven.toml"
_VERSION = 1
# Settings of earlier versions, by name or with a value.
_REMOVED = (
    "num_interop_threads", "skips_distribution_checks", "cpp_wrapper", "prefetch_factor",
    "optimizer = foreach",
)  # fmt: skip

_HEADER = """\
What `breakeven tune` found: settings under which this script trains faster, measured here.

Used by:    breakeven run TARGET, in this folder, or from elsewhere with --config FILE.
Undone by:  deleting this file, or starting the script with python as before. The script
            itself was not changed.
Good for:   this script, machine and versions alone; any other is refused, with the reason.
Made again: breakeven tune TARGET"""


# Forbid unknown fields: a report of a later version may have more, but here they are typos.
class MachineNote(Machine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine on which a configuration was found and is valid."""


class TrialNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one candidate, in short.

    Args:
        candidate: Stable name: ``threads=1``.
        outcome: Its outcome.
        speedup: Step time before it over step time with it; null if not measured.
        reason: The reason for the outcome, in one sentence.
    """

    candidate: str
    outcome: Outcome
    speedup: float | None = None
    reason: str


class CaveatNote(Caveat, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A caveat on the measurement."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurement that supports the configuration.

    Args:
        date: Day on which the file was written, in UTC: ``2026-03-01``.
        num_steps: Steps of the run; a lower bound if its length is unknown.
        baseline_step_ns: Median step of the unchanged script.
        tuned_step_ns: Median step under the configuration.
        speedup: The former over the latter.
        low: Lower end of its 95 % interval.
        high: Upper end.
        numerics: The least strict class of the settings that were kept.
        pays_off_after_steps: Steps after which its start-up cost is recovered; null if never.
        duration_ns: Duration of the tuning.
        num_trials: Candidates that applied to the step.
        caveats: Caveats on the measurement.
        trials: All candidates, in order.
        is_length_known: Whether the run has exactly ``num_steps`` steps; null in an older file,
            whose number of steps was assumed.
    """

    date: str
    num_steps: int
    is_length_known: bool | None = None
    baseline_step_ns: float
    tuned_step_ns: float
    speedup: float
    low: float
    high: float
    numerics: Numerics
    pays_off_after_steps: int | None = None
    duration_ns: int
    num_trials: int
    caveats: tuple[CaveatNote, ...] = ()
    trials: tuple[TrialNote, ...] = ()

    def __post_init__(self) -> None:
        if len(self.trials) != self.num_trials:
            raise ValueError(f"{len(self.trials)} of {self.num_trials} trials are there")


class Tuned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``breakeven.toml``.

    Args:
        schema_version: Version of the file's schema.
        target: The script or module, as the user wrote it.
        arguments: ``sys.argv[1:]`` of the script while it was tuned.
        device: Device that runs the step.
        machine: Machine on which the configuration was found and is valid.
        configuration: Differences from the script's own settings.
        evidence: The measurement that supports it.
    """

    schema_version: int = _VERSION
    target: str
    arguments: tuple[str, ...] = ()
    device: Literal["cpu", "gpu"]
    machine: MachineNote
    configuration: Configuration
    evidence: Evidence


def tuned_of(report: TuneReport) -> Tuned:
    """Return a report's ``breakeven.toml``, dated today, without candidates that do not apply."""
    found = _as_unicode(msgspec.to_builtins(report))
    tried = [trial for trial in found["trials"] if trial["outcome"] != Outcome.NOT_APPLICABLE]
    evidence = found | {
        "date": datetime.now(UTC).date().isoformat(),
        "num_trials": len(tried),
        "trials": [_fields_of(TrialNote, trial) for trial in tried],
    }
    tuned = found | {"schema_version": _VERSION, "evidence": _fields_of(Evidence, evidence)}
    return msgspec.convert(_fields_of(Tuned, tuned), Tuned)


def write_tuned(path: Path, report: TuneReport, *, force: bool) -> None:
    """Write the result of ``tune`` atomically, with comments for a person.

    Args:
        path: The file.
        report: The result.
        force: Whether a file of that name may be replaced.

    Raises:
        BreakevenError: The file exists, or cannot be written.
    """
    from breakeven.store.report_file import write_document

    write_document(path, tuned_document(tuned_of(report)), force=force)


def tuned_document(tuned: Tuned) -> bytes:
    """Return the file as TOML."""
    # Import here: a run that only reads the file does not need tomlkit.
    import tomlkit

    from breakeven.settings import SETTINGS

    document = tomlkit.document()
    for line in _HEADER.splitlines():
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    fields: dict[str, Any] = msgspec.to_builtins(tuned)
    for key in ("schema_version", "target", "arguments", "device"):
        document.add(key, tomlkit.item(fields[key]))
    document.add("machine", _table(fields["machine"]))
    configuration = tomlkit.table()
    for key, value in tuned.configuration.changes.items():
        configuration.add(key, tomlkit.item(value).comment(SETTINGS[key].meaning))
    if not tuned.configuration.changes:
        configuration.comment("nothing was shown to be faster: the script runs as it is")
    document.add("configuration", configuration)
    evidence = fields["evidence"]
    caveats, trials = evidence.pop("caveats"), evidence.pop("trials")
    table = _table(evidence)
    for key, rows in (("caveats", caveats), ("trials", trials)):
        if rows:
            # Keep the trials last: their number shows whether the file was cut off.
            tables = tomlkit.aot()
            for row in rows:
                tables.append(_table(row))
            table.add(key, tables)
    document.add("evidence", table)
    return tomlkit.dumps(document).encode()


def read_tuned(path: str | os.PathLike[str]) -> Tuned:
    """Return the content of ``breakeven.toml``.

    Raises:
        StoredDataError: The file cannot be read, is cut off, was not written by breakeven, has
            another schema version, or no longer fits the schema after an edit.
        UsageError: It names a setting that breakeven no longer has.
    """
    path = Path(path)
    try:
        found = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise StoredDataError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _damaged(path, f"it is no TOML: {error}") from error
    if "schema_version" not in found or "configuration" not in found:
        raise _damaged(path, "it lacks schema_version or [configuration]")
    if found["schema_version"] != _VERSION:
        raise StoredDataError(
            f"{path} has schema_version {found['schema_version']!r}; "
            f"this breakeven reads version {_VERSION}",
            hint=_again(found),
        )
    _refuse_removed(path, found)
    try:
        tuned = msgspec.convert(found, Tuned)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error).replace("`$.", "`"), found) from error
    return tuned


def _refuse_removed(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse a setting that earlier versions tried but that was faster in no measurement."""
    configuration = found["configuration"]
    for name, value in configuration.items() if isinstance(configuration, dict) else ():
        if name in _REMOVED or f"{name} = {value}" in _REMOVED:
            raise UsageError(
                f"{path} sets {name} = {value!r}, which breakeven no longer does",
                hint=f"delete that line, or tune again: {_again(found).partition(': ')[2]}",
            )


def _table(values: Mapping[str, Any]) -> Table:
    import tomlkit

    table = tomlkit.table()
    for key, value in values.items():
        if value is not None:  # TOML has no null: leave out an unknown value
            table.add(key, tomlkit.item(value))
    return table


def _fields_of(kind: type[msgspec.Struct], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in kind.__struct_fields__}


def _as_unicode(value: Any) -> Any:
    r"""Return valid UTF-8 text: an undecodable byte of a file name becomes ``\udcff``."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _as_unicode(item) for key, item in value.items()}
    return [_as_unicode(item) for item in value] if isinstance(value, list | tuple) else value


def _damaged(path: Path, what: str, found: Mapping[str, Any] | None = None) -> StoredDataError:
    return StoredDataError(
        f"{path} is damaged, or no file of breakeven tune: {what}", hint=_again(found or {})
    )


def _again(found: Mapping[str, Any]) -> str:
    target = found.get("target")
    name = shlex.quote(target) if isinstance(target, str) and target else "TARGET"
    return f"delete it, or make it again: breakeven tune {name} --force"

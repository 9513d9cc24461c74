"""``breakeven.toml``: the configuration that a tuning found, for a person and for the next run."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomlkit
from tomlkit.items import Item, Table

from breakeven.errors import Caveat, StoredDataError
from breakeven.settings import SETTINGS
from breakeven.store.report_file import write_document
from breakeven.trace import Configuration
from breakeven.verdict import Machine, Numerics, Outcome, TuneReport

TUNED_FILE_NAME = "breakeven.toml"
_VERSION = 1

_HEADER = """\
What `breakeven tune` found: settings under which this script trains faster, measured here.

Used by:    breakeven run TARGET, in this folder, or from elsewhere with --config FILE.
Undone by:  deleting this file, or starting the script with python as before. The script
            itself was not changed.
Good for:   this script, machine and versions alone; any other is refused, with the reason.
Made again: breakeven tune TARGET"""


class TrialNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came of one candidate, in short.

    Args:
        candidate: Stable name: ``threads=1``.
        outcome: What became of it.
        speedup: Time of a step before it over time with it; null where it was not measured.
        reason: Why, in one sentence.
    """

    candidate: str
    outcome: Outcome
    speedup: float | None = None
    reason: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured when the configuration was found.

    Args:
        date: Day on which the file was written, in UTC: ``2026-03-01``.
        num_steps: Steps that a run was taken to have.
        baseline_step_ns: Median step of the script as it is.
        tuned_step_ns: Median step under the configuration.
        speedup: The former over the latter.
        low: Lower end of its 95 % interval.
        high: Upper end.
        numerics: The least strict class among what was kept.
        pays_off_after_steps: Steps after which its start-up is earned back; null where never.
        duration_ns: How long tuning took.
        num_trials: Candidates that applied to the step.
        caveats: What to know of the measurement.
        trials: All of them, in order.
    """

    date: str
    num_steps: int
    baseline_step_ns: float
    tuned_step_ns: float
    speedup: float
    low: float
    high: float
    numerics: Numerics
    pays_off_after_steps: int | None = None
    duration_ns: int
    num_trials: int
    caveats: tuple[Caveat, ...] = ()
    trials: tuple[TrialNote, ...] = ()


class Tuned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``breakeven.toml`` says.

    Args:
        schema_version: Of the file.
        target: The script or module, as the user wrote it.
        arguments: ``sys.argv[1:]`` of the script while it was tuned.
        device: Where the step runs.
        machine: Where the configuration was found, and is known to be right.
        configuration: What differs from the script's own settings.
        evidence: What was measured.
    """

    schema_version: int = _VERSION
    target: str
    arguments: tuple[str, ...] = ()
    device: Literal["cpu", "gpu"]
    machine: Machine
    configuration: Configuration
    evidence: Evidence


def tuned_of(report: TuneReport) -> Tuned:
    """Return what the file of a report says, dated today; what did not apply is left out."""
    tried = [trial for trial in report.trials if trial.outcome is not Outcome.NOT_APPLICABLE]
    return msgspec.convert(
        {
            "target": _as_unicode(report.target),
            "arguments": tuple(map(_as_unicode, report.arguments)),
            "device": report.device,
            "machine": report.machine,
            "configuration": report.configuration,
            "evidence": Evidence(
                date=datetime.now(UTC).date().isoformat(),
                num_steps=report.num_steps,
                baseline_step_ns=report.baseline_step_ns,
                tuned_step_ns=report.tuned_step_ns,
                speedup=report.speedup,
                low=report.low,
                high=report.high,
                numerics=report.numerics,
                pays_off_after_steps=report.pays_off_after_steps,
                duration_ns=report.duration_ns,
                num_trials=len(tried),
                caveats=tuple(
                    Caveat(code=caveat.code, message=_as_unicode(caveat.message))
                    for caveat in report.caveats
                ),
                trials=tuple(
                    TrialNote(
                        candidate=_as_unicode(trial.candidate),
                        outcome=trial.outcome,
                        speedup=trial.speedup,
                        reason=_as_unicode(trial.reason),
                    )
                    for trial in tried
                ),
            ),
        },
        Tuned,
    )


def write_tuned(path: Path, report: TuneReport, *, force: bool) -> None:
    """Write what a tuning found, atomically and with comments for a person.

    Args:
        path: The file.
        report: What was found.
        force: Whether a file of that name may be replaced.

    Raises:
        BreakevenError: The file exists, or cannot be written.
    """
    write_document(path, tuned_document(tuned_of(report)), force=force)


def tuned_document(tuned: Tuned) -> bytes:
    """Return the file as TOML."""
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
            # The trials come last: of a file that was cut off, their number tells.
            table.add(key, _tables(rows))
    document.add("evidence", table)
    return tomlkit.dumps(document).encode()


def read_tuned(path: str | os.PathLike[str]) -> Tuned:
    """Return what ``breakeven.toml`` says.

    Raises:
        StoredDataError: The file cannot be read, is cut off, is none of breakeven's, is of another
            schema version, or was edited so that it no longer fits.
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
    try:
        tuned = msgspec.convert(found, Tuned)
        _ensure_sound(found, tuned)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error).replace("`$.", "`"), found) from error
    return tuned


# More than any machine has: all of them would be started at once.
_MOST = {
    "num_threads": 1_024, "num_interop_threads": 1_024, "num_workers": 1_024,
    "prefetch_factor": 4_096,
}  # fmt: skip
_MOST_SAMPLES = 10**9


def _ensure_sound(found: Mapping[str, Any], tuned: Tuned) -> None:
    """Check what the types do not tell.

    Raises:
        msgspec.ValidationError: Something is unknown, missing or out of range.
    """
    _refuse_unknown(found["machine"], Machine, "machine")
    for number, caveat in enumerate(found["evidence"].get("caveats", ())):
        _refuse_unknown(caveat, Caveat, f"evidence.caveats[{number}]")
    fields = Configuration.__struct_fields__
    for key, default in zip(fields, Configuration.__struct_defaults__, strict=True):
        value = getattr(tuned.configuration, key)
        # The default of each number, which is for the script's own, is the least that it can be.
        if type(default) is int and value < default:
            raise msgspec.ValidationError(
                f"Expected `int` >= {default}, got {value} - at `configuration.{key}`"
            )
        if type(default) is int and value > (most := _MOST.get(key, _MOST_SAMPLES)):
            raise msgspec.ValidationError(
                f"Expected `int` <= {most:,}, got {value} - at `configuration.{key}`"
            )
    evidence = tuned.evidence
    if len(evidence.trials) != evidence.num_trials:
        raise msgspec.ValidationError(
            f"{len(evidence.trials)} of {evidence.num_trials} trials are there "
            "- at `evidence.num_trials`"
        )


def _refuse_unknown(table: Mapping[str, Any], kind: type[msgspec.Struct], place: str) -> None:
    for key in table:
        if key not in kind.__struct_fields__:
            raise msgspec.ValidationError(f"Object contains unknown field `{key}` - at `{place}`")


def _table(values: Mapping[str, Any]) -> Table:
    table = tomlkit.table()
    for key, value in values.items():
        if value is not None:  # TOML has no null: what is absent is unknown
            table.add(key, tomlkit.item(value))
    return table


def _tables(rows: Iterable[Mapping[str, Any]]) -> Item:
    tables = tomlkit.aot()
    for row in rows:
        tables.append(_table(row))
    return tables


def _as_unicode(text: str) -> str:
    r"""Return text that UTF-8 can hold: a byte of a file name that it cannot is ``\udcff``."""
    return text.encode(errors="backslashreplace").decode()


def _damaged(path: Path, what: str, found: Mapping[str, Any] | None = None) -> StoredDataError:
    return StoredDataError(
        f"{path} is cut off, damaged, or not of breakeven tune: {what}", hint=_again(found or {})
    )


def _again(found: Mapping[str, Any]) -> str:
    target = found.get("target")
    name = shlex.quote(target) if isinstance(target, str) and target else "TARGET"
    return f"delete it, or make it again: breakeven tune {name} --force"

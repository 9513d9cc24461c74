"""Settings of trainers that stand for a line of a loop."""

from __future__ import annotations

from breakeven.doctor.rule import Case
from breakeven.source import Source, dotted_name, keyword
from breakeven.trace import Location

_STARTS = (".fit", ".train")
_HOLDERS = ("Trainer", "TrainingArguments", "Seq2SeqTrainingArguments", "ModelCheckpoint")


def trainer_setting(case: Case, location: Location | None, *names: str) -> Location | None:
    """Return where a trainer is told what its loop does, for a line that starts that loop.

    Args:
        case: The step.
        location: The user's line that something happens in.
        names: Arguments that are looked for, the most telling first.
    """
    source = case.sources.find(location)
    if source is None or location is None or not _starts_trainer(source, location.line):
        return None
    for name in names:
        for holder in (source, *case.sources):
            for call in holder.calls(*_HOLDERS):
                value = keyword(call, name)
                if value is not None:
                    return holder.location(value)
    return None


def _starts_trainer(source: Source, line: int) -> bool:
    """Return whether a line calls a trainer's loop: ``trainer.fit(...)``, ``trainer.train()``."""
    names = (dotted_name(call.func) for call in source.calls_on(line))
    return any(name.endswith(_STARTS) and "trainer" in name.lower() for name in names)

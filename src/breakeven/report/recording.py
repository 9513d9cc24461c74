"""The recorded step within a stored run: what it takes to explain the run again."""

from __future__ import annotations

import hashlib

import msgspec

from breakeven.device import FeedingHost, HostSpec
from breakeven.timing import CpuFacts
from breakeven.trace import SourceText, StepTrace

RECORDING_VERSION = 1


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """What `explain RUN.json` reads, to take the step apart on any device.

    Args:
        version: Of the events: another one records other things.
        trace: The step as a GPU would run it.
        other_size: The same step at another batch size; null where it was recorded at one only.
        host: What issues the work.
        sources: The user's files.
        cpu: What was measured on the CPU; null where nothing was.
        sha256: Digest of all that, so that a change by hand does not go unnoticed.
    """

    version: int
    trace: StepTrace
    other_size: StepTrace | None
    host: FeedingHost
    sources: tuple[SourceText, ...]
    cpu: CpuFacts | None
    sha256: str

    @property
    def is_whole(self) -> bool:
        """Return whether nothing was changed since it was recorded."""
        return self.sha256 == _digest(msgspec.structs.replace(self, sha256=""))


def record(
    trace: StepTrace,
    host: HostSpec,
    *,
    other_size: StepTrace | None = None,
    sources: tuple[SourceText, ...] = (),
    cpu: CpuFacts | None = None,
) -> RecordedStep:
    """Return a recording, with its digest.

    Args:
        trace: The step as a GPU would run it.
        host: What issues the work.
        other_size: The same step at another batch size.
        sources: The user's files.
        cpu: What was measured on the CPU.
    """
    bare = RecordedStep(
        version=RECORDING_VERSION,
        trace=trace,
        other_size=other_size,
        host=host if isinstance(host, FeedingHost) else FeedingHost.of(host),
        sources=sources,
        cpu=cpu,
        sha256="",
    )
    # Whole numbers in float fields are read back as floats: the digest is of what will be read.
    bare = msgspec.json.decode(msgspec.json.encode(bare), type=RecordedStep)
    return msgspec.structs.replace(bare, sha256=_digest(bare))


def _digest(bare: RecordedStep) -> str:
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()

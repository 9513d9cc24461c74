"""The recorded step in a stored run, from which the run can be explained again."""

from __future__ import annotations

import hashlib

import msgspec

from breakeven.cost import calibration_digest
from breakeven.device import FeedingHost, HostSpec
from breakeven.simulate import CpuCosts
from breakeven.timing import CpuFacts
from breakeven.trace import SourceText, StepTrace

RECORDING_VERSION = 1


# Without defaults in the encoding: digests of earlier recordings lack fields that came later.
class RecordedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of `explain RUN.json`, to break the step down on any device.

    Args:
        version: Version of the format of the events.
        trace: The step as a GPU runs it.
        other_size: The same step at another batch size; null if it was recorded at only one.
        host: The host that issues the work.
        sources: Text of the user's files.
        cpu: Measurements on the CPU; null if none.
        sha256: Digest of all other fields, to detect manual edits.
        here: This CPU's costs, for predictions of other CPUs; null if they were not measured, and
            in older recordings.
        calibration: Digest of the tables from which GPUs were predicted; empty in older recordings.
        memory_bytes: Memory of this machine; 0 in older recordings.
    """

    version: int
    trace: StepTrace
    other_size: StepTrace | None
    host: FeedingHost
    sources: tuple[SourceText, ...]
    cpu: CpuFacts | None
    sha256: str
    here: CpuCosts | None = None
    calibration: str = ""
    memory_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """Return whether the recording is unchanged."""
        return self.sha256 == _digest(msgspec.structs.replace(self, sha256=""))


def record(
    trace: StepTrace,
    host: HostSpec,
    *,
    other_size: StepTrace | None = None,
    sources: tuple[SourceText, ...] = (),
    cpu: CpuFacts | None = None,
    here: CpuCosts | None = None,
    memory_bytes: int = 0,
) -> RecordedStep:
    """Return a recording, with its digest.

    Args:
        trace: The step as a GPU runs it.
        host: The host that issues the work.
        other_size: The same step at another batch size.
        sources: Text of the user's files.
        cpu: Measurements on the CPU.
        here: This CPU's costs.
        memory_bytes: Memory of this machine; 0 if unknown.
    """
    bare = RecordedStep(
        version=RECORDING_VERSION,
        trace=trace,
        other_size=other_size,
        host=host if isinstance(host, FeedingHost) else FeedingHost.of(host),
        sources=sources,
        cpu=cpu,
        sha256="",
        here=here,
        calibration=calibration_digest(),
        memory_bytes=memory_bytes,
    )
    # Integers in float fields are read back as floats: take the digest after a round trip.
    bare = msgspec.json.decode(msgspec.json.encode(bare), type=RecordedStep)
    return msgspec.structs.replace(bare, sha256=_digest(bare))


def _digest(bare: RecordedStep) -> str:
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()

"""The answer to `breakeven normal`, as values: the content of its JSON and of every renderer."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.errors import Caveat
from breakeven.simulate import Bound
from breakeven.timing import Estimate
from breakeven.verdict.report import HostSummary
from breakeven.verdict.results import DeviceResult

NORMAL_SCHEMA_VERSION = 1


class Pace(StrEnum):
    """A measured step against its prediction.

    ``slow`` and ``fast`` are outside of the prediction's interval. No such machine should be
    ``fast``: the number is probably not the time of a whole step.
    """

    NORMAL = "normal"
    SLOW = "slow"
    FAST = "fast"


class SlowCause(StrEnum):
    """The cause of a slow step.

    ``loader``: steps wait for the data loader. ``host``: the CPU issues work slowly. ``sync``: the
    host waits for the GPU after each operator. ``float64`` and ``no-tensor-cores``: the step ran
    in another precision than the recorded one. ``device``: the GPU itself is slowed down, by a
    clock or power limit, heat, or another process.
    """

    LOADER = "loader"
    HOST = "host"
    SYNC = "sync"
    FLOAT64 = "float64"
    NO_TENSOR_CORES = "no-tensor-cores"
    DEVICE = "device"


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that can account for a part of the excess.

    Args:
        cause: The cause.
        explained_ns: The part of the excess that it probably accounts for, if it is the only one.
        at_most_ns: The most that it can add to this step.
        share: Its probability among the suspects, if one of them is the only cause.
        look: The command that shows it, or what to try.
    """

    cause: SlowCause
    explained_ns: float
    at_most_ns: float
    share: float
    look: str


class SpeedJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """A measured speed, judged.

    Args:
        said: The speed in the user's words; empty if it was measured here.
        device: Name of the GPU.
        fed_by: Assumed kind of its machine; empty if it is known.
        measured: The measured step.
        expected: The step predicted for this GPU in a typical machine.
        ratio: Measured over expected time.
        ratio_low: Lower end of its 90 % interval.
        ratio_high: Upper end.
        pace: The answer.
        bound: The resource that limits the expected step.
        suspects: Causes of the excess, the most probable first; empty if the step is not slow.
        is_explained: Whether one suspect alone can account for the whole excess.
        is_used: Whether predictions of other GPUs use this speed.
    """

    said: str
    device: str
    fed_by: str
    measured: Estimate
    expected: Estimate
    ratio: float
    ratio_low: float
    ratio_high: float
    pace: Pace
    bound: Bound
    suspects: tuple[Suspect, ...] = ()
    is_explained: bool = True
    is_used: bool = False


class NormalReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven normal`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        target: The script or module, as given.
        host: The machine that recorded the step.
        batch_size: Samples per step; null if unknown.
        speeds: The measured speeds, in the order of the command line.
        others: The step predicted for other GPUs. A normal speed shows how fast its kind of machine
            is, and narrows these predictions.
        caveats: Reasons to trust all figures less.
    """

    schema_version: int
    target: str
    host: HostSummary
    batch_size: int | None
    speeds: tuple[SpeedJudgement, ...]
    others: tuple[DeviceResult, ...] = ()
    caveats: tuple[Caveat, ...] = ()

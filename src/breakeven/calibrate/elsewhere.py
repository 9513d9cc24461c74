"""Estimate the speed of a machine elsewhere from a step's speed on its GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from breakeven.device import (
    DeviceSpec,
    FeedingHost,
    HostKind,
    HostSpec,
    find_device,
    find_host_kind,
    find_kind,
    user_calibrations,
)
from breakeven.errors import BreakevenError, Caveat, UsageError
from breakeven.report.text import duration_with_interval
from breakeven.simulate import Z_90, Program, compile_mode_of, compiled_step, predict_steps
from breakeven.store import write_document
from breakeven.timing import Estimate
from breakeven.trace import Op, Phase
from breakeven.units import format_duration, format_ratio, parse_speed

# Log error of steps on one machine whose factor is known: 0.14 to 0.22 for the eager steps of
# three, 0.21 to 0.35 for compiled ones (`benchmarks/host_kinds.py`).
STEP_LOG_SIGMA = 0.2
# The same of eager steps, if the backward pass has a factor of its own: 0.147 for 78 launch-bound
# steps of three desktops in no row of the calibration. Of 870 pairs on an H200, one step measured,
# the 90 % interval holds 90 % of the other (`benchmarks/host_kinds.py`).
PASS_LOG_SIGMA = 0.15
# Half of the host's work in a training step of a convolutional network is in the backward pass.
_BACKWARD_FRACTION = 0.5
# No machine differs from its kind by this factor; the unit or the script must be wrong.
_MOST_OFF = 30.0
# A measurement that leaves this much of a kind's spread says little about the machine.
_LITTLE_TOLD = 0.9
# Number of simulated factors, and of interpolated factors that are weighted.
_NUM_TRIED, _NUM_WEIGHED = 17, 801
# File of a kind, in the user's folder of calibrations.
_FILE = "hosts/{}.json"
_FORM = (
    "write [KIND] DEVICE: NUMBER UNIT, as in 'T4: 340 it/s' or 'colab T4: 45 s/epoch'; kinds as "
    "for --host; units: it/s, s/it, s, ms, us, s/epoch, min/epoch, samples/s"
)

_Predictor = Callable[[HostKind], Estimate]


class Speed(NamedTuple):
    """A GPU, the kind of machine if given, a time, and its unit: ``step``, ``epoch``, ..."""

    device: DeviceSpec
    kind: HostKind | None
    time_ns: float
    per: str


class HostAnchor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The factor of a machine that one speed implies; the file of its kind is a list of them.

    Args:
        date: Day when the user gave it, in UTC: ``2026-03-01``.
        said: The GPU's name, and the speed in the user's words: ``T4: 340 it/s``.
        target: The script.
        factor: As in a `HostKind`, but without that kind's prior.
        log_sigma: Standard deviation of its logarithm.
        backward_fraction: Share of the backward pass in the host's work.
    """

    date: str
    said: str
    target: str
    factor: Annotated[float, msgspec.Meta(ge=1e-3, le=1e3)]
    log_sigma: Annotated[float, msgspec.Meta(ge=1e-3, le=1e3)]
    backward_fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] = _BACKWARD_FRACTION


# Anchors by the id of their kind.
Anchors = dict[str, list[HostAnchor]]


def read_speeds(texts: Sequence[str]) -> dict[str, Speed]:
    """Parse speeds such as ``colab T4: 340 it/s``; return them by their text.

    Raises:
        UsageError: If one is no speed, or two are of the same GPU.
    """
    speeds = {text: read_speed(text) for text in texts}
    of_gpus: dict[str, str] = {}
    for text, speed in speeds.items():
        other = of_gpus.setdefault(speed.device.id, text)
        if other != text:
            raise _refused(text, f"{other!r} is of the same GPU: give one speed of each")
    return speeds


def read_speed(text: str) -> Speed:
    """Parse ``colab T4: 340 it/s``.

    Raises:
        UsageError: If it is no number above 0 with a unit, or its GPU or kind is unknown.
    """
    name, _, speed = (part.strip() for part in text.rpartition(":"))
    first, _, rest = name.partition(" ")
    kind, found = find_host_kind(first) if rest else None, parse_speed(speed)
    if found is None:
        raise _refused(text, f"{speed!r} is no number above 0 with a unit")
    try:
        return Speed(find_device(rest if kind else name), kind, *found)
    except BreakevenError as error:
        raise _refused(text, error.message) from None


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"--measured {text!r}: {why}", hint=_FORM)


def backward_fraction(program: Program, host: HostSpec) -> float:
    """Return the share of the backward pass in the time in which a host issues a step."""
    lowered = zip(program.trace.events, program.lowerings, strict=True)
    times = [
        (event.phase is Phase.BACKWARD, program.costs.host_op_ns(event, lowering, host))
        for event, lowering in lowered
        if isinstance(event, Op) and lowering is not None and not event.is_on_host
    ]
    whole_ns = sum(time_ns for _, time_ns in times)
    backward_ns = sum(time_ns for is_backward, time_ns in times if is_backward)
    return backward_ns / whole_ns if whole_ns else _BACKWARD_FRACTION


def as_measured(
    kind: HostKind,
    new: Sequence[HostAnchor] = (),
    *,
    without: str = "",
    backward: float = _BACKWARD_FRACTION,
) -> HostKind:
    """Return a kind updated by the user's measurements, which its name then lists.

    Args:
        kind: The kind without measurements.
        new: Measurements to add to the stored ones; one replaces a stored one of the same GPU and
            script.
        without: A script whose measurements are left out.
        backward: Share of the backward pass in the host's work of the step to predict.
    """
    joined, name = _joined(kind, new)
    anchors = [one for one in joined if one.target != without]
    if not anchors:
        return replace(kind, name=name)
    ratio, log_sigma = combined(kind, anchors, backward)
    said = "; ".join(f"{one.said}, {one.target}, {one.date}" for one in anchors)
    name += f", taking {format_ratio(ratio)} the usual time as measured by you ({said})"
    return replace(kind, name=name, factor=ratio * kind.factor, log_sigma=log_sigma)


def combined(kind: HostKind, anchors: Sequence[HostAnchor], backward: float) -> tuple[float, float]:
    """Return the factor of a machine over its kind's, and its logarithm's standard deviation.

    Python issues the forward pass and the optimizer, and autograd's thread the backward pass. Each
    thread has its own factor. A step mixes the two by its work, so a measured step shows most
    about steps with a similar mix.

    Args:
        kind: The kind without measurements; its spread is that of steps with equal halves.
        anchors: The measured steps, at least one.
        backward: Share of the backward pass in the host's work of the step to predict.

    Source: conditional normal distribution; Rasmussen and Williams, "Gaussian Processes for Machine
    Learning", 2006, eq. 2.19.
    """
    shares = np.array([*(one.backward_fraction for one in anchors), backward])
    mixes = np.column_stack((shares, 1 - shares))
    shared = 2 * kind.log_sigma**2 * mixes @ mixes.T
    errors = np.diag([one.log_sigma**2 for one in anchors])
    weights = np.linalg.solve(shared[:-1, :-1] + errors, shared[:-1, -1])
    logs = np.log([one.factor / kind.factor for one in anchors])
    variance = float(shared[-1, -1] - weights @ shared[:-1, -1])
    return math.exp(weights @ logs), math.sqrt(variance)


def _joined(kind: HostKind, new: Sequence[HostAnchor]) -> tuple[Sequence[HostAnchor], str]:
    """Return the measurements of a kind and its name; the name says if their file is damaged."""
    folder, found, name = user_calibrations(), (), kind.name
    if folder is not None:
        path = folder / _FILE.format(kind.id)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=tuple[HostAnchor, ...])
        except FileNotFoundError:
            pass
        except (OSError, ValueError):  # not readable, not UTF-8, not of this form
            name += f" (what you measured of it cannot be read: delete {path})"
    by_gpu = {(one.said.rpartition(":")[0], one.target): one for one in (*found, *new)}
    return tuple(by_gpu.values()), name


def _keep(kind: HostKind, new: Sequence[HostAnchor]) -> str:
    """Store the measurements of a kind, and return a message about it."""
    if (folder := user_calibrations()) is None:
        return "it is not kept, since BREAKEVEN_CALIBRATIONS is empty"
    path = folder / _FILE.format(kind.id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, msgspec.json.encode(_joined(kind, new)[0]), force=True)
    except (OSError, BreakevenError) as error:
        return f"it is not kept: {error}"
    return f"later answers use it for GPUs in a {kind.name}, until you delete {path}"


def in_measured_machines(
    host: HostSpec,
    new: Anchors | None = None,
    *,
    without: str = "",
    program: Program | None = None,
) -> HostSpec:
    """Return a host whose kinds are updated by the user's measurements.

    Args:
        host: The host of the GPUs.
        new: Measurements to add to the stored ones.
        without: A script whose measurements are left out.
        program: The step to predict; without it, half of the work is in the backward pass.
    """
    backward, is_eager = _BACKWARD_FRACTION, False
    if program:
        backward = backward_fraction(program, host)
        is_eager = not compile_mode_of(program.trace)

    def changed(one: FeedingHost) -> FeedingHost:
        kind = find_host_kind(one.kind.id) if isinstance(one.kind, HostKind) else None
        if kind is None:
            return one
        told = (new or {}).get(kind.id, ())
        after = as_measured(kind, told, without=without, backward=backward)
        is_known = is_eager and after.log_sigma != kind.log_sigma
        return replace(with_known_passes(one) if is_known else one, kind=after)

    return host.each(changed) if isinstance(host, FeedingHost) else host


def with_known_passes(host: FeedingHost) -> FeedingHost:
    """Return a host with the smaller error of eager steps if another step was measured there."""
    less = STEP_LOG_SIGMA**2 - PASS_LOG_SIGMA**2
    return replace(host, log_sigma=math.sqrt(max(host.log_sigma**2 - less, PASS_LOG_SIGMA**2)))


def anchors_of(
    speeds: Mapping[str, Speed], program: Program, host: HostSpec, target: str,
    counts: Mapping[str, float | None],
) -> tuple[Anchors, tuple[Caveat, ...]]:  # fmt: skip
    """Return the anchors of kinds of machines that a step's speeds imply, and caveats on them.

    The anchors are stored for later.

    Args:
        speeds: Speeds of the step on GPUs, by the user's words.
        program: The step.
        host: The host of the GPUs without measurements, including the work that the step on this
            CPU shows.
        target: The script.
        counts: Number of steps in a ``sample`` and an ``epoch``; None if unknown.

    Raises:
        UsageError: If a speed has an unknown unit of steps, if its GPU is in no kind of machine, or
            if it is far from the prediction.
    """
    known = host
    if mode := compile_mode_of(program.trace):  # the GPU ran the step that the script compiles
        program = program.edited(compiled_step(program, mode).edit)
    elif isinstance(host, FeedingHost):
        known = host.each(with_known_passes)
    backward = backward_fraction(program, host)
    new: Anchors = {}
    messages: dict[str, tuple[str, str]] = {}
    for said, speed in speeds.items():
        fed_by, num_steps = host.kind_for(speed.device), counts.get(speed.per, 1.0)
        kind = find_host_kind(fed_by.id) if fed_by else None
        if kind is None or not isinstance(known, FeedingHost) or not isinstance(host, FeedingHost):
            raise _refused(
                said, "its GPU is in no kind of machine here: name one, as in 'colab T4: 340 it/s'"
            )
        if not num_steps:
            raise _refused(said, f"the steps per {speed.per} are unknown: use it/s or ms")
        step_ns, usual = speed.time_ns / num_steps, predictor(program, speed.device, host)(kind)
        message = f"{format_duration(step_ns)} a step, and {_text(usual)} is "
        if not 1 / _MOST_OFF < step_ns / usual.value_ns < _MOST_OFF:
            raise _refused(said, f"that is {message}predicted, more than {_MOST_OFF:g} times apart")
        predicted = predictor(program, speed.device, known)
        found = factor_shown(step_ns, kind, predicted)
        if found is None:
            message += (
                "predicted: the host does not decide this step, so it shows nothing about the host"
            )
        else:
            anchor = HostAnchor(
                date=datetime.now(UTC).date().isoformat(), target=target,
                said=f"{speed.device.name}:{said.rpartition(':')[2]}",
                factor=found[0], log_sigma=found[1], backward_fraction=backward,
            )  # fmt: skip
            told = new.setdefault(kind.id, [])
            told.append(anchor)
            after = _text(predicted(as_measured(kind, told, backward=backward)))
            message += f"usual in a {kind.name}; with that, {after}"
        messages[said] = message, kind.id if found else ""
    # Store only after all have been accepted.
    kept = {kind_id: _keep(find_kind(kind_id), told) for kind_id, told in new.items()}
    return new, tuple(
        Caveat(
            code="measured-speed",
            message="; ".join(filter(None, (f"{said}: that is {message}", kept.get(kind_id)))),
        )
        for said, (message, kind_id) in messages.items()
    )


def _text(estimate: Estimate) -> str:
    return duration_with_interval(estimate.value_ns, estimate.low_ns, estimate.high_ns)


def predictor(program: Program, device: DeviceSpec, fed: FeedingHost) -> _Predictor:
    """Return a function that predicts a step on a GPU for a kind of machine."""

    def predicted(kind: HostKind) -> Estimate:
        host = fed.each(lambda one: replace(one, kind=kind))
        return predict_steps(program, (device,), host)[0].estimate

    return predicted


def factor_shown(
    step_ns: float, kind: HostKind, predicted: _Predictor
) -> tuple[float, float] | None:
    """Return a machine's factor as a step shows it, without the kind's spread; None if it does not.

    Args:
        step_ns: Measured time of the step.
        kind: Kind of the machine, without measurements.
        predicted: Predicts the step.

    Returns:
        The factor, and the standard deviation of its logarithm.
    """
    mean, sigma = log_factor(step_ns, kind, predicted)
    if sigma > _LITTLE_TOLD * kind.log_sigma:
        return None
    # The kind's own spread enters once, with all measurements together.
    weight = sigma**-2 - kind.log_sigma**-2
    return kind.factor * math.exp(mean * sigma**-2 / weight), weight**-0.5


def log_factor(step_ns: float, kind: HostKind, predicted: _Predictor) -> tuple[float, float]:
    """Return the logarithm of a machine's factor over its kind's, and its standard deviation.

    Before a measurement, it is normal around 0. The measured time equals the prediction at the
    machine's factor, up to the error of a step on a known machine. If the host does not decide the
    step, then all factors predict about the same time, and nothing changes.

    Args:
        step_ns: Measured time of the step.
        kind: Kind of the machine, without measurements.
        predicted: Predicts the step.
    """
    off = abs(math.log(step_ns / predicted(kind).value_ns)) + 4 * kind.log_sigma
    tried, factors = np.linspace(-off, off, _NUM_TRIED), np.linspace(-off, off, _NUM_WEIGHED)
    # The host's own spread already includes the error of a step.
    known = replace(kind, log_sigma=0.0)
    steps = [predicted(replace(known, factor=kind.factor * math.exp(each))) for each in tried]
    logs = np.log([(step.value_ns, step.low_ns, step.high_ns) for step in steps]).T
    value, low, high = (np.interp(factors, tried, column) for column in logs)
    # A slower host has wider intervals. Limit them, so that a step faster than predicted does not
    # indicate a slower host.
    usual = predicted(known)
    error = np.minimum((high - low), math.log(usual.high_ns / usual.low_ns)) / (2 * Z_90)
    away = (factors / kind.log_sigma) ** 2 + ((math.log(step_ns) - value) / error) ** 2
    weights = np.exp((away.min() - away) / 2) / error
    mean = np.average(factors, weights=weights)
    return float(mean), float(np.average((factors - mean) ** 2, weights=weights) ** 0.5)

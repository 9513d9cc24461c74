"""Judge a measured speed of a step on a GPU: is it normal, and what explains the excess?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

import numpy as np
from msgspec.structs import replace

from breakeven.advise import recast
from breakeven.calibrate import Speed, anchors_of, in_measured_machines, read_speeds, with_kinds
from breakeven.device import (
    DeviceSpec,
    FeedingHost,
    HostSpec,
    find_host_kind,
    known_device,
    select_devices,
)
from breakeven.errors import Caveat, UsageError
from breakeven.report.normal_report import (
    NORMAL_SCHEMA_VERSION,
    NormalReport,
    Pace,
    SlowCause,
    SpeedJudgement,
    Suspect,
)
from breakeven.simulate import (
    Z_90,
    Edit,
    Program,
    StepPrediction,
    compile_mode_of,
    compiled_step,
    predict_steps,
)
from breakeven.studies.host_work import host_for_prediction, with_factors_of
from breakeven.studies.measured_step import measure_target, program_facts, shown_host, step_caveats
from breakeven.studies.study import StoredRun, StudyOptions, read_recorded, start_study
from breakeven.timing import Estimate, Source
from breakeven.trace import HostWork
from breakeven.units import format_duration
from breakeven.verdict import DeviceKind, DeviceResult, HostSummary, device_result, estimate_of

# A step counts as fast below the interval widened by this power, since a fast step is no reason to
# search. Chosen, like the prior, on one half of the sources of `benchmarks/normal.py`, which shows
# the rates on the other half.
_FAST_FROM = 1.5
# Factors by which machines slow down what they do. The slowest kind of host takes 3.3 times as long
# as the fastest. A GPU at half of its clock, or shared with one more process, takes twice as long.
_FACTORS = np.geomspace(1.1, 4.0, 12)
# The share of operators that the host waits for.
_WAIT_SHARES = np.linspace(0.25, 1.0, 7)
# How often a cause is met, relative to the others; those not listed are 1.
_PRIOR = {SlowCause.LOADER: 4.0}
# Causes below this probability, or that explain less than this share of the excess, are not named.
_LEAST_SHARE = 0.05
_DOUBLE = dict.fromkeys(("float16", "bfloat16", "float32"), "float64") | {"complex64": "complex128"}
_FULL = {"float16": "float32", "bfloat16": "float32"}
_LOOK = {
    SlowCause.LOADER: "time the loop with one batch reused: if it is normal, raise num_workers",
    SlowCause.HOST: "breakeven calibrate there; breakeven devices --hosts shows kinds of machines",
    SlowCause.SYNC: "breakeven explain TARGET, and CUDA_LAUNCH_BLOCKING in the environment",
    SlowCause.FLOAT64: "print({p.dtype for p in model.parameters()}) and batch.dtype",
    SlowCause.NO_TENSOR_CORES: "torch.is_autocast_enabled(); torch.get_float32_matmul_precision()",
    SlowCause.DEVICE: "nvidia-smi, and nvidia-smi -q -d PERFORMANCE,CLOCK while it trains",
}

_NO_SPEED = "no speed to judge: no GPU here that breakeven knows, and no --measured"
_NO_SPEED_HINT = "say what you saw: --measured 'T4: 340 it/s'; in Python, measured=['T4: 340 it/s']"


def normal_target(
    target: str,
    *,
    devices: Sequence[str] = (),
    **options: Unpack[StudyOptions],
) -> NormalReport:
    """Judge whether the step of ``target`` is as fast as it should be on the GPU that ran it.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        devices: Names of other GPUs to predict, six by default.
        **options: Of the runs; see `StudyOptions`. ``measured`` has the speeds to judge; a GPU
            here is measured.

    Raises:
        BreakevenError: If the target gives no answer, or a device or host is unknown.
        UsageError: If there is no speed to judge, or one is no speed of this step.
    """
    with start_study(target, devices=select_devices(devices), **options) as study:
        if not (study.speeds or study.ready.gpu):
            raise UsageError(_NO_SPEED, hint=_NO_SPEED_HINT)
        step = measure_target(study.runner, has_gpu=bool(study.ready.gpu))
        seen = host_for_prediction(step.program, step.plain, study.host, study.here)
        facts = program_facts(step, study.devices, seen, study.here)
        study.progress.end()
    return _judge_all(
        step.program, seen, study.speeds, step.results, study.devices, target=study.target.label,
        shown=shown_host(seen, step.plain, study.ready.torch_version),
        steps_per_epoch=facts.steps_per_epoch,
        caveats=step_caveats(step, facts, seen, study.here, more=study.caveats),
    )  # fmt: skip


def normal_run(
    run: StoredRun, *, devices: Sequence[str] = (), measured: Sequence[str] = ()
) -> NormalReport:
    """Judge speeds of the step of a run that ``breakeven check`` or ``explain`` wrote.

    Nothing is run or measured again.

    Args:
        run: The file, or the report itself.
        devices: Names of other GPUs to predict, six by default.
        measured: As for `normal_target`.

    Raises:
        BreakevenError: If a device is unknown.
        StoredDataError: If the file holds no recorded step that can be read.
        UsageError: As for `normal_target`.
    """
    speeds = read_speeds(measured)
    report, recording, program = read_recorded(run, "normal")
    own, kinds = recording.host, {one.device.id: one.kind for one in speeds.values() if one.kind}
    host = with_kinds(own, own, kinds)
    assert isinstance(host, FeedingHost)
    return _judge_all(
        program, with_factors_of(own, host), speeds, report.results, select_devices(devices),
        target=report.target, shown=report.host,
        steps_per_epoch=report.program.steps_per_epoch if report.program else None,
        caveats=tuple(one for one in report.caveats if one.code != "measured-speed"),
    )  # fmt: skip


def _judge_all(
    program: Program,
    host: HostSpec,
    speeds: Mapping[str, Speed],
    results: Sequence[DeviceResult],
    devices: Sequence[DeviceSpec],
    *,
    target: str,
    shown: HostSummary,
    steps_per_epoch: float | None,
    caveats: tuple[Caveat, ...],
) -> NormalReport:
    """Judge each speed, and predict other GPUs with what normal speeds show of their machines.

    Args:
        program: The step as recorded.
        host: The host of the GPUs, adjusted to the work of the step.
        speeds: Speeds elsewhere, by the user's words.
        results: Results of the devices that recorded the step.
        devices: Other GPUs to predict.
        target: The script.
        shown: The host, for the report.
        steps_per_epoch: Steps in a pass over the data; None if unknown.
        caveats: Caveats on all figures.
    """
    mode, size = compile_mode_of(program.trace), program.trace.batch_size
    counts = {"sample": size and 1 / size, "epoch": steps_per_epoch}
    ran = program.edited(compiled_step(program, mode).edit) if mode else program
    # What this script's earlier speeds show would hide that it is slow.
    typical = in_measured_machines(host, without=target, program=ran)
    judged: list[SpeedJudgement] = []
    trusted: dict[str, Speed] = {}
    for result in results:
        device = known_device(result.device)
        if result.kind is DeviceKind.GPU and result.source is Source.MEASURED and device:
            judged.append(judge(ran, device, typical, estimate_of(result)))
    for said, speed in speeds.items():
        num_steps = counts.get(speed.per, 1.0)
        if not num_steps:
            raise UsageError(
                f"--measured {said!r}: the steps per {speed.per} are unknown",
                hint="say it per step: it/s or ms",
            )
        ns = speed.time_ns / num_steps
        step = Estimate(value_ns=ns, low_ns=ns, high_ns=ns, source=Source.MEASURED)
        judged.append(judge(ran, speed.device, typical, step, said))
        _ensure_unit(judged[-1])
        kind = typical.kind_for(speed.device)
        if judged[-1].pace is Pace.NORMAL and kind and find_host_kind(kind.id):
            trusted[said] = speed
    if not judged:
        raise UsageError(_NO_SPEED, hint=_NO_SPEED_HINT)
    anchors, told = anchors_of(trusted, program, host, target, counts)
    used = {anchor.said for found in anchors.values() for anchor in found}
    others = [device for device in devices if device.name not in {one.device for one in judged}]
    predicted = predict_steps(ran, others, in_measured_machines(host, anchors, program=ran))
    speeds_shown = (
        replace(one, is_used=f"{one.device}:{one.said.rpartition(':')[2]}" in used)
        for one in judged
    )
    return NormalReport(
        schema_version=NORMAL_SCHEMA_VERSION, target=target, host=shown,
        batch_size=size, speeds=tuple(speeds_shown),
        others=tuple(map(device_result, predicted)), caveats=(*caveats, *told),
    )  # fmt: skip


def _ensure_unit(judged: SpeedJudgement) -> None:
    """Refuse a speed that would be normal in a unit of a thousandth or of a thousand times.

    Raises:
        UsageError: It is one.
    """
    expected = judged.expected
    for factor in (1e-3, 1e3):
        other_ns = factor * judged.measured.value_ns
        if expected.low_ns / 2 <= other_ns <= 2 * expected.high_ns:
            raise UsageError(
                f"--measured {judged.said!r}: that is {format_duration(judged.measured.value_ns)} "
                f"a step, and {format_duration(expected.value_ns)} is predicted",
                hint=f"did you mean {format_duration(other_ns)} a step?",
            )


def judge(
    program: Program, device: DeviceSpec, host: HostSpec, measured: Estimate, said: str = ""
) -> SpeedJudgement:
    """Judge a measured step on a GPU.

    Args:
        program: The step, compiled if the measured one was.
        device: The GPU.
        host: A typical machine around it, without what this measurement shows.
        measured: The measured step.
        said: The speed in the user's words.
    """
    (predicted,) = predict_steps(program, (device,), host)
    judged = compared(predicted, measured, said)
    if judged.pace is not Pace.SLOW:
        return judged
    return with_suspects(judged, dict(added_times(program, device, host, predicted)))


def compared(predicted: StepPrediction, measured: Estimate, said: str = "") -> SpeedJudgement:
    """Compare a measured step with its prediction.

    Args:
        predicted: The step in a typical machine.
        measured: The measured step.
        said: The speed in the user's words.
    """
    expected = predicted.estimate
    ratio = measured.value_ns / expected.value_ns
    # A ratio is lowest with the least numerator and the largest denominator.
    ups = [math.log(one.high_ns / one.value_ns) for one in (measured, expected)]
    downs = [math.log(one.value_ns / one.low_ns) for one in (measured, expected)]
    above, below = math.hypot(downs[0], ups[1]), math.hypot(ups[0], downs[1])
    pace = Pace.NORMAL
    if math.log(ratio) > above:
        pace = Pace.SLOW
    elif math.log(ratio) < -_FAST_FROM * below:
        pace = Pace.FAST
    return SpeedJudgement(
        said=said, device=predicted.device.name, fed_by=predicted.fed_by, measured=measured,
        expected=expected, ratio=ratio, ratio_low=ratio * math.exp(-above),
        ratio_high=ratio * math.exp(below), pace=pace, bound=predicted.bound,
    )  # fmt: skip


def added_times(
    program: Program, device: DeviceSpec, host: HostSpec, predicted: StepPrediction
) -> Iterator[tuple[SlowCause, np.ndarray]]:
    """Yield causes with the times by which they may lengthen the step, in nanoseconds.

    Host and device work at the same time: what slows one of them down adds nothing until it takes
    longer than the other.

    Args:
        program: The step.
        device: The GPU.
        host: A typical machine around it.
        predicted: The step there.
    """
    host_ns, device_ns = predicted.host_ns, predicted.device_busy_ns
    longer_ns = max(host_ns, device_ns)
    works = [one for one in program.trace.events if isinstance(one, HostWork)]
    alone_ns = sum(one.duration_ns for one in works if one.kind == "data" and not one.num_workers)
    yield SlowCause.HOST, _FACTORS * host_ns - longer_ns
    yield SlowCause.DEVICE, _FACTORS * device_ns - longer_ns
    yield SlowCause.SYNC, _WAIT_SHARES * min(host_ns, device_ns)
    # The expected step already contains the loader's time here; workers load while it runs.
    beyond_ns = np.maximum(_FACTORS * predicted.loader_ns - predicted.estimate.value_ns, 0.0)
    yield SlowCause.LOADER, beyond_ns + (_FACTORS - 1) * alone_ns
    in_full = replace(program.trace.settings, autocast_dtype="")
    no_tf32 = replace(in_full, allow_tf32_matmul=False, allow_tf32_convolution=False)
    for cause, dtypes, changes in (
        (SlowCause.FLOAT64, _DOUBLE, (in_full,)),
        (SlowCause.NO_TENSOR_CORES, _FULL, (in_full, no_tf32)),
    ):
        edit = recast(program.trace, dtypes)
        programs = (program.edited(edit.then(Edit(settings=each))) for each in changes)
        steps = [predict_steps(each, (device,), host)[0].estimate for each in programs]
        yield cause, np.array([step.value_ns for step in steps]) - predicted.estimate.value_ns


def with_suspects(judged: SpeedJudgement, added: Mapping[SlowCause, np.ndarray]) -> SpeedJudgement:
    """Return a slow step with the causes that can account for the excess, the most probable first.

    Each is weighed by the likelihood of the measured time, averaged over the times that the cause
    may add: a cause that predicts the time weighs more than one that allows for many.

    Args:
        judged: The slow step.
        added: Times that each cause may add.
    """
    expected, measured_ns = judged.expected, judged.measured.value_ns
    excess_ns = measured_ns - expected.value_ns
    sigma = math.log(expected.high_ns / expected.low_ns) / (2 * Z_90)
    weights: dict[SlowCause, np.ndarray] = {}
    explained_ns: dict[SlowCause, float] = {}
    for cause, times_ns in added.items():
        off = np.log(measured_ns / (expected.value_ns + np.maximum(times_ns, 0.0))) / sigma
        each = math.log(_PRIOR.get(cause, 1.0) / len(times_ns)) - off**2 / 2
        each = np.where(times_ns > 0, each, -np.inf)
        if times_ns.max() > 0:
            amount_ns = float(np.average(times_ns, weights=np.exp(each - each.max())))
            if amount_ns >= _LEAST_SHARE * excess_ns:
                weights[cause], explained_ns[cause] = each, min(excess_ns, amount_ns)
    if not weights:
        return replace(judged, is_explained=False)
    best = max(float(each.max()) for each in weights.values())
    likelihoods = {cause: np.exp(each - best) for cause, each in weights.items()}
    whole = sum(float(each.sum()) for each in likelihoods.values())
    found = [
        Suspect(
            cause=cause,
            at_most_ns=float(added[cause].max()),
            look=_LOOK[cause],
            explained_ns=explained_ns[cause],
            share=float(each.sum()) / whole,
        )
        for cause, each in likelihoods.items()
        if each.sum() >= _LEAST_SHARE * whole
    ]
    found.sort(key=lambda one: -one.share)
    reach_ns = expected.high_ns * (1 + max(one.at_most_ns for one in found) / expected.value_ns)
    return replace(judged, suspects=tuple(found), is_explained=reach_ns >= measured_ns)

"""Made-up judgements of speeds, and a stored run to judge speeds of."""

from __future__ import annotations

from msgspec.structs import replace

from breakeven.calibrate import host_called
from breakeven.cost import reference_host
from breakeven.device import HERE, FeedingHost
from breakeven.report import CheckReport, NormalReport, record
from breakeven.report.normal_report import (
    NORMAL_SCHEMA_VERSION,
    Pace,
    SlowCause,
    SpeedJudgement,
    Suspect,
)
from breakeven.simulate import Bound
from breakeven.timing import Estimate, Source
from breakeven.trace import HostWork, StepTrace
from factories import reports
from factories.reports import HOST, MS, gpu
from factories.steps import loader_facts, op, tensor


def said(time_ms: float) -> Estimate:
    """Return a time in milliseconds as a user gives it."""
    time_ns = MS * time_ms
    return Estimate(value_ns=time_ns, low_ns=time_ns, high_ns=time_ns, source=Source.MEASURED)


def small_step(**changes: object) -> StepTrace:
    """Return a step that the host decides on any GPU, about 4 ms in a cloud machine."""
    x = tensor(8, 8, device="cuda:0")
    step = StepTrace(
        events=tuple(op(inputs=(x, x), outputs=(x,)) for _ in range(200)), batch_size=32
    )
    return replace(step, **changes)


def large_step(dtype: str = "float32") -> StepTrace:
    """Return a step that any GPU decides."""
    x = tensor(4_096, 4_096, device="cuda:0", dtype=dtype)
    return StepTrace(events=(op(name="aten.mm.default", inputs=(x, x), outputs=(x,)),) * 20)


def loading_step(loader_ms: float) -> StepTrace:
    """Return a large step whose batches come from two worker processes."""
    step = large_step()
    work = HostWork(kind="data", duration_ns=round(2 * MS * loader_ms), num_workers=2)
    facts = replace(step.facts, loaders=(loader_facts(batch_size=32, num_samples=640),))
    return replace(step, events=(work, *step.events), batch_size=32, facts=facts)


def machines() -> FeedingHost:
    """Return this machine, for desktop GPUs, and a cloud machine for the others."""
    host = host_called("auto", replace(reference_host(), id=HERE, name="this CPU"))
    assert isinstance(host, FeedingHost)
    return host


def stored_run(step: StepTrace) -> CheckReport:
    """Return a check of a step with its recording."""
    return replace(reports.cpu_wins(), recording=record(step, machines()), target="train.py")


def judgement(**changes: object) -> SpeedJudgement:
    """Return a slow step."""
    judged = SpeedJudgement(
        said="T4: 41 ms",
        device="T4",
        fed_by="cloud virtual machine",
        measured=said(41),
        expected=Estimate(
            value_ns=12 * MS, low_ns=9 * MS, high_ns=15 * MS, source=Source.PREDICTED
        ),
        ratio=41 / 12,
        ratio_low=41 / 15,
        ratio_high=41 / 9,
        pace=Pace.SLOW,
        bound=Bound.COMPUTE,
        suspects=(
            Suspect(
                cause=SlowCause.LOADER, explained_ns=28 * MS, at_most_ns=96 * MS,
                share=0.72, look="time the loop with one batch reused",
            ),
            Suspect(
                cause=SlowCause.DEVICE, explained_ns=24 * MS, at_most_ns=33 * MS,
                share=0.28, look="nvidia-smi -q -d PERFORMANCE",
            ),
        ),
    )  # fmt: skip
    return replace(judged, **changes)


def report(*speeds: SpeedJudgement) -> NormalReport:
    """Return a report of these speeds."""
    return NormalReport(
        schema_version=NORMAL_SCHEMA_VERSION,
        target="train.py",
        host=HOST,
        batch_size=64,
        speeds=speeds,
        others=(
            gpu("RTX 4090", 3 * MS, 2.2 * MS, 4.1 * MS, Bound.LAUNCH, fed_by="Linux desktop"),
            gpu("A100", 5 * MS, 3.5 * MS, 7.5 * MS, Bound.COMPUTE, fed_by="cloud machine, used"),
        ),
    )


def all_paces() -> NormalReport:
    """Return a report of a slow speed, a normal one, a fast one and one without explanation."""
    quick, whole = said(3), said(11)
    return report(
        judgement(),
        judgement(
            said="L4: 11 ms", device="L4", measured=whole, ratio=11 / 12, ratio_low=11 / 15,
            ratio_high=11 / 9, pace=Pace.NORMAL, suspects=(), is_used=True, bound=Bound.LAUNCH,
        ),
        judgement(
            said="", device="A100", fed_by="", measured=quick, ratio=1 / 4, ratio_low=1 / 5,
            ratio_high=1 / 3, pace=Pace.FAST, suspects=(),
        ),
        judgement(said="V100: 41 ms", device="V100", suspects=(), is_explained=False),
    )  # fmt: skip

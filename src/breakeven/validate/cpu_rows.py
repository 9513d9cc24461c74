"""Rows of CPUs that are named: their step is timed on this CPU, and carried over to theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from breakeven.calibrate import named_host
from breakeven.device import HostCpu
from breakeven.errors import BreakevenError, Caveat
from breakeven.progress import Progress
from breakeven.simulate import (
    FITTED_ON,
    Program,
    build_program,
    issuing_of,
    predict_absent_cpu,
    rates_of,
)
from breakeven.timing import Estimate
from breakeven.trace import NumberFormat, StepCase
from breakeven.validate.table import MeasuredRow
from breakeven.validate.traced_rows import RowOutcome
from breakeven.verdict import RowPrediction, Unpredictable
from breakeven.workloads import trace_cases

# Of a step that is long, two calls are enough: the first one only warms up.
_SECONDS = 2.0
# "2x Xeon E5-2630 v3".
_SOCKETS = re.compile(r"(?:cpu\s+)?(?:[2-9]|\d\d)\s*x\s", re.IGNORECASE)
_COMPILED = Caveat(
    code="timed-as-written",
    message="the step was timed here as it is written; the row's was compiled",
)


class MeasuredCpus:
    """Times each step on one core of this CPU.

    Args:
        progress: Progress callback.
        time_step: Returns the time of a step of this batch size here, on one core; injected in
            tests.
    """

    def __init__(
        self, *, progress: Progress, time_step: Callable[[StepCase, int], Estimate] | None = None
    ) -> None:
        self._progress = progress
        self._time_step = time_step or time_here

    def predict(self, rows: Sequence[MeasuredRow], cpus: Sequence[HostCpu]) -> Sequence[RowOutcome]:
        """Return one outcome per row; equal steps are timed once."""
        from breakeven.measure import measure_cpu_rates, measure_host

        refused = [_refused(row, cpu) for row, cpu in zip(rows, cpus, strict=True)]
        wanted = [row for row, reason in zip(rows, refused, strict=True) if reason is None]
        traces = trace_cases(
            [row.case for row in wanted],
            progress=lambda num_known, num_wanted: self._progress.detail(
                f"traced {num_known} of {num_wanted} steps of CPUs"
            ),
        )
        steps = list(dict.fromkeys((row.case, row.batch_size) for row in wanted))
        timed: dict[tuple[StepCase, int], tuple[Program, Estimate] | Unpredictable] = {}
        for number, (case, batch_size) in enumerate(steps, start=1):
            self._progress.detail(f"timing step {number} of {len(steps)} here: {case.workload}")
            trace = traces[case]
            if isinstance(trace, BreakevenError):
                timed[case, batch_size] = Unpredictable(code="no-trace", reason=trace.sentence)
                continue
            try:
                found = build_program(trace.at(batch_size)), self._time_step(case, batch_size)
            except BreakevenError as error:
                found = Unpredictable(code="not-timed", reason=error.message)
            timed[case, batch_size] = found
        core, here = measure_cpu_rates(), measure_host().host
        outcomes: list[RowOutcome] = []
        for row, cpu, reason in zip(rows, cpus, refused, strict=True):
            found = reason or timed[row.case, row.batch_size]
            if isinstance(found, Unpredictable):
                outcomes.append(found)
                continue
            program, step = found
            issuing = issuing_of(program, here, named_host(cpu.id))
            outcomes.append(
                RowPrediction(
                    estimate=predict_absent_cpu(program, step, core, rates_of(cpu), issuing),
                    caveats=(*(() if row.compile == "none" else (_COMPILED,)), *row.caveats),
                    is_calibrated_on=cpu.id == FITTED_ON,
                )
            )
        return outcomes


def time_here(case: StepCase, batch_size: int) -> Estimate:
    """Return the shortest time of a step on one core of this CPU, without what others take of it.

    Raises:
        WorkloadError: The workload cannot be built.
    """
    import torch

    from breakeven.measure import time_on_one_core
    from breakeven.workloads import step_on_device

    step = step_on_device(case, batch_size, torch.device("cpu"))
    return time_on_one_core(step, budget_s=_SECONDS)


def _refused(row: MeasuredRow, cpu: HostCpu) -> Unpredictable | None:
    """Return why a row is not predicted, where that does not depend on its workload."""
    try:
        rates_of(cpu)
    except BreakevenError as error:
        return Unpredictable(code="unknown-rates", reason=error.message)
    if row.not_modelled:
        return Unpredictable(code="not-modelled", reason=row.not_modelled)
    if row.num_devices > 1 or _SOCKETS.match(row.device):
        return Unpredictable(code="not-modelled", reason="steps on several CPUs")
    if row.precision not in (NumberFormat.FP32, NumberFormat.TF32):
        reason = f"steps of CPUs in {row.precision}: what they compute a second is known in fp32"
        return Unpredictable(code="not-modelled", reason=reason)
    return None

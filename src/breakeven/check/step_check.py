"""From a function that does one step to a report, within this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from breakeven.calibrate import named_host
from breakeven.capture import time_step, trace_step
from breakeven.check.target_check import check_report
from breakeven.device import HERE, select_devices
from breakeven.errors import UsageError
from breakeven.measure import measure_host
from breakeven.session import AXIS, LiveStep, is_worth_repeating, measured_result, quieter
from breakeven.verdict import CheckReport, DeviceKind, NoCrossover

_ONE_SIZE = NoCrossover(
    none_because="A function has the batch size that it was written with. To find out, call "
    "check_step with functions of several sizes.",
    axis=AXIS,
)


def check_step(
    step: Callable[[], object],
    *,
    devices: Sequence[str] = (),
    host: str = "here",
    budget_s: float = 1.0,
) -> CheckReport:
    """Check whether a GPU pays off for ``step``, a function that does one training step.

    The function is called some tens to thousands of times, plainly and then recorded on a
    pretended GPU; model and optimizer are trained by it as by any other call.

    Args:
        step: Takes no arguments; forward, backward and update of tensors on the CPU.
        devices: Names of GPUs to compare with; a choice of six by default.
        host: ``here``, or the name of another host that would feed the GPUs.
        budget_s: Seconds of plain steps that are enough when they are short.

    Raises:
        BreakevenError: A device or host is unknown.
        UsageError: ``step`` is no function.
    """
    if not callable(step):
        raise UsageError(
            f"step is a {type(step).__name__}, not a function",
            hint="pass the function itself, without calling it: check_step(step)",
        )
    specs = select_devices(devices)
    here = measure_host().host
    host_spec = here if host == HERE else named_host(host)
    plain = time_step(step, budget_s=budget_s)
    if is_worth_repeating(plain):
        plain = quieter(plain, time_step(step, budget_s=budget_s))
    live = LiveStep(
        traced=trace_step(step),
        plain=plain,
        as_set=plain,
        devices=specs,
        host=host_spec,
        here=here,
        measured=(measured_result(plain, DeviceKind.CPU),),
        torch_version=str(torch.__version__),
    )
    name = str(getattr(step, "__qualname__", type(step).__name__))
    return check_report(live, target=name, crossover=_ONE_SIZE)

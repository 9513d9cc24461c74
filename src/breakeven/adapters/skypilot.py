"""Times of a stored run for SkyPilot's optimizer, and the machines that it compares."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from breakeven.adapters.transformers import import_optional
from breakeven.errors import BreakevenError, UsageError
from breakeven.studies import CostRequest, TrainingLength, cost_run
from breakeven.units import NS_PER_S

# HF Jobs is no cloud of SkyPilot's.
_WHY_NONE = ("no-cpu-machines", "absent-cpu-not-predicted")
_CLOUDS = ("aws", "gcp", "azure")


def sky_estimator(
    run: str | os.PathLike[str],
    steps: int,
    deadline_s: float | None = None,
    quantile: float = 0.5,
) -> Callable[[Any], float]:
    """Return the function for ``sky.Task.set_time_estimator``: from resources to seconds.

    The time is that of one node and one GPU, with the start of the machine. A machine that does not
    fit a whole batch, or may miss the deadline, takes ``inf``.

    Args:
        run: A file that ``breakeven check -o`` wrote.
        steps: Length of the training.
        deadline_s: Latest end, in seconds from the start; it must hold with 95 % confidence.
        quantile: Of the time, between 0 and 1; 0.5 is the expected time.

    Raises:
        UsageError: If an argument is out of range, or a machine has no price in breakeven's lists.
        BreakevenError: If resources name no machine, or the run gives no time on it.
    """
    if not 0 < quantile < 1:
        raise UsageError(f"{quantile:g} is not a quantile between 0 and 1")
    request = _request(steps, deadline_s)

    @cache
    def seconds(cloud: str, machine: str) -> float:
        clouds = (cloud,) if cloud else _CLOUDS
        report = cost_run(run, replace(request, machines=(machine,), clouds=clouds))
        times = [
            row.time_ns.at(quantile) / NS_PER_S if row.takes_script else float("inf")
            for row in report.rows
            if not row.is_here
        ]
        if not times:
            why = [one.message for one in report.caveats if one.code in _WHY_NONE]
            raise BreakevenError(
                f"{run} gives no time on {machine}",
                hint=why[0] if why else "choose from breakeven prices",
            )
        # Machines with the same GPU differ in their hosts.
        return max(times)

    def estimate(resources: Any) -> float:
        machine = resources.instance_type or next(iter(resources.accelerators or ()), None)
        if machine is None:
            raise BreakevenError(
                f"{resources} names neither a machine nor a GPU",
                hint="set instance_type, or use breakeven.sky_candidates",
            )
        return seconds(str(resources.cloud or "").lower(), machine)

    return estimate


def sky_candidates(
    run: str | os.PathLike[str],
    steps: int,
    deadline_s: float | None = None,
    clouds: Sequence[str] = _CLOUDS,
) -> set[Any]:
    """Return the ``sky.Resources`` to compare: the cheapest machine of each GPU, and CPU machines.

    It leaves out machines that do not fit a whole batch, may miss the deadline, or are not offered
    by SkyPilot.

    Args:
        run: A file that ``breakeven check -o`` wrote.
        steps: Length of the training.
        deadline_s: Latest end, in seconds from the start; it must hold with 95 % confidence.
        clouds: Ids of providers.

    Raises:
        UsageError: If an argument is out of range, or a provider is unknown.
        BreakevenError: If SkyPilot is not installed, or no machine is left.
    """
    sky = import_optional("sky", packages="skypilot")
    offers = import_optional("sky.catalog", packages="skypilot").instance_type_exists
    report = cost_run(run, replace(_request(steps, deadline_s), clouds=tuple(clouds)))
    rented = [row for row in report.rows if not row.is_here and row.takes_script]
    if not rented:
        raise BreakevenError(
            "no machine fits the step and surely meets the deadline",
            hint="a later deadline_s, or a smaller batch",
        )
    found = {
        sky.Resources(infra=row.provider, instance_type=row.machine)
        for row in rented
        if offers(row.machine, row.provider)
    }
    if not found:
        raise BreakevenError(
            f"SkyPilot offers none of {len(rented)} machines, such as {rented[0].machine}"
        )
    return found


def _request(steps: int, deadline_s: float | None) -> CostRequest:
    if steps < 1:
        raise UsageError(f"{steps} is not a number of steps above 0")
    if deadline_s is not None and not deadline_s > 0:
        raise UsageError(f"{deadline_s:g} is not a number of seconds above 0")
    return CostRequest(length=TrainingLength(num_steps=steps), deadline_s=deadline_s)

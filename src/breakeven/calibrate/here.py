"""The host that feeds the devices: this one, measured and remembered, or one with a name."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace

import msgspec

from breakeven.capture import Launcher
from breakeven.cost import (
    host_spec,
    host_with_steps,
    load_calibrations,
    reference_host,
    shipped_costs,
)
from breakeven.device import HERE, HostCalibration, HostSpec, find_host_cpu
from breakeven.errors import BreakevenError
from breakeven.processor import num_cores
from breakeven.store import read_host, write_host
from breakeven.timing import BUSY_FRACTION

# Some 2 ms each. The few are for a check that meets an unknown host; a calibration that was asked
# for may take longer and knows the spread better.
_FEW_ROUNDS = 60
_MANY_ROUNDS = 600


@dataclass(frozen=True, kw_only=True)
class HereCalibration:
    """This host, with its provenance.

    Args:
        calibration: What was measured of it.
        is_remembered: Whether that was done earlier.
        other_load_fraction: Share of the processors that other processes used just now, where that
            was tried; figures of a busy machine are not kept.
    """

    calibration: HostCalibration
    is_remembered: bool
    other_load_fraction: float

    @property
    def is_busy(self) -> bool:
        """Return whether other processes took so much that the figures are not kept."""
        return self.other_load_fraction > BUSY_FRACTION


def calibrate_here(launcher: Launcher, *, is_forced: bool = False) -> HereCalibration:
    """Measure this host thoroughly, unless that was done, and remember it.

    Args:
        launcher: Runs the measurement in a process of its own.
        is_forced: Measure also where figures are remembered.

    Raises:
        BreakevenError: The measurement did not come to an end.
    """
    return _calibrate(launcher, _MANY_ROUNDS, is_forced=is_forced)


def find_host(name: str, launcher: Launcher) -> HostSpec:
    """Return the host called ``name``; ``here`` is measured once and then remembered.

    Raises:
        BreakevenError: There is no such host.
    """
    if name != HERE:
        return named_host(name)
    here = _calibrate(launcher, _FEW_ROUNDS, is_forced=False)
    load_fraction = 0.0 if here.is_remembered else here.other_load_fraction
    host = _with_own_steps(here.calibration.host, launcher.ready().torch_version)
    return msgspec.structs.replace(host, load_fraction=load_fraction)


def _with_own_steps(host: HostSpec, torch_version: str) -> HostSpec:
    """Return the host with what whole steps on its own GPU showed, where they were measured."""
    # A hypervisor gives many machines one name: others' files say nothing of this one.
    for calibration in load_calibrations(is_own=True).values():
        machine = calibration.machine
        told = (machine.processor, machine.num_cores, machine.torch_version)
        if told == (host.name, num_cores(), torch_version):
            return host_with_steps(host, calibration)
    return host


def find_hosts(name: str, launcher: Launcher) -> tuple[HostSpec, HostSpec]:
    """Return the host called ``name`` and this one, which may be the same and is measured once.

    Raises:
        BreakevenError: There is no such host.
    """
    here = find_host(HERE, launcher)
    return (here if name == HERE else named_host(name)), here


def check_host_name(name: str) -> None:
    """Raise `BreakevenError` for a host that does not exist."""
    if name != HERE:
        named_host(name)


def named_host(name: str) -> HostSpec:
    """Return the reference host, or one with the single-thread speed of the CPU called ``name``.

    How far off such a host is likely to be is what the calibration found of measured steps.

    Raises:
        BreakevenError: There is no such host.
    """
    reference = reference_host()
    try:
        host = reference if name == reference.id else host_spec(find_host_cpu(name))
    except BreakevenError as error:
        raise BreakevenError(
            error.message,
            hint=f"hosts: {HERE}, {reference.id}, or a CPU's name (breakeven devices --hosts)",
        ) from None
    return msgspec.structs.replace(host, log_sigma=shipped_costs().host_log_sigma(host))


def _calibrate(launcher: Launcher, num_rounds: int, *, is_forced: bool) -> HereCalibration:
    ready = launcher.ready()
    key = {
        "machine": platform.node(),
        "processor": ready.processor,
        "processors": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": ready.torch_version,
        "cuda": str(ready.has_cuda),
    }
    stored = None if is_forced else read_host(key)
    # Few rounds answer a check, but not who asked for a calibration.
    if stored is not None and stored.num_rounds >= num_rounds:
        return HereCalibration(calibration=stored, is_remembered=True, other_load_fraction=0.0)
    run = launcher.measure_host(num_rounds)
    here = HereCalibration(
        calibration=run.calibration,
        is_remembered=False,
        other_load_fraction=run.other_load_fraction,
    )
    if not here.is_busy:
        write_host(key, run.calibration)
    elif stored is not None:  # fewer rounds, but of a quieter moment
        return replace(here, calibration=stored, is_remembered=True)
    return here

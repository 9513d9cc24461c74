"""The host of the devices: this machine, measured and cached, or one by its name."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.calibrate.elsewhere import STEP_LOG_SIGMA
from breakeven.capture import Launcher
from breakeven.cost import (
    host_spec,
    host_with_steps,
    load_calibrations,
    reference_host,
    shipped_costs,
)
from breakeven.device import (
    AUTO,
    HERE,
    FeedingHost,
    HostCalibration,
    HostKind,
    HostSpec,
    find_host_cpu,
    find_host_kind,
    find_kind,
    load_host_kinds,
)
from breakeven.errors import BreakevenError, UsageError
from breakeven.processor import is_virtual, num_cores
from breakeven.store import read_host, write_host
from breakeven.timing import BUSY_FRACTION

# About 2 ms each. A check on an unknown host uses few; an explicit calibration may take longer and
# determines the spread better.
_FEW_ROUNDS = 60
_MANY_ROUNDS = 600
# Variables that the containers of Colab and Kaggle set.
NOTEBOOK_VARIABLES = frozenset({"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"})


@dataclass(frozen=True, kw_only=True)
class HereCalibration:
    """This host's calibration and its origin.

    Args:
        calibration: The measurements.
        is_remembered: Whether they come from an earlier run.
        other_load_fraction: Share of the processors that other processes used during a new
            measurement; results of a busy machine are not stored.
    """

    calibration: HostCalibration
    is_remembered: bool
    other_load_fraction: float

    @property
    def is_busy(self) -> bool:
        """Return whether other processes used too much for the results to be stored."""
        return self.other_load_fraction > BUSY_FRACTION


def calibrate_here(launcher: Launcher, *, is_forced: bool = False) -> HereCalibration:
    """Measure this host thoroughly and store the result, unless one is stored.

    Args:
        launcher: Runs the measurement in a separate process.
        is_forced: Measure even if a result is stored.

    Raises:
        BreakevenError: If the measurement does not finish.
    """
    return _calibrate(launcher, _MANY_ROUNDS, is_forced=is_forced)


def find_host(name: str, launcher: Launcher) -> HostSpec:
    """Return the host called ``name``; ``here`` is measured once and then stored.

    Raises:
        BreakevenError: If there is no such host.
    """
    if name != HERE:
        return named_host(name)
    here = _calibrate(launcher, _FEW_ROUNDS, is_forced=False)
    load_fraction = 0.0 if here.is_remembered else here.other_load_fraction
    host = _with_own_steps(here.calibration.host, launcher.ready().torch_version)
    return replace(host, load_fraction=load_fraction)


def _with_own_steps(host: HostSpec, torch_version: str) -> HostSpec:
    """Apply the calibration from whole steps on the host's own GPU, if there is one."""
    # Use only this user's files: a hypervisor gives many machines one name.
    for calibration in load_calibrations(is_own=True).values():
        machine = calibration.machine
        told = (machine.processor, machine.num_cores, machine.torch_version)
        if told == (host.name, num_cores(), torch_version):
            return host_with_steps(host, calibration)
    return host


def find_hosts(
    name: str, launcher: Launcher, kinds: Mapping[str, HostKind]
) -> tuple[HostSpec, HostSpec]:
    """Return the host of the GPUs, and this machine, which is measured once.

    Args:
        name: As for `host_called`.
        launcher: Runs the measurement in a separate process.
        kinds: As for `with_kinds`.

    Raises:
        BreakevenError: If there is no such host.
    """
    here = find_host(HERE, launcher)
    return with_kinds(host_called(name, here), here, kinds), here


def host_called(name: str, here: HostSpec) -> HostSpec:
    """Return the host of the GPUs.

    Args:
        name: ``auto``, ``here``, a kind of machine, ``reference``, or a CPU's name. With ``auto``,
            each GPU is in a machine that usually has it, or in this one if whole steps on its own
            GPU were measured.
        here: This machine.

    Raises:
        BreakevenError: If there is no such host.
    """
    own = kind_here()
    if name in (AUTO, HERE) and here.seen_work.has_steps:
        return here
    if name == AUTO:
        # On a rented machine, predict desktop GPUs in a desktop with the same CPU.
        desk, rented = (find_kind("desktop"), own) if own.is_rented else (own, find_kind("cloud"))
        return replace(_in_machine(desk, here), data_center=_in_machine(rented, here))
    if name == HERE:
        return _in_machine(own, here)
    kind = find_host_kind(name)
    return named_host(name) if kind is None else _in_machine(kind, here)


def with_kinds(host: HostSpec, here: HostSpec, kinds: Mapping[str, HostKind]) -> HostSpec:
    """Put some GPUs into machines of other kinds.

    Args:
        host: The host of all other GPUs.
        here: This machine.
        kinds: Kinds by the ids of the GPUs.
    """
    if not kinds:
        return host
    others = tuple((gpu, _in_machine(kind, here)) for gpu, kind in kinds.items())
    return replace(host if isinstance(host, FeedingHost) else FeedingHost.of(host), others=others)


def kind_here() -> HostKind:
    """Detect the kind of this machine."""
    if sys.platform == "win32" or "microsoft" in platform.release().lower():
        return find_kind("windows")
    if NOTEBOOK_VARIABLES & os.environ.keys():
        return find_kind("sandbox")
    return find_kind("cloud" if is_virtual() else "desktop")


def _in_machine(kind: HostKind, here: HostSpec) -> FeedingHost:
    """Return the host of a GPU in a machine of a kind."""
    if not kind.is_rented:
        return FeedingHost.of(here, kind)
    # The speed of a virtual CPU's own operators does not show how fast it reaches a GPU.
    cpu = host_spec(find_host_cpu(kind.cpu)) if kind.cpu else reference_host()
    return FeedingHost.of(replace(cpu, log_sigma=STEP_LOG_SIGMA), kind)


def check_host_name(name: str) -> None:
    """Raise `BreakevenError` for a host that does not exist."""
    if name not in (AUTO, HERE) and find_host_kind(name) is None:
        named_host(name)


def named_host(name: str) -> HostSpec:
    """Return the reference host, or one with the single-thread speed of the CPU called ``name``.

    The host's likely error comes from the calibration's measured steps. If the CPU's name is one
    that a hypervisor gives, then the host is a cloud machine.

    Raises:
        BreakevenError: If there is no such host.
    """
    reference = reference_host()
    try:
        cpu = None if name == reference.id else find_host_cpu(name)
    except BreakevenError as error:
        kinds = ", ".join(kind.id for kind in load_host_kinds())
        raise UsageError(
            error.message,
            hint=f"hosts: {AUTO}, {HERE}, {kinds}, {reference.id}, or a CPU's name "
            "(all: breakeven devices --hosts)",
        ) from None
    host = reference if cpu is None else host_spec(cpu)
    host = replace(host, log_sigma=shipped_costs().host_log_sigma(host))
    if cpu is None or not cpu.is_virtual:
        return host
    # Give it a separate id: its factor is relative to this CPU, and no measurement applies to it.
    return FeedingHost.of(host, replace(find_kind("cloud"), id=cpu.id))


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
    # Few rounds suffice for a check, but not for an explicit calibration.
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
    elif stored is not None:  # fewer rounds, but from a less busy moment
        return dataclasses.replace(here, calibration=stored, is_remembered=True)
    return here

"""The host that feeds the devices: this one, measured and remembered, or one with a name."""

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

# Some 2 ms each. The few are for a check that meets an unknown host; a calibration that was asked
# for may take longer and knows the spread better.
_FEW_ROUNDS = 60
_MANY_ROUNDS = 600
# Set in the containers of Colab and Kaggle.
NOTEBOOK_VARIABLES = frozenset({"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"})


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
    return replace(host, load_fraction=load_fraction)


def _with_own_steps(host: HostSpec, torch_version: str) -> HostSpec:
    """Return the host with what whole steps on its own GPU showed, where they were measured."""
    # A hypervisor gives many machines one name: others' files say nothing of this one.
    for calibration in load_calibrations(is_own=True).values():
        machine = calibration.machine
        told = (machine.processor, machine.num_cores, machine.torch_version)
        if told == (host.name, num_cores(), torch_version):
            return host_with_steps(host, calibration)
    return host


def find_hosts(
    name: str, launcher: Launcher, kinds: Mapping[str, HostKind]
) -> tuple[HostSpec, HostSpec]:
    """Return what feeds GPUs, and this machine, which is measured once.

    Args:
        name: As for `host_called`.
        launcher: Runs the measurement in a process of its own.
        kinds: As for `with_kinds`.

    Raises:
        BreakevenError: There is no such host.
    """
    here = find_host(HERE, launcher)
    return with_kinds(host_called(name, here), here, kinds), here


def host_called(name: str, here: HostSpec) -> HostSpec:
    """Return what feeds GPUs.

    Args:
        name: ``auto``, where each GPU is in a machine that usually holds it, or in this one where
            whole steps on its own GPU were measured; ``here``, a kind of machine, ``reference``, or
            a CPU's name.
        here: This machine.

    Raises:
        BreakevenError: There is no such host.
    """
    own = kind_here()
    if name in (AUTO, HERE) and here.seen_work.has_steps:
        return here
    if name == AUTO:
        # On a rented machine, cards for desks are predicted in a desktop with the same CPU.
        desk, rented = (find_kind("desktop"), own) if own.is_rented else (own, find_kind("cloud"))
        return replace(_in_machine(desk, here), data_center=_in_machine(rented, here))
    if name == HERE:
        return _in_machine(own, here)
    kind = find_host_kind(name)
    return named_host(name) if kind is None else _in_machine(kind, here)


def with_kinds(host: HostSpec, here: HostSpec, kinds: Mapping[str, HostKind]) -> HostSpec:
    """Return a host with some GPUs in machines of other kinds.

    Args:
        host: What feeds all others.
        here: This machine.
        kinds: By the ids of the GPUs.
    """
    if not kinds:
        return host
    others = tuple((gpu, _in_machine(kind, here)) for gpu, kind in kinds.items())
    return replace(host if isinstance(host, FeedingHost) else FeedingHost.of(host), others=others)


def kind_here() -> HostKind:
    """Return the kind of this machine, by what it shows of itself."""
    if sys.platform == "win32" or "microsoft" in platform.release().lower():
        return find_kind("windows")
    if NOTEBOOK_VARIABLES & os.environ.keys():
        return find_kind("sandbox")
    return find_kind("cloud" if is_virtual() else "desktop")


def _in_machine(kind: HostKind, here: HostSpec) -> FeedingHost:
    """Return what issues a GPU's work in a machine of a kind."""
    if not kind.is_rented:
        return FeedingHost.of(here, kind)
    # How fast a virtual CPU runs its own operators does not tell how fast it reaches a GPU.
    cpu = host_spec(find_host_cpu(kind.cpu)) if kind.cpu else reference_host()
    return FeedingHost.of(replace(cpu, log_sigma=STEP_LOG_SIGMA), kind)


def check_host_name(name: str) -> None:
    """Raise `BreakevenError` for a host that does not exist."""
    if name not in (AUTO, HERE) and find_host_kind(name) is None:
        named_host(name)


def named_host(name: str) -> HostSpec:
    """Return the reference host, or one with the single-thread speed of the CPU called ``name``.

    How far off such a host is likely to be is what the calibration found of measured steps. A CPU
    whose name a hypervisor gives is one of a cloud machine.

    Raises:
        BreakevenError: There is no such host.
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
    # Of an id of its own, since its factor is over this CPU: nothing else is measured of that.
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
        return dataclasses.replace(here, calibration=stored, is_remembered=True)
    return here

"""The host that feeds the devices: its costs per operator, and what it is called."""

from __future__ import annotations

import difflib
import os
import platform

from breakeven.capture import Launcher
from breakeven.cost import reference_host
from breakeven.device import HostSpec
from breakeven.errors import BreakevenError
from breakeven.store import read_host, write_host
from breakeven.timing import BUSY_FRACTION

HERE = "here"


def find_host(name: str, launcher: Launcher) -> HostSpec:
    """Return the host called ``name``; ``here`` is measured once and then remembered.

    Raises:
        BreakevenError: There is no such host.
    """
    if name != HERE:
        return named_host(name)
    ready = launcher.ready()
    key = {
        "machine": platform.node(),
        "processor": ready.processor,
        "processors": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": ready.torch_version,
    }
    stored = read_host(key)
    if stored is not None:
        return stored
    measured = launcher.measure_host()
    if measured.other_load_fraction <= BUSY_FRACTION:
        write_host(key, measured.host)
    return measured.host


def check_host_name(name: str) -> None:
    """Raise `BreakevenError` for a host that does not exist."""
    if name != HERE:
        named_host(name)


def named_host(name: str) -> HostSpec:
    """Return an entry of the shared table of hosts.

    Raises:
        BreakevenError: There is no such host.
    """
    known = {host.id: host for host in (reference_host(),)}
    if name not in known:
        names = [HERE, *known]
        near = difflib.get_close_matches(name, names, n=1)
        did_you_mean = f"; did you mean {near[0]!r}?" if near else ""
        raise BreakevenError(
            f"there is no host {name!r}{did_you_mean}", hint=f"hosts: {', '.join(names)}"
        )
    return known[name]

"""Run a system, and turn what it lacks into a reason."""

from __future__ import annotations

from breakeven.check import Progress
from breakeven.errors import BreakevenError
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import SystemEntry
from breakeven.verdict import SystemReport


def run_system(
    entry: SystemEntry,
    *,
    host: str = "here",
    time_limit_s: float = 120.0,
    progress: Progress | None = None,
) -> SystemReport:
    """Run one system on a bench of its own: a script that goes wrong harms no other system.

    Args:
        entry: Which one.
        host: ``here``, or the name of another host that would feed the GPUs.
        time_limit_s: Limit of each run of a script, in seconds.
        progress: Is told what happens.

    Raises:
        BreakevenError: It could not be run, or there is no such host.
    """
    try:
        system = entry.load()
    except ImportError as error:
        raise BreakevenError(
            f"{entry.name} cannot be imported: {error}",
            hint="install breakeven anew, with its dependencies",
        ) from error
    with Bench(host=host, time_limit_s=time_limit_s, progress=progress) as bench:
        return system.run(bench)

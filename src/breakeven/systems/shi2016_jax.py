"""Steps of the benchmark's networks under JAX on this CPU, in a process of their own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import msgspec

from breakeven.errors import BreakevenError
from breakeven.systems.bench import script_path
from breakeven.timing import Estimate, Measurement
from breakeven.units import NS_PER_S, format_duration

JAX_SCRIPT = "shi2016_jax.py"
JAX_NETWORKS = ("FCN-S", "FCN-R", "AlexNet-R", "LSTM")
INSTALL_JAX = "not installed: pip install jax"

_TIME_LIMIT_S = 120.0


class JaxTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the script prints at its end.

    Args:
        version: Of JAX.
        first_ns: The first step, most of which compiles it.
        steps_ns: The steps after it.
    """

    version: str
    first_ns: int
    steps_ns: tuple[int, ...]

    @property
    def estimate(self) -> Estimate:
        """Return the time of a compiled step, with its 90 % interval."""
        return Measurement(samples_ns=self.steps_ns).estimate


def jax_label() -> str | None:
    """Return JAX with its version; None where it is not installed."""
    if importlib.util.find_spec("jax") is None:
        return None
    try:
        return f"JAX {importlib.metadata.version('jax')}"
    except importlib.metadata.PackageNotFoundError:
        return "JAX"


def can_limit_threads() -> bool:
    """Return whether the processors of a process can be chosen, and with them XLA's threads."""
    return hasattr(os, "sched_setaffinity")


def measure_jax(network: str, *, num_threads: int) -> JaxTimes:
    """Time the compiled step of a network on so many processors.

    Args:
        network: One of ``JAX_NETWORKS``.
        num_threads: Processors; 0 for all.

    Raises:
        BreakevenError: The script failed or took too long.
    """
    command = [sys.executable, str(script_path(JAX_SCRIPT)), "--network", network, "--json"]
    if num_threads:
        command += ["--threads", str(num_threads)]
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BreakevenError(
            f"{network} under JAX took longer than "
            f"{format_duration(_TIME_LIMIT_S * NS_PER_S)} for a few steps"
        ) from None
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        raise BreakevenError(f"{network} under JAX failed: {lines[-1]}")
    try:
        return msgspec.json.decode((run.stdout.splitlines() or [""])[-1], type=JaxTimes)
    except msgspec.DecodeError:
        raise BreakevenError(f"{network} under JAX gave no times") from None

"""One network of the benchmark: measured on threads of this CPU, predicted on GPUs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from breakeven.cost import Era, StepCosts, host_for, load_efficiencies, load_step_effects
from breakeven.device import DeviceSpec, HostSpec, find_device
from breakeven.errors import BreakevenError, Caveat, has_caveat
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.store import machine_lock
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.published import GPUS
from breakeven.timing import BUSY_MACHINE, Estimate, Measurement
from breakeven.trace import StepTrace
from breakeven.units import NS_PER_S, format_duration

SCRIPT = "shi2016.py"
GPUS_OF_TODAY: tuple[str, ...] = ("T4", "RTX 4090", "A100 SXM4 80GB", "H100 SXM5 80GB")

# A server CPU of the benchmark's years. It fed the GPUs from whose steps the cost model has what
# Torch7 costs (github.com/jcjohnson/cnn-benchmarks).
HOST_OF_2016 = "Xeon E5-2630 v3"


# Of steps, per number of threads: enough for two after the warm-up where each takes 4 s, so that
# the times on one and on two threads can be told apart.
_BUDGET_S = 6.0

_BUSY = Caveat(
    code=BUSY_MACHINE,
    message="other processes used this machine while steps were measured; their times may be too "
    "long, those on several threads most of all",
)
JAX_SCRIPT = "shi2016_jax.py"
JAX_NETWORKS = ("FCN-S", "FCN-R", "AlexNet-R", "LSTM")
INSTALL_JAX = "not installed: pip install jax"
_TIME_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRuns:
    """Times of one network's step.

    Args:
        network: Its name in the benchmark.
        cpu: PyTorch on this CPU, by threads.
        jax: JAX on this CPU, by processors; empty where it was not run.
        today: PyTorch of today on the GPUs of the benchmark and on later ones, by GPU.
        of_2016: Software and host of 2016 on the GPUs of the benchmark, by GPU.
        compile_ns: The first step under JAX on all processors, most of which compiles it.
        caveats: What to know of the figures.
    """

    network: str
    cpu: dict[int, Estimate]
    today: dict[str, StepPrediction]
    of_2016: dict[str, StepPrediction]
    jax: dict[int, Estimate] = field(default_factory=dict[int, Estimate])
    compile_ns: int = 0
    caveats: tuple[Caveat, ...] = ()

    @property
    def is_disturbed(self) -> bool:
        """Return whether other processes used this machine while it was measured."""
        return has_caveat(self.caveats, BUSY_MACHINE)

    @property
    def best_cpu(self) -> Estimate:
        """Return the shortest time of PyTorch on this CPU."""
        return min(self.cpu.values(), key=lambda estimate: estimate.value_ns)


def run_network(bench: Bench, network: str, counts: Sequence[int]) -> NetworkRuns:
    """Measure and predict one network.

    Args:
        bench: Runs the script.
        network: Its name in the benchmark.
        counts: Threads to measure it on, ascending.

    Raises:
        BreakevenError: The script gave no answer.
    """
    arguments = ("--network", network)
    runs = {n: bench.measure(SCRIPT, *arguments, num_threads=n, budget_s=_BUDGET_S) for n in counts}
    trace = bench.step(SCRIPT, *arguments, num_threads=counts[-1])
    names = (*GPUS, *GPUS_OF_TODAY)
    today = dict(zip(names, bench.predict(trace, names), strict=True))
    devices = [find_device(name) for name in GPUS]
    of_2016 = dict(zip(GPUS, predict_of_2016(trace, devices), strict=True))
    jax, compile_ns, jax_caveats = _run_jax(network, counts)
    return NetworkRuns(
        network=network,
        cpu={count: run.measurement.estimate for count, run in runs.items()},
        jax=jax,
        compile_ns=compile_ns,
        today=today,
        of_2016=of_2016,
        caveats=_distinct(
            *(caveat for run in runs.values() for caveat in run.caveats),
            *trace.caveats,
            *(caveat for found in today.values() for caveat in found.caveats),
            *(_too_large(name, found) for name, found in today.items() if not found.fits),
            *jax_caveats,
        ),
    )


def predict_of_2016(trace: StepTrace, devices: Sequence[DeviceSpec]) -> tuple[StepPrediction, ...]:
    """Return the step under the software of 2016, fed by a CPU of its years."""
    era = Era.TORCH7
    costs = StepCosts(efficiencies=load_efficiencies(), effects=load_step_effects(), era=era)
    return predict_steps(trace, devices, _host_of_2016(costs, era), costs=costs)


def _host_of_2016(costs: StepCosts, era: Era) -> HostSpec:
    host, caveat = host_for(HOST_OF_2016, era)
    assert caveat is None, caveat
    return replace(host, log_sigma=costs.host_log_sigma(host))


def _run_jax(
    network: str, counts: Sequence[int]
) -> tuple[dict[int, Estimate], int, tuple[Caveat, ...]]:
    if network not in JAX_NETWORKS or jax_label() is None:
        return {}, 0, ()
    times: dict[int, Estimate] = {}
    first_ns = 0
    try:
        for count in counts if can_limit_threads() else counts[-1:]:
            with machine_lock():
                run = measure_jax(network, num_threads=count if can_limit_threads() else 0)
            times[count], first_ns = run.estimate, run.first_ns
    except BreakevenError as error:
        return times, first_ns, (Caveat(code="jax-failed", message=error.message),)
    return times, first_ns, ()


def _too_large(name: str, prediction: StepPrediction) -> Caveat:
    return Caveat(
        code="does-not-fit",
        message=f"the step needs more memory than a {name} has; its time there is hypothetical",
    )


def _distinct(*caveats: Caveat) -> tuple[Caveat, ...]:
    """Return the caveats, each once; how busy the machine was differs from run to run."""
    return tuple(
        dict.fromkeys(_BUSY if caveat.code == BUSY_MACHINE else caveat for caveat in caveats)
    )


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

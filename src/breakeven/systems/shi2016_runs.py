"""One network of the benchmark: measured on threads of this CPU, predicted on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.cost import Era, StepCosts, host_for, load_efficiencies, load_step_effects
from breakeven.device import DeviceSpec, HostSpec, find_device
from breakeven.errors import Caveat, has_caveat
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.systems.bench import Bench
from breakeven.systems.published import GPUS
from breakeven.timing import BUSY_MACHINE, Estimate
from breakeven.trace import StepTrace

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRuns:
    """Times of one network's step.

    Args:
        network: Its name in the benchmark.
        cpu: PyTorch on this CPU, by threads.
        today: PyTorch of today on the GPUs of the benchmark and on later ones, by GPU.
        of_2016: Software and host of 2016 on the GPUs of the benchmark, by GPU.
        caveats: What to know of the figures.
    """

    network: str
    cpu: dict[int, Estimate]
    today: dict[str, StepPrediction]
    of_2016: dict[str, StepPrediction]
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
    return NetworkRuns(
        network=network,
        cpu={count: run.measurement.estimate for count, run in runs.items()},
        today=today,
        of_2016=of_2016,
        caveats=_distinct(
            *(caveat for run in runs.values() for caveat in run.caveats),
            *trace.caveats,
            *(caveat for found in today.values() for caveat in found.caveats),
            *(_too_large(name, found) for name, found in today.items() if not found.fits),
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

"""Made-up runs of the benchmark's networks, for the tests of its tables and claims."""

from __future__ import annotations

from collections.abc import Mapping

from breakeven.device import Precision
from breakeven.errors import Caveat
from breakeven.simulate import Bound, StepPrediction
from breakeven.systems.shi2016 import NetworkRuns
from breakeven.timing import Estimate, Source
from breakeven.units import NS_PER_S
from factories.steps import made_up_device


def estimate(value_s: float, *, width: float = 1.1, source: Source = Source.MEASURED) -> Estimate:
    """Return a time with an interval from value / width to value * width."""
    value_ns = value_s * NS_PER_S
    return Estimate(
        value_ns=value_ns, low_ns=value_ns / width, high_ns=value_ns * width, source=source
    )


def prediction(name: str, value_s: float, *, width: float = 1.1) -> StepPrediction:
    return StepPrediction(
        loader_ns=0.0,
        device=made_up_device(name),
        batch_size=64,
        estimate=estimate(value_s, width=width, source=Source.PREDICTED),
        bound=Bound.COMPUTE,
        precision=Precision.FP32,
        host_ns=1e6,
        launch_ns=1e6,
        device_busy_ns=value_s * NS_PER_S,
        num_kernels=10,
        peak_memory_bytes=10**9,
        fits=True,
    )


def network_runs(
    network: str = "FCN-S",
    *,
    gpus: Mapping[str, float] | None = None,
    of_2016: Mapping[str, float] | None = None,
    cpu: Mapping[int, float] | None = None,
    width: float = 1.1,
    caveats: tuple[Caveat, ...] = (),
) -> NetworkRuns:
    """Return runs with these times in seconds; the defaults have the published order."""
    gpus = gpus or {"GTX 980": 0.04, "GTX 1080": 0.03, "K80": 0.07}
    return NetworkRuns(
        network=network,
        cpu={n: estimate(time) for n, time in (cpu or {1: 2.0, 2: 1.0}).items()},
        today={name: prediction(name, time, width=width) for name, time in gpus.items()},
        of_2016={
            name: prediction(name, time, width=width) for name, time in (of_2016 or gpus).items()
        },
        caveats=caveats,
    )

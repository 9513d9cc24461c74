"""What a framework's own Python adds to a small step, and that a GPU's step has it too.

    python benchmarks/framework_steps.py

The same network is trained by a plain loop, by Lightning and by transformers' Trainer. Of each the
step on this CPU is timed, and predicted from the operators that were recorded; the rest is Python
that no operator tells of. The step of a GPU contains it, since the host is anchored to the step
that was timed. Needs lightning and transformers with accelerate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from breakeven.calibrate import find_host
from breakeven.capture import Launcher, find_target
from breakeven.device import HERE, find_device
from breakeven.progress import SilentProgress
from breakeven.simulate import build_program, predict_cpu_step, predict_steps
from breakeven.studies import Runner, as_timed, host_for_prediction
from breakeven.units import NS_PER_US

FOLDER = Path(__file__).resolve().parent / "frameworks"
SCRIPTS = {
    "plain loop": "plain_mlp.py",
    "Lightning": "lightning_mlp.py",
    "transformers": "transformers_mlp.py",
}
_TIME_LIMIT_S = 120.0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/framework_steps.py", description=__doc__
    )
    parser.add_argument("--device", default="RTX 4090", help="GPU to predict (RTX 4090)")
    options = parser.parse_args(argv)
    print(
        f"{'trained by':14}{'this CPU':>12}{'loader':>12}{'operators':>12}{'GPU':>12}{'ratio':>8}"
    )
    with Launcher() as launcher:
        host = find_host(HERE, launcher)
        for name, script in SCRIPTS.items():
            target = find_target(str(FOLDER / script))
            runner = Runner(launcher, target, _TIME_LIMIT_S, SilentProgress(), num_threads=1)
            traced, plain = runner.record(), runner.time()
            program = build_program(as_timed(traced.trace, traced, plain))
            seen = host_for_prediction(program, plain, host, host)
            (gpu,) = predict_steps(program, [find_device(options.device)], seen)
            times_ns = (
                plain.measurement.median_ns,
                plain.loader.wait_ns if plain.loader else 0.0,
                predict_cpu_step(build_program(traced.trace), host).step_ns,
                gpu.estimate.value_ns,
            )
            cells = "".join(f"{time_ns / NS_PER_US:9.0f} µs" for time_ns in times_ns)
            print(f"{name:14}{cells}{times_ns[-1] / times_ns[0]:7.2f}×", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

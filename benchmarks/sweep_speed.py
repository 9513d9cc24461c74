"""How long a sweep takes, and how much of that is recording, predicting and measuring.

Run ``python benchmarks/sweep_speed.py`` in an environment with breakeven. It sweeps the disc
classifier over 100 batch sizes on 10 GPUs, with nothing kept from before; a second sweep shows
what is left of it when all measurements are kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from breakeven.device import load_catalogue
from breakeven.progress import SilentProgress
from breakeven.studies import parse_axis, sweep_target
from breakeven.timing import Source
from breakeven.units import NS_PER_S, format_duration
from breakeven.verdict import SweepReport

SCRIPT = Path(__file__).parents[1] / "examples" / "disc_mlp.py"
AXIS = "batch_size=10..1000+10"
# The first words of a stage, and what it is part of.
PARTS = {
    "starting": "... starting torch and knowing this host",
    "recording": "... recording steps",
    "predicting": "... predicting",
    "measuring": "... measuring this CPU",
}


class StageTimes(SilentProgress):
    """Adds up how long the stages of a sweep take."""

    def __init__(self) -> None:
        self.durations_s = dict.fromkeys(PARTS.values(), 0.0)
        self._part = ""
        self._since_s = time.perf_counter()

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """End the stage before and start the next."""
        self.end()
        self._part = PARTS[stage.split()[0]]

    def end(self) -> None:
        """End the last stage."""
        now_s = time.perf_counter()
        if self._part:
            self.durations_s[self._part] += now_s - self._since_s
        self._since_s = now_s


def sweep(axis: str, devices: Sequence[str]) -> tuple[SweepReport, StageTimes, float]:
    """Return the report of a sweep, the times of its stages, and its time in all."""
    times = StageTimes()
    started_s = time.perf_counter()
    report = sweep_target(
        str(SCRIPT),
        axes=[parse_axis(axis)],
        arguments=["--batch-size", "{batch_size}"],
        devices=devices,
        progress=times,
    )
    return report, times, time.perf_counter() - started_s


def show(name: str, text: str) -> None:
    """Print one line of the result."""
    print(f"{name:<60} {text:>12}", flush=True)


def main() -> None:
    """Sweep twice, and print what it took."""
    parser = argparse.ArgumentParser(description="Print how long a sweep takes.")
    parser.add_argument("--over", default=AXIS, help="batch sizes (%(default)s)")
    parser.add_argument("--devices", type=int, default=10, metavar="N", help="GPUs (10)")
    args = parser.parse_args()
    devices = [device.id for device in load_catalogue()][: args.devices]
    show("Python", platform.python_version())
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache}),
    ):
        for name in ("sweep of disc_mlp.py, nothing kept", "the same sweep again"):
            report, times, duration_s = sweep(args.over, devices)
            measured = sum(point.source is Source.MEASURED for point in report.points)
            show(name, format_duration(duration_s * NS_PER_S))
            for part, part_s in times.durations_s.items():
                show(part, format_duration(part_s * NS_PER_S))
            show("... points, of which measured", f"{len(report.points)}, {measured}")


if __name__ == "__main__":
    main()

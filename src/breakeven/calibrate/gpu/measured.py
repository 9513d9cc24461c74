"""What was measured of a GPU so far, kept so that an interrupted calibration goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from breakeven.cost import CalibratedMachine, CalibrationStep, MeasuredLaunch, MeasuredSample

# Measurements are written this often while more are taken.
_SAVE_EVERY_S = 5.0


class Measured(msgspec.Struct, kw_only=True):
    """Measurements so far, in the order in which they were taken.

    Args:
        launch: What it takes to reach the GPU.
        samples: Calls by name and precision.
        copies: Copies to the GPU, by name.
        steps: Whole steps, by name.
        failed: What did not run, and why, by the same names.
    """

    launch: MeasuredLaunch | None = None
    samples: dict[str, MeasuredSample] = {}
    copies: dict[str, MeasuredSample] = {}
    steps: dict[str, CalibrationStep] = {}
    failed: dict[str, str] = {}


def machine_key_of(machine: CalibratedMachine) -> dict[str, str]:
    """Return what measurements hold for: the machine and its software, whatever the day."""
    facts = msgspec.to_builtins(machine)
    del facts["date"]
    return {name: str(value) for name, value in facts.items()}


@dataclass(kw_only=True)
class Kept:
    """Measurements that are written from time to time.

    Args:
        measured: Those so far.
        write: Keeps them.
        now_s: Clock, in seconds.
    """

    measured: Measured
    write: Callable[[Measured], None]
    now_s: Callable[[], float] = time.monotonic
    _written_s: float = field(default=float("-inf"), init=False)

    def save(self, *, is_due: bool = False) -> None:
        """Write what there is, unless that was done a moment ago.

        Args:
            is_due: Write in any case.
        """
        now_s = self.now_s()
        if is_due or now_s - self._written_s >= _SAVE_EVERY_S:
            self.write(self.measured)
            self._written_s = now_s

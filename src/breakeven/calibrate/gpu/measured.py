"""What was measured of a GPU so far, kept so that an interrupted calibration goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from breakeven.cost import CalibratedMachine, CalibrationStep, MeasuredLaunch, MeasuredSample
from breakeven.errors import BreakevenError
from breakeven.store import code_digest

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


# As torch and its libraries say it, in lower case.
_NO_MEMORY = ("out of memory", "outofmemory", "alloc_failed")
# Packages whose code decides what is measured.
_MEASURING = ("calibrate", "measure", "workloads")


def machine_key_of(machine: CalibratedMachine) -> dict[str, str]:
    """Return what measurements hold for: machine, software, and the code that measures."""
    facts = msgspec.to_builtins(machine)
    del facts["date"]
    told = {name: str(value) for name, value in facts.items()}
    return told | {"measuring": code_digest(*_MEASURING)}


def reason_of(error: Exception) -> str:
    """Return in a line why something could not be measured."""
    first_line = str(error).strip().partition("\n")[0]
    kind = "" if isinstance(error, BreakevenError) else f"{type(error).__name__}: "
    return f"{kind}{first_line}"[:200]


def is_for_good(reason: str) -> bool:
    """Return whether what failed will fail again; memory that others had may be free then."""
    return not any(sign in reason.casefold() for sign in _NO_MEMORY)


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

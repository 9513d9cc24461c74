"""What was measured of a GPU so far, kept so that an interrupted calibration goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from breakeven.cost import CalibratedMachine, CalibrationStep, MeasuredLaunch, MeasuredSample
from breakeven.errors import BreakevenError
from breakeven.store import code_digest


class Measured(msgspec.Struct, kw_only=True):
    """Measurements so far, in the order in which they were taken.

    Args:
        launch: What it takes to reach the GPU.
        samples: Calls by name and precision.
        copies: Copies to the GPU, by name.
        steps: Whole steps, by name.
        failed: What did not run, and why, by the same names.
        asked: What is being measured, while it is.
        ended: What the process did not survive, once.
    """

    launch: MeasuredLaunch | None = None
    samples: dict[str, MeasuredSample] = {}
    copies: dict[str, MeasuredSample] = {}
    steps: dict[str, CalibrationStep] = {}
    failed: dict[str, str] = {}
    asked: str = ""
    ended: list[str] = []


# As torch and its libraries say it, in lower case.
_NO_MEMORY = ("out of memory", "outofmemory", "alloc_failed")
# A library that aborts, as Metal's does of what it cannot compile, leaves nothing else behind.
_ENDED = "breakeven was ended twice while it was measured"
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
    """Measurements that are written before each further one.

    Args:
        measured: Those so far.
        write: Keeps them.
    """

    measured: Measured
    write: Callable[[Measured], None]

    def take_up(self) -> None:
        """Go on where the last process ended: what it did not survive is asked once more."""
        measured, asked = self.measured, self.measured.asked
        measured.failed = {name: why for name, why in measured.failed.items() if is_for_good(why)}
        if asked in measured.ended:
            measured.failed[asked] = _ENDED
        elif asked:
            measured.ended.append(asked)
        measured.asked = ""

    def ask(self, name: str) -> None:
        """Note what is about to be measured, for the case that this process does not survive it."""
        self.measured.asked = name
        self.write(self.measured)

    def close(self) -> None:
        """Write what there is: whatever was asked last, this process has survived it."""
        self.measured.asked = ""
        self.write(self.measured)

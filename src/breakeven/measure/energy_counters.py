"""Energy counters of this machine: RAPL for its CPUs, NVML for the board of a GPU."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

from breakeven.timing import CounterPower, MachinePower
from breakeven.units import NS_PER_S, format_digits

_POWERCAP = Path("/sys/class/powercap")
# RAPL counts every millisecond. Source: Intel SDM volume 3B, "RAPL Interfaces".
_RAPL_UPDATE_S = 0.001
# NVML counts every 20 to 100 ms. Source: Yang et al., "Part-time Power Measurements", SC 2024.
_NVML_UPDATE_S = 0.1
# Steps must last several updates of a counter. Judgement: an error of a fifth is still of use.
_MOST_ERROR = 0.2
# More than any CPU package draws for long: it bounds how soon a counter can return to 0 twice.
_MOST_WATTS = 1_000.0
_NOT_PERMITTED = (
    "the CPU's energy counter is readable by root alone: run "
    "`sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj`, and breakeven again"
)


class _Count(NamedTuple):
    joules: float
    at_ns: int
    range_j: float
    update_s: float


class EnergyMeter:
    """Measures the mean power from its creation to `stop`, by the counters that this user may read.

    A package's counter includes its cores, and that of the whole platform includes the packages:
    only packages count. Memory of servers has a counter of its own and does not count.

    Args:
        gpu: UUID of an NVIDIA GPU; empty for none.
        folder: The system's folder of power zones.
    """

    def __init__(self, gpu: str = "", folder: Path = _POWERCAP) -> None:
        self._gpu, self._folder = gpu, folder
        self._unread: dict[str, None] = {}
        self._start = {**self._packages(), **self._board()}
        # None before `stop`, and on a machine without counters.
        self.power: MachinePower | None = None

    def stop(self) -> None:
        """Read the counters again, and set ``power``."""
        parts: list[CounterPower] = []
        for counter, end in {**self._packages(), **self._board()}.items():
            if (start := self._start.get(counter)) is None:
                continue
            seconds = (end.at_ns - start.at_ns) / NS_PER_S
            error = end.update_s / seconds
            if error > _MOST_ERROR or seconds * _MOST_WATTS > end.range_j:
                span = f"{format_digits(seconds, 2)} s of steps"
                self._unread[f"{counter} cannot show the power over {span}"] = None
                continue
            # The counter returns to 0 at the end of its range.
            watts = (end.joules - start.joules) % end.range_j / seconds
            if not watts:
                self._unread[f"{counter} stands still, as in some virtual machines"] = None
                continue
            low, high = watts * (1 - error), watts * (1 + error)
            parts.append(CounterPower(counter=counter, watts=watts, low_watts=low, high_watts=high))
        if parts or self._unread:
            self.power = MachinePower(parts=tuple(parts), unread=tuple(self._unread))

    def _packages(self) -> dict[str, _Count]:
        found: dict[str, _Count] = {}
        for zone in sorted(self._folder.glob("intel-rapl:*")):  # AMD's have this name too
            try:
                name = (zone / "name").read_text().strip()
                if name.startswith("package"):
                    range_j = int((zone / "max_energy_range_uj").read_text()) / 1e6
                    joules = int((zone / "energy_uj").read_text()) / 1e6
                    count = _Count(joules, perf_counter_ns(), range_j, _RAPL_UPDATE_S)
                    found[f"RAPL {name}"] = count
            except PermissionError:
                self._unread[_NOT_PERMITTED] = None
            except (OSError, ValueError) as error:
                self._unread[f"{zone.name} cannot be read: {error}"] = None
        return found

    def _board(self) -> dict[str, _Count]:
        if not self._gpu:
            return {}
        try:
            # An optional dependency: everything else must work without it, types included.
            pynvml: Any = importlib.import_module("pynvml")
        except ImportError:
            self._unread["the GPU's energy counter needs `pip install nvidia-ml-py`"] = None
            return {}
        try:
            pynvml.nvmlInit()
            try:
                board = pynvml.nvmlDeviceGetHandleByUUID(self._gpu)
                joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(board) / 1e3
            finally:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            self._unread[f"the GPU's energy counter cannot be read: {error}"] = None
            return {}
        return {"NVML": _Count(joules, perf_counter_ns(), math.inf, _NVML_UPDATE_S)}

"""The document of a cost in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.money import Interval
from breakeven.report.cost import cost_document
from breakeven.report.cost_report import CostReport
from breakeven.report.document import Fact
from breakeven.studies import cost_run
from breakeven.timing import MachinePower
from factories import terminal
from unit.studies.test_cost import NVML, RAPL, measured, request, stored


def cost(path: Path, **changes: Any) -> CostReport:
    """Return a cost without caveats that depend on the day."""
    report = cost_run(path, request(**changes))
    lasting = tuple(one for one in report.caveats if one.code != "stale-prices")
    return replace(report, caveats=lasting)


def fact(report: CostReport, name: str) -> str | None:
    facts: dict[str, str] = {
        one.name: one.text for one in cost_document(report).facts if isinstance(one, Fact)
    }
    return facts.get(name)


def test_golden_at_80_columns_with_measured_energy(
    tmp_path: Path, check_golden: Callable[[str, str], None]
) -> None:
    path = measured(tmp_path, MachinePower(parts=RAPL))
    shown = terminal.shown(cost(path, power_usd_per_kwh=0.3, deadline_s=7200.0))
    check_golden("terminal_cost.txt", shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_energy_and_emissions_have_room_at_80_columns(tmp_path: Path) -> None:
    shown = terminal.shown(cost(stored(tmp_path)))
    for heading in ("kWh", "kg CO₂", "bound", "batch"):
        assert f"  {heading}" in shown


@pytest.mark.parametrize(
    ("cpu", "gpu", "text"),
    [
        (MachinePower(), None, None),
        (MachinePower(unread=("a reason",)), None, None),
        (
            MachinePower(parts=RAPL),
            None,
            "this CPU 60 W (RAPL package-0, RAPL package-1 measured), with idle power and other "
            "processes",
        ),
        (
            MachinePower(parts=RAPL[:1]),
            MachinePower(parts=(RAPL[0], NVML)),
            "Tesla T4 230 W (RAPL package-0, NVML measured); this CPU 30 W "
            "(RAPL package-0 measured), with idle power and other processes",
        ),
        (
            MachinePower(),
            MachinePower(parts=(NVML,)),
            "Tesla T4 200 W (NVML measured, the rest predicted), with idle power and other "
            "processes",
        ),
    ],
)
def test_what_is_measured_of_the_energy_here(
    tmp_path: Path, cpu: MachinePower, gpu: MachinePower | None, text: str | None
) -> None:
    report = cost(measured(tmp_path, cpu, gpu))
    assert fact(report, "energy here") == text


@pytest.mark.parametrize(
    ("setup", "text"),
    [
        (None, "4 min (1 min 30 s–10 min) assumed to start a rented machine, "),
        (600.0, "10 min to start a rented machine, "),
        (0.0, "0 s to start a rented machine, "),
    ],
)
def test_a_setup_of_the_users_is_not_assumed(
    tmp_path: Path, setup: float | None, text: str
) -> None:
    changes = {} if setup is None else {"setup_s": Interval(value=setup, low=setup, high=setup)}
    found = fact(cost(stored(tmp_path), **changes), "setup")
    assert found == text + "load the software and copy the data"


@pytest.mark.parametrize("step_s", [0.05, 1.0, 30.0, 2000.0])
def test_ticks_are_round_in_their_unit(tmp_path: Path, step_s: float) -> None:
    (chart,) = cost_document(cost(stored(tmp_path, step_s=step_s))).charts
    for tick in chart.y.ticks:
        number, _, unit = tick.label.partition(" ")
        assert unit in ("days", "hours", "minutes", "seconds")
        assert float(number.replace(",", "")) == pytest.approx(tick.value, rel=1e-9)
        assert len(f"{tick.value:.6g}".replace(".", "").strip("0")) <= 2

"""Times and machines for SkyPilot, without the package."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import breakeven
from breakeven.adapters import skypilot
from breakeven.errors import BreakevenError, UsageError
from breakeven.studies import CostRequest, cost_run
from breakeven.units import NS_PER_S
from unit.studies.test_cost import PRICES, request, stored

STEPS = 10_000


@dataclass(frozen=True)
class Resources:
    """What the estimator reads of ``sky.Resources``."""

    infra: str | None = None
    instance_type: str | None = None
    accelerators: dict[str, int] | None = field(default=None, hash=False)

    @property
    def cloud(self) -> str | None:
        """SkyPilot's clouds print their name in capitals."""
        return self.infra and self.infra.upper()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run, to be priced on few machines."""
    monkeypatch.setattr(skypilot, "CostRequest", partial(CostRequest, prices=PRICES))
    monkeypatch.setattr(skypilot, "_CLOUDS", ("aws",))
    return stored(tmp_path)


@pytest.fixture
def fake_sky(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Install a SkyPilot that offers the machines of the returned set."""
    offered = {"t4.small", "cpu.small"}
    sky: Any = ModuleType("sky")
    sky.Resources = Resources
    catalog: Any = ModuleType("sky.catalog")
    catalog.instance_type_exists = lambda name, cloud: cloud == "aws" and name in offered
    monkeypatch.setitem(sys.modules, "sky", sky)
    monkeypatch.setitem(sys.modules, "sky.catalog", catalog)
    return offered


def seconds_of(run: Path, machine: str) -> tuple[float, float]:
    """Return the expected time of a machine, and the upper end of its interval."""
    report = cost_run(run, request(STEPS, machines=(machine,)))
    row = next(row for row in report.rows if row.machine == machine)
    return row.time_ns.value / NS_PER_S, row.time_ns.high / NS_PER_S


def test_a_machine_takes_the_time_of_breakeven_cost(run: Path) -> None:
    expected_s, high_s = seconds_of(run, "t4.small")
    machine = Resources("aws", "t4.small", {"T4": 1})

    assert breakeven.sky_estimator(run, STEPS)(machine) == pytest.approx(expected_s)
    assert breakeven.sky_estimator(run, STEPS, quantile=0.95)(machine) == pytest.approx(high_s)


def test_a_gpu_without_a_machine_takes_the_time_of_the_slowest_one(run: Path) -> None:
    estimate = breakeven.sky_estimator(run, STEPS)
    of_one = [estimate(Resources("aws", name)) for name in ("t4.small", "t4.large")]

    assert estimate(Resources("aws", None, {"T4": 1})) >= max(of_one)


def test_past_the_deadline_a_machine_takes_forever(run: Path) -> None:
    _, high_s = seconds_of(run, "t4.small")
    machine = Resources("aws", "t4.small")

    assert breakeven.sky_estimator(run, STEPS, 1.01 * high_s)(machine) < high_s
    assert breakeven.sky_estimator(run, STEPS, 0.99 * high_s)(machine) == float("inf")


def test_what_names_no_known_machine_is_refused(tmp_path: Path, run: Path) -> None:
    estimate = breakeven.sky_estimator(run, STEPS)
    with pytest.raises(BreakevenError, match="names neither a machine nor a GPU"):
        estimate(Resources("aws"))
    with pytest.raises(UsageError, match=r"g9\.xlarge"):
        estimate(Resources("aws", "g9.xlarge"))
    with pytest.raises(UsageError, match="no prices of “lambda”"):
        estimate(Resources("lambda", "t4.small"))
    (tmp_path / "old").mkdir()
    old = breakeven.sky_estimator(stored(tmp_path / "old", here=False), STEPS)
    with pytest.raises(BreakevenError, match=r"gives no time on cpu\.small"):
        old(Resources("aws", "cpu.small"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "0 is not a number of steps above 0"),
        ({"steps": 5, "deadline_s": 0.0}, "0 is not a number of seconds above 0"),
        ({"steps": 5, "deadline_s": float("nan")}, "nan is not a number of seconds above 0"),
        ({"steps": 5, "quantile": 1.0}, "1 is not a quantile between 0 and 1"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    run: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        breakeven.sky_estimator(run, **arguments)


def test_candidates_are_the_machines_that_sky_offers(run: Path, fake_sky: set[str]) -> None:
    found = breakeven.sky_candidates(run, STEPS, clouds=("aws",))

    assert {one.instance_type for one in found} == fake_sky
    assert {one.infra for one in found} == {"aws"}


def test_candidates_hold_the_deadline(run: Path, fake_sky: set[str]) -> None:
    _, high_s = seconds_of(run, "t4.small")
    found = breakeven.sky_candidates(run, STEPS, 1.01 * high_s, clouds=("aws",))

    # The CPU machine takes longer.
    assert {one.instance_type for one in found} == {"t4.small"}
    with pytest.raises(BreakevenError, match="no machine fits the step and surely meets"):
        breakeven.sky_candidates(run, STEPS, 10.0, clouds=("aws",))
    fake_sky.clear()
    with pytest.raises(BreakevenError, match="SkyPilot offers none of"):
        breakeven.sky_candidates(run, STEPS, clouds=("aws",))


def test_a_machine_that_fits_no_whole_batch_is_left_out(
    tmp_path: Path, run: Path, fake_sky: set[str]
) -> None:
    # 24 GB at the whole batch, against 16 GB: breakeven cost splits it, the script does not.
    large = stored(tmp_path, peaks=(24 * 10**9, 48 * 10**9))
    found = breakeven.sky_candidates(large, STEPS, clouds=("aws",))

    assert {one.instance_type for one in found} == {"cpu.small"}
    assert breakeven.sky_estimator(large, STEPS)(Resources("aws", "t4.small")) == float("inf")


def test_without_skypilot_the_error_says_how_to_install_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sky", None)
    with pytest.raises(BreakevenError, match="sky cannot be imported") as raised:
        breakeven.sky_candidates(run, STEPS)
    assert raised.value.hint == "pip install skypilot"

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from breakeven.calibrate import calibrate_here, check_host_name, find_host, named_host
from breakeven.capture import HostRun
from breakeven.cost import load_step_effects, reference_host
from breakeven.errors import BreakevenError
from factories.hosts import HOST, calibration


class MeasuringLauncher:
    """Measures the same made-up host each time, and remembers how thoroughly."""

    def __init__(self, torch_version: str = "2.9.0", other_load_fraction: float = 0.0) -> None:
        self.asked: list[int] = []
        self._torch_version = torch_version
        self._other_load_fraction = other_load_fraction

    def ready(self) -> SimpleNamespace:
        return SimpleNamespace(
            torch_version=self._torch_version, processor="made up", has_cuda=False
        )

    def measure_host(self, num_rounds: int) -> HostRun:
        self.asked.append(num_rounds)
        return HostRun(
            calibration=calibration(num_rounds=num_rounds),
            other_load_fraction=self._other_load_fraction,
        )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))


def test_this_host_is_measured_once() -> None:
    launcher = MeasuringLauncher()
    assert find_host("here", launcher) == HOST
    assert find_host("here", launcher) == HOST
    assert len(launcher.asked) == 1


def test_figures_of_a_busy_host_are_not_kept() -> None:
    launcher = MeasuringLauncher(other_load_fraction=0.5)
    disturbed = msgspec.structs.replace(HOST, load_fraction=0.5)
    assert find_host("here", launcher) == disturbed
    assert find_host("here", launcher) == disturbed
    assert len(launcher.asked) == 2
    assert calibrate_here(launcher).is_busy


def test_few_rounds_of_a_quiet_host_count_more_than_many_of_a_busy_one() -> None:
    find_host("here", MeasuringLauncher())
    busy = MeasuringLauncher(other_load_fraction=0.5)
    found = calibrate_here(busy)
    assert (len(busy.asked), found.is_remembered, found.is_busy) == (1, True, True)
    assert find_host("here", busy) == HOST
    # Who insists gets what there is.
    assert calibrate_here(busy, is_forced=True).is_busy


def test_this_host_is_measured_again_under_another_torch() -> None:
    find_host("here", MeasuringLauncher())
    other = MeasuringLauncher("2.10.0")
    find_host("here", other)
    assert len(other.asked) == 1


def test_calibration_that_was_asked_for_is_not_content_with_few_rounds() -> None:
    launcher = MeasuringLauncher()
    find_host("here", launcher)
    first = calibrate_here(launcher)
    assert not first.is_remembered
    few, many = launcher.asked
    assert few < many
    # From now on both are answered by the thorough one.
    assert calibrate_here(launcher).is_remembered
    assert calibrate_here(launcher).calibration.num_rounds == many
    find_host("here", launcher)
    assert launcher.asked == [few, many]


def test_forced_calibration_measures_again() -> None:
    launcher = MeasuringLauncher()
    calibrate_here(launcher)
    assert not calibrate_here(launcher, is_forced=True).is_remembered
    assert len(launcher.asked) == 2


def test_named_host_is_not_measured() -> None:
    launcher = MeasuringLauncher()
    reference = find_host(reference_host().id, launcher)
    assert reference.op_ns == reference_host().op_ns
    # As far off as measured steps on hosts that nobody had measured were.
    assert reference.log_sigma == load_step_effects().spread.unknown_host_log_sigma
    assert find_host("EPYC 7763", launcher).id == "epyc-7763"
    assert launcher.asked == []


def test_known_names_pass() -> None:
    for name in ("here", reference_host().id, "AMD Ryzen 9 5900X 12-Core Processor"):
        check_host_name(name)


@pytest.mark.parametrize("check", [check_host_name, lambda name: find_host(name, None)])
def test_unknown_host_is_refused_with_the_nearest_names(check) -> None:
    with pytest.raises(BreakevenError) as caught:
        check("epyc 7764")
    assert caught.value.message.startswith("there is no host 'epyc 7764'; nearest: EPYC 7763")
    assert caught.value.hint == (
        "hosts: auto, here, desktop, windows, cloud, sandbox, reference, or a CPU's name "
        "(all: breakeven devices --hosts)"
    )


def test_here_is_no_name() -> None:
    with pytest.raises(BreakevenError, match="there is no host 'here'"):
        named_host("here")

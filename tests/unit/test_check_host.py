from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from breakeven.capture import HostRun
from breakeven.check._machine import check_host_name, find_host
from breakeven.cost import reference_host
from breakeven.errors import BreakevenError
from made_up_steps import HOST


class MeasuringLauncher:
    """Measures the same made-up host each time, and counts."""

    def __init__(self, torch_version: str = "2.9.0", other_load_fraction: float = 0.0) -> None:
        self.num_measured = 0
        self._torch_version = torch_version
        self._other_load_fraction = other_load_fraction

    def ready(self) -> SimpleNamespace:
        return SimpleNamespace(torch_version=self._torch_version, processor="made up")

    def measure_host(self) -> HostRun:
        self.num_measured += 1
        return HostRun(host=HOST, other_load_fraction=self._other_load_fraction)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))


def test_this_host_is_measured_once() -> None:
    launcher = MeasuringLauncher()
    assert find_host("here", launcher) == HOST
    assert find_host("here", launcher) == HOST
    assert launcher.num_measured == 1


def test_figures_of_a_busy_host_are_not_kept() -> None:
    launcher = MeasuringLauncher(other_load_fraction=0.5)
    assert find_host("here", launcher) == HOST
    assert find_host("here", launcher) == HOST
    assert launcher.num_measured == 2


def test_this_host_is_measured_again_under_another_torch() -> None:
    find_host("here", MeasuringLauncher())
    other = MeasuringLauncher("2.10.0")
    find_host("here", other)
    assert other.num_measured == 1


def test_named_host_is_not_measured() -> None:
    launcher = MeasuringLauncher()
    assert find_host(reference_host().id, launcher) == reference_host()
    assert launcher.num_measured == 0


def test_known_names_pass() -> None:
    check_host_name("here")
    check_host_name(reference_host().id)


@pytest.mark.parametrize("check", [check_host_name, lambda name: find_host(name, None)])
def test_unknown_host_is_refused_with_the_nearest_name(check) -> None:
    name = reference_host().id
    with pytest.raises(BreakevenError) as caught:
        check(name[:-1])
    assert caught.value.message == f"there is no host {name[:-1]!r}; did you mean {name!r}?"
    assert caught.value.hint == f"hosts: here, {name}"
    with pytest.raises(BreakevenError, match="did you mean 'here'"):
        check("her")


def test_far_off_name_suggests_none() -> None:
    with pytest.raises(BreakevenError) as caught:
        check_host_name("zzz")
    assert caught.value.message == "there is no host 'zzz'"

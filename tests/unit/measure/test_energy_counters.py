"""Power by imitated energy counters of CPUs and of a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.measure import EnergyMeter
from breakeven.timing import CounterPower, MachinePower

RANGE_UJ = 262_143_328_850
GPU = "GPU-6d1e0b5a"


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that lets seconds pass."""
    now = [0]
    monkeypatch.setattr("breakeven.measure.energy_counters.perf_counter_ns", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += round(seconds * 1e9)

    return wait


def zone(folder: Path, number: str, name: str, energy_uj: int) -> Path:
    path = folder / f"intel-rapl:{number}"
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path / "energy_uj"


def part(counter: str, watts: float, error: float) -> CounterPower:
    return CounterPower(
        counter=counter,
        watts=pytest.approx(watts),
        low_watts=pytest.approx(watts * (1 - error)),
        high_watts=pytest.approx(watts * (1 + error)),
    )


def test_each_socket_counts_once(tmp_path: Path, pass_time: Callable[[float], None]) -> None:
    files = {
        name: zone(tmp_path, number, name, 5_000_000)
        for number, name in [
            ("0", "package-0"), ("0:0", "core"), ("0:1", "dram"), ("1", "package-1"), ("2", "psys"),
        ]
    }  # fmt: skip
    zone_of_mmio = tmp_path / "intel-rapl-mmio:0"
    zone_of_mmio.mkdir()
    (zone_of_mmio / "name").write_text("package-0\n")
    meter = EnergyMeter(folder=tmp_path)
    assert meter.power is None
    pass_time(2.0)
    files["package-0"].write_text("85000000")
    files["package-1"].write_text("65000000")
    files["core"].write_text("75000000")
    files["psys"].write_text("205000000")
    meter.stop()

    assert meter.power == MachinePower(
        parts=(part("RAPL package-0", 40.0, 0.0005), part("RAPL package-1", 30.0, 0.0005))
    )


@given(start=st.integers(0, RANGE_UJ - 1), used=st.integers(1, RANGE_UJ - 1))
def test_a_counter_may_return_to_0(
    start: int, used: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("powercap")
    file = zone(folder, "0", "package-0", start)
    with pytest.MonkeyPatch.context() as patch:
        times = iter([0, 10**9])
        patch.setattr("breakeven.measure.energy_counters.perf_counter_ns", lambda: next(times))
        meter = EnergyMeter(folder=folder)
        file.write_text(str((start + used) % RANGE_UJ))
        meter.stop()
    assert meter.power is not None
    assert meter.power.parts[0].watts == pytest.approx(used / 1e6, abs=1e-4)


@pytest.mark.parametrize(
    ("seconds", "used_uj", "because"),
    [
        (0.004, 100_000, "RAPL package-0 cannot show the power over 0.004 s of steps"),
        (300.0, 100_000, "RAPL package-0 cannot show the power over 300 s of steps"),
        (1.0, 0, "RAPL package-0 stands still, as in some virtual machines"),
    ],
)
def test_a_counter_that_says_nothing_gives_its_reason(
    tmp_path: Path,
    pass_time: Callable[[float], None],
    seconds: float,
    used_uj: int,
    because: str,
) -> None:
    file = zone(tmp_path, "0", "package-0", 7)
    meter = EnergyMeter(folder=tmp_path)
    pass_time(seconds)
    file.write_text(str(7 + used_uj))
    meter.stop()
    assert meter.power == MachinePower(unread=(because,))


def test_counters_of_root_say_what_to_do_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_time: Callable[[float], None]
) -> None:
    for number in "01":
        zone(tmp_path, number, f"package-{number}", 7)
    read = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "energy_uj":  # root, as in a container, may read any file
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    meter = EnergyMeter(folder=tmp_path)
    pass_time(1.0)
    meter.stop()
    assert meter.power is not None
    assert meter.power.parts == ()
    (because,) = meter.power.unread
    assert "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj" in because


def test_a_damaged_counter_is_named(tmp_path: Path, pass_time: Callable[[float], None]) -> None:
    zone(tmp_path, "0", "package-0", 7).write_text("")
    meter = EnergyMeter(folder=tmp_path)
    pass_time(1.0)
    meter.stop()
    assert meter.power is not None
    assert meter.power.unread[0].startswith("intel-rapl:0 cannot be read: invalid literal")


def test_a_machine_without_counters_has_no_power(tmp_path: Path) -> None:
    meter = EnergyMeter(folder=tmp_path / "missing")
    meter.stop()
    assert meter.power is None


class FakeNvml(SimpleNamespace):
    """nvidia-ml-py with one GPU.

    Args:
        joules: What its counter shows at each reading.
    """

    class NVMLError(Exception):
        pass

    def __init__(self, joules: Iterator[float]) -> None:
        super().__init__(joules=joules, num_open=0)

    def nvmlInit(self) -> None:  # noqa: N802
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert self.num_open == 1
        if uuid != GPU:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, board: str) -> int:  # noqa: N802
        assert board == GPU
        return round(1e3 * next(self.joules))


def test_the_board_of_the_gpu_is_read_in_joules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_time: Callable[[float], None]
) -> None:
    nvml = FakeNvml(iter([1e6, 1e6 + 700.0]))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = EnergyMeter(GPU, tmp_path)
    pass_time(2.0)
    meter.stop()
    # It may be 0.1 s behind.
    assert meter.power == MachinePower(parts=(part("NVML", 350.0, 0.05),))
    assert nvml.num_open == 0


@pytest.mark.parametrize(
    ("module", "because"),
    [
        (None, "the GPU's energy counter needs `pip install nvidia-ml-py`"),
        (FakeNvml(iter([])), "the GPU's energy counter cannot be read: Not Found"),
    ],
)
def test_a_board_without_a_counter_gives_its_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: FakeNvml | None,
    because: str,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    meter = EnergyMeter("MIG-1", tmp_path)
    meter.stop()
    assert meter.power == MachinePower(unread=(because,))
    assert module is None or module.num_open == 0

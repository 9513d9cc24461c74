"""What names of devices mean: GPUs, CPUs, and parts of CPUs."""

from __future__ import annotations

import pytest

from breakeven.device import default_devices, select_devices, split_devices
from breakeven.errors import BreakevenError, UnknownDeviceError, UsageError


def test_gpus_and_cpus_are_told_apart_by_name() -> None:
    gpus, cpus = split_devices(["T4", "i9-10940X", "NVIDIA A100-SXM4-80GB", "EPYC 7763", "t4"])

    assert [gpu.id for gpu in gpus] == ["t4", "a100-sxm4-80gb"]
    assert [cpu.id for cpu in cpus] == ["core-i9-10940x", "epyc-7763"]


def test_cpus_come_beside_the_usual_gpus() -> None:
    gpus, cpus = split_devices(["Intel(R) Core(TM) i9-10940X CPU @ 3.30GHz"])

    assert gpus == default_devices()
    assert [cpu.id for cpu in cpus] == ["core-i9-10940x"]


def test_a_name_of_both_is_the_gpus() -> None:
    gpus, cpus = split_devices(["GH200"])

    assert [gpu.id for gpu in gpus] == ["gh200"]
    assert cpus == ()


def test_some_cores_of_a_cpu_have_their_part_of_its_memory() -> None:
    _, (whole, part) = split_devices(["EPYC 7763", "8 cores of EPYC 7763"])

    assert (whole.num_cores, part.num_cores) == (64, 8)
    assert part.memory_bytes_per_s == pytest.approx(204.8e9 / 8)
    assert part.boost_hz == whole.boost_hz


def test_more_cores_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="EPYC 7763 has 64 cores, not 65"):
        split_devices(["65 cores of EPYC 7763"])


def test_a_name_of_neither_lists_the_nearest_of_both() -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        split_devices(["i9-10941X"])

    assert "No device called “i9-10941X”" in caught.value.message
    assert "Core i9-10940X" in caught.value.message
    assert caught.value.exit_code == 3
    assert "breakeven devices --hosts" in (caught.value.hint or "")


def test_the_cpu_of_some_cores_must_be_known() -> None:
    with pytest.raises(BreakevenError, match="no host 'nothing'"):
        split_devices(["4 cores of nothing"])


def test_where_gpus_are_wanted_a_cpu_is_refused_by_name() -> None:
    with pytest.raises(UnknownDeviceError, match="EPYC 7763 is a CPU, and GPUs are wanted"):
        select_devices(["T4", "7763"])

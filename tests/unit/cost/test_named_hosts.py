"""Hosts by their CPU's speed."""

from __future__ import annotations

import msgspec
import pytest

from breakeven.cost import Era, host_for, host_spec, measured_speed, reference_host
from breakeven.device import find_host_cpu
from factories.hosts import HOST, calibration


def times_of(host) -> dict[str, float]:
    return {
        field: value
        for field, value in msgspec.structs.asdict(host).items()
        if field.endswith("_ns")
    }


def test_host_takes_the_reference_times_over_its_speed() -> None:
    cpu = find_host_cpu("Ryzen 9 5950X")
    host = host_spec(cpu)
    reference = times_of(reference_host())
    assert times_of(host) == pytest.approx(
        {field: time_ns * 3.706 / 6.37 for field, time_ns in reference.items()}
    )
    assert (host.id, host.name) == ("ryzen-9-5950x", "Ryzen 9 5950X")
    assert host.source == "reference host × 0.58: Zen 3 at 4.9 GHz against Zen 2 at 3.4"


def test_hosts_that_were_not_measured_are_less_certain() -> None:
    known, hidden = host_spec(find_host_cpu("EPYC 7742")), host_spec(find_host_cpu("vm-epyc"))
    sigmas = [HOST.log_sigma, reference_host().log_sigma, known.log_sigma, hidden.log_sigma]
    assert sigmas == sorted(sigmas)
    assert len(set(sigmas)) == 4


def test_table_without_a_host_means_the_reference() -> None:
    assert host_for("", Era.TORCH_2) == (reference_host(), None)
    assert host_for("  ", Era.TORCH_2) == (reference_host(), None)


def test_table_with_a_known_host_means_that_one() -> None:
    host, caveat = host_for("AMD EPYC 7763 64-Core Processor", Era.TORCH_2)
    assert host == host_spec(find_host_cpu("epyc-7763"))
    assert caveat is None


def test_unknown_host_is_the_reference_with_a_caveat() -> None:
    host, caveat = host_for("VIA Nano U3300", Era.TORCH_2)
    assert host == reference_host()
    assert caveat is not None
    assert caveat.code == "unknown-host"
    assert caveat.message == (
        "there is no host 'VIA Nano U3300'; the reference host stands in for it"
    )


def test_speed_of_a_measured_host_is_that_of_its_calls() -> None:
    # Half of what the reference would take of each; then one of eight is four times as slow.
    assert measured_speed(calibration()) == pytest.approx(2.0, rel=0.001)
    slower = calibration(op=4 * 1_020.0)
    assert measured_speed(slower) == pytest.approx(2.0 * 4 ** (-1 / 8), rel=0.001)


def test_older_software_takes_longer_for_everything() -> None:
    today, old = times_of(reference_host()), times_of(reference_host(Era.TORCH_1))
    assert reference_host(Era.UNKNOWN) == reference_host(Era.TORCH_1)
    # What only a host of today is known to take is no part of one that steps were fitted to.
    fitted = {field for field in old if field not in ("device_ns", "module_ns", "step_ns")}
    assert all(old[field] > 0.85 * today[field] for field in fitted)
    assert old["op_ns"] + old["python_ns"] > 2 * (today["op_ns"] + today["python_ns"])

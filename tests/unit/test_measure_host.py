from __future__ import annotations

import platform
from pathlib import Path

import msgspec
import pytest
from scripted_clock import ScriptedClock

from breakeven.device import HostSpec
from breakeven.measure import _measure_host as module
from breakeven.measure import cpu_name, measure_host


@pytest.mark.timing
def test_costs_of_this_host_are_in_a_plausible_order() -> None:
    host = measure_host()
    assert 0 < host.view_ns < 1.2 * host.op_ns, "a view computes nothing"
    assert 0 <= host.autograd_ns < 20 * host.op_ns
    assert 0.05 * host.op_ns < host.backward_ns < 50 * host.op_ns
    assert 0 < host.foreach_ns < 50 * host.op_ns
    assert 0 <= host.foreach_tensor_ns < host.op_ns, "a tensor of a list costs less than an op"
    assert host.id == "here"
    assert host.name == cpu_name()


def test_costs_are_time_over_calls() -> None:
    # Each round seems to take 4,000 ns: 400 calls of an operator, 6 of a list of 64, 100 of a
    # backward chain.
    host = measure_host(ScriptedClock(then_every_ns=4_000))
    assert host.op_ns == host.view_ns == host.foreach_ns == 10
    assert host.autograd_ns == 0
    assert host.backward_ns == 40
    assert host.foreach_tensor_ns == pytest.approx(0.1 * (4_000 / 6 - 10) / 63)


def test_negative_differences_count_as_none() -> None:
    # Plain operators seem slower than recorded ones, a list of one slower than a list of 64.
    op, recorded, view, one, many, backward = 8_000, 4_000, 400, 8_000, 60, 100
    times_ns, now_ns = [], 0
    for duration_ns in (op, recorded, view, one, many, backward):
        for _ in range(7):
            times_ns += [now_ns, now_ns + duration_ns]
            now_ns += duration_ns
    host = measure_host(ScriptedClock(times_ns))
    assert (host.op_ns, host.autograd_ns, host.view_ns) == (20, 0, 1)
    assert (host.foreach_ns, host.foreach_tensor_ns, host.backward_ns) == (20, 0, 1)


def test_slow_first_round_is_warmup() -> None:
    durations_ns = [4_000_000, *[4_000] * 6] * 6
    times_ns, now_ns = [], 0
    for duration_ns in durations_ns:
        times_ns += [now_ns, now_ns + duration_ns]
        now_ns += duration_ns
    assert measure_host(ScriptedClock(times_ns)).op_ns == 10


def test_source_names_machine_date_and_versions() -> None:
    source = measure_host(ScriptedClock(then_every_ns=1_000)).source
    assert source.startswith(f"measured on {cpu_name()}, 20")
    assert f"Python {platform.python_version()}" in source
    assert "torch 2." in source


def test_host_survives_the_way_through_json() -> None:
    host = measure_host(ScriptedClock(then_every_ns=1_234))
    assert msgspec.json.decode(msgspec.json.encode(host), type=HostSpec) == host


def read_cpuinfo(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    monkeypatch.setattr(module, "Path", lambda _: path)
    return cpu_name()


def test_processor_is_called_what_the_system_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel\t\t: 49\nmodel name\t: AMD EPYC: 7B12\nmodel name\t: other\n"
    )
    assert read_cpuinfo(monkeypatch, path) == "AMD EPYC: 7B12"


@pytest.mark.parametrize("text", ["processor\t: 0\nBogoMIPS\t: 50.00\n", None])
def test_processor_without_a_model_name_is_called_by_its_kind(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert read_cpuinfo(monkeypatch, path) == "aarch64"

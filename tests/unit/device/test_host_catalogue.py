"""Names of CPUs, and how fast one of their cores is."""

from __future__ import annotations

import pytest

from breakeven.device import find_host_cpu, load_host_cpus
from breakeven.errors import BreakevenError


@pytest.mark.parametrize(
    ("name", "expected_id"),
    [
        ("AMD EPYC 7502 32-Core Processor", "epyc-7502"),
        ("AMD EPYC 7H12 64-Core Processor", "epyc-7h12"),
        ("AMD EPYC: 7B12", "epyc-7b12"),
        ("epyc-7763", "epyc-7763"),
        ("7763", "epyc-7763"),
        ("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz", "xeon-gold-6230"),
        ("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", "xeon-e5-2686-v4"),
        ("2x Xeon E5-2630 v3", "xeon-e5-2630-v3"),
        ("CPU 2x Xeon E5-2630 v3", "xeon-e5-2630-v3"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-platinum-8480-plus"),
        ("Intel(R) Core(TM) i9-7920X CPU @ 2.90GHz", "core-i9-7920x"),
        ("12th Gen Intel(R) Core(TM) i7-12700H", "core-i7-12700h"),
        ("i7-7700", "core-i7-7700"),
        ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", "threadripper-pro-5995wx"),
        ("AMD Ryzen Threadripper 3970X 32-Core Processor", "threadripper-3970x"),
        ("AMD Ryzen 7 5800H with Radeon Graphics", "ryzen-7-5800h"),
        ("Apple M2 Pro", "apple-m2-pro"),
        ("m1", "apple-m1"),
        ("Neoverse-V1", "graviton3"),
        # What hypervisors say instead of a model.
        ("AMD EPYC Processor (with IBPB)", "vm-epyc"),
        ("AMD EPYC-Milan Processor", "vm-epyc-milan"),
        ("Intel Xeon Processor (Cascadelake)", "vm-cascadelake"),
        ("Intel Xeon Processor (Skylake, IBRS)", "vm-skylake"),
        ("Intel Core Processor (Broadwell)", "vm-broadwell"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "gcp-broadwell"),
        ("Intel(R) Xeon(R) CPU @ 2.00GHz", "gcp-skylake"),
    ],
)
def test_name_finds_its_cpu(name: str, expected_id: str) -> None:
    assert find_host_cpu(name).id == expected_id


def test_every_written_name_finds_its_own_cpu() -> None:
    for cpu in load_host_cpus():
        for name in (cpu.id, cpu.name, cpu.name.upper(), *cpu.aliases):
            assert find_host_cpu(name).id == cpu.id, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("EPYC 7764", r"no host 'EPYC 7764'; nearest: EPYC 7763"),
        # A brand is no model: no figures of any one of them.
        ("AMD EPYC", r"there are \d+ hosts like 'AMD EPYC'"),
        ("i7", r"there are \d+ hosts like 'i7'"),
        ("zzz", r"no host 'zzz'\n"),
        ("", r"no host ''\n"),
    ],
)
def test_other_names_are_refused(name: str, expected: str) -> None:
    with pytest.raises(BreakevenError, match=expected) as caught:
        find_host_cpu(name)
    assert "devices --hosts" in (caught.value.hint or "")


def test_speed_is_clock_times_instructions_per_clock() -> None:
    assert find_host_cpu("EPYC 7742").single_thread_speed == pytest.approx(1.0)
    # 1.30 × 4.9 GHz against 1.09 × 3.4 GHz.
    assert find_host_cpu("Ryzen 9 5950X").single_thread_speed == pytest.approx(6.37 / 3.706)


@pytest.mark.parametrize(
    "slow_to_fast",
    [
        ("EPYC 7601", "EPYC 7742", "EPYC 7763", "EPYC 9654", "EPYC 9655"),
        ("Xeon E5-2680 v3", "Xeon Gold 6230", "Xeon Platinum 8480C", "Core i9-14900K"),
        ("Graviton2", "Graviton3", "Graviton4", "Grace"),
        ("Apple M1", "Apple M2", "Apple M3", "Apple M4"),
    ],
)
def test_generations_are_in_order(slow_to_fast: tuple[str, ...]) -> None:
    speeds = [find_host_cpu(name).single_thread_speed for name in slow_to_fast]
    assert speeds == sorted(speeds)


def test_table_is_plausible() -> None:
    cpus = load_host_cpus()
    assert len(cpus) > 300
    assert len({cpu.id for cpu in cpus}) == len(cpus)
    for cpu in cpus:
        assert 2.0e9 <= cpu.boost_hz <= 6.2e9, cpu.id
        assert 0.5 < cpu.single_thread_speed < 3.0, cpu.id
        assert 2012 <= cpu.release_year <= 2026, cpu.id
        assert cpu.source, cpu.id

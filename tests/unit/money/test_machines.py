"""Machines for rent: the shipped file, own files, selection, billed time."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.device import find_device, find_host_cpu
from breakeven.errors import BreakevenError, UsageError
from breakeven.money import (
    Machine,
    PriceFile,
    PriceSource,
    billed_usd,
    known_prices,
    price_caveats,
    read_prices,
    select_machines,
    shipped_prices,
)
from breakeven.report import to_json
from breakeven.simulate.absent_cpu import rates_of

SHIPPED = shipped_prices()


def document(**changes: Any) -> dict[str, Any]:
    """Return a price file with one machine, of which some fields are changed."""
    source = {"id": "lab", "name": "Lab", "date": "2026-01-02", "source": "our own"}
    machine = {"provider": "lab", "name": "big", "num_vcpus": 8, "memory_bytes": 2**34}
    machine |= {"usd_per_hour": 2.0, "gpu": "t4", "num_gpus": 1}
    return {
        "schema_version": changes.pop("schema_version", 1),
        "sources": [source | {"billing_s": 1, "least_billed_s": 60, "date": "2026-01-02"}],
        "machines": [machine | changes],
    }


def written(folder: Path, content: dict[str, Any] | str) -> Path:
    path = folder / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_each_name_of_the_shipped_file_is_known() -> None:
    for machine in SHIPPED.machines:
        assert SHIPPED.source_of(machine).id == machine.provider
        if machine.gpu:
            assert find_device(machine.gpu).id == machine.gpu, machine.name
            assert machine.num_gpus >= 1
        elif machine.provider != "hf":
            # Nothing is predicted for a CPU without rates.
            assert rates_of(find_host_cpu(machine.cpu)).flop_per_s > 0, machine.name


def test_shipped_facts_that_lists_get_wrong() -> None:
    by_name = {machine.name: machine for machine in SHIPPED.machines}
    # The ND series has SXM modules, the NC series PCIe cards.
    assert by_name["Standard_ND96amsr_A100_v4"].gpu == "a100-sxm4-80gb"
    assert by_name["Standard_NC24ads_A100_v4"].gpu == "a100-pcie-80gb"
    assert by_name["Standard_NC6s_v3"].gpu == "v100-pcie-16gb"
    assert by_name["g6f.large"].gpu_fraction == pytest.approx(1 / 8)
    assert by_name["Standard_NV6ads_A10_v5"].gpu_fraction == pytest.approx(1 / 6)
    assert by_name["c7a.xlarge"].num_cores == 4
    assert by_name["c7i.xlarge"].num_cores == 2
    billing = {one.id: (one.billing_s, one.least_billed_s) for one in SHIPPED.sources}
    assert billing == {"aws": (1, 60), "gcp": (1, 60), "azure": (1, 1), "hf": (60, 60)}


def test_shipped_prices_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_bytes(to_json(SHIPPED))
    assert read_prices(path) == SHIPPED


def test_gpu_of_an_own_file_gets_its_catalogue_id(tmp_path: Path) -> None:
    (machine,) = read_prices(written(tmp_path, document(gpu="NVIDIA H100"))).machines
    assert machine.gpu == "h100-sxm5-80gb"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        (document(schema_version=2), "schema_version 2 is not 1"),
        (document(usd_per_hour=0), r"`float` > 0.0 - at `\$.machines\[0\].usd_per_hour`"),
        (document(usd_per_hour=-1.0), r"> 0.0 - at `\$.machines\[0\].usd_per_hour`"),
        (document(usd_per_hour=math.nan), "invalid"),
        (json.dumps(document()).replace("2.0", "1e999"), "out of range"),
        (document(gpu="H1000"), "machine “big”: No device called “H1000”.*Nearest"),
        (document(gpu=""), "only one is set"),
        (document(cpu="EPYC 1"), "machine “big”: there is no host 'EPYC 1'"),
        (document(provider="aws"), "machine “big”: no source has the id “aws”"),
        (document() | {"machines": document()["machines"] * 2}, "“big”: it is listed twice"),
        (document() | {"sources": document()["sources"] * 2}, "sources have the same id"),
        (json.dumps(document()).replace("2026-01-02", "2026-02-30"), "day is out of range"),
    ],
)
def test_own_file_that_is_wrong(content: Any, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(BreakevenError, match=expected) as raised:
        read_prices(path)
    assert str(path) in raised.value.message
    assert raised.value.exit_code == 3


def test_absent_own_file(tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match="No such file") as raised:
        read_prices(tmp_path / "none.json")
    assert raised.value.hint is not None
    assert "--json" in raised.value.hint


def aws_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, date: str, name: str = "big"
) -> PriceFile:
    content = document(provider="aws", name=name)
    content["sources"][0] |= {"id": "aws", "date": date}
    old = {"id": "aws-rest", "date": "2026-01-01"}
    content["sources"].append(content["sources"][0] | old)
    content["machines"].append(content["machines"][0] | {"provider": "aws-rest", "name": "old"})
    monkeypatch.setenv("BREAKEVEN_PRICES", str(written(tmp_path, content)))
    return known_prices()


@pytest.mark.parametrize("date", ["2026-11-20", "2026-07-20", ""])
def test_users_prices_replace_those_that_are_not_newer(
    date: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_prices() == SHIPPED
    known = aws_prices(tmp_path, monkeypatch, date, name="C5.large")
    assert [one.name for one in known.machines if one.provider == "aws"] == ["C5.large"]
    assert known.source_of(known.machines[0]).source == "our own"
    # Machines that only the shipped list has stay, with its date; the file's copy is older.
    rest = [one for one in known.machines if one.provider == "aws-rest"]
    names = [one.name for one in SHIPPED.machines if one.provider == "aws"]
    assert sorted([*(one.name for one in rest), "c5.large"]) == sorted(names)
    assert {known.source_of(one).date for one in rest} == {"2026-07-20"}
    others = [machine for machine in SHIPPED.machines if machine.provider != "aws"]
    assert [one for one in known.machines if one.cloud != "aws"] == others
    assert len({source.id for source in known.sources}) == len(known.sources)


def test_shipped_prices_that_are_newer_replace_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert aws_prices(tmp_path, monkeypatch, "2026-07-19") == SHIPPED


def test_selection_by_gpu_machine_cpu_and_provider() -> None:
    found = select_machines(SHIPPED, ["NVIDIA L4", "C5.LARGE"], ["aws"])
    assert {machine.gpu for machine in found} == {"l4", ""}
    assert [machine.name for machine in found if not machine.gpu] == ["c5.large"]
    assert {machine.provider for machine in found} == {"aws"}
    cpus = select_machines(SHIPPED, ["cpu"])
    assert cpus
    assert not any(machine.num_gpus for machine in cpus)
    (own,) = select_machines(SHIPPED, ["c5.large"], usd_per_hour={"C5.large": 7.0})
    assert own.usd_per_hour == 7.0


@pytest.mark.parametrize(
    ("names", "providers", "expected"),
    [
        (["RTX 4090"], [], "no machine or GPU “rtx 4090” has a price"),
        (["p5.48xlarg"], [], "no machine or GPU “p5.48xlarg”"),
        ([], ["amazon"], "no prices of “amazon”"),
    ],
)
def test_selection_of_nothing(names: list[str], providers: list[str], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        select_machines(SHIPPED, names, providers)


@pytest.mark.parametrize("price", [0.0, -1.0, math.inf, math.nan])
def test_own_price_that_is_none(price: float) -> None:
    with pytest.raises(UsageError, match="a price is above 0"):
        select_machines(SHIPPED, usd_per_hour={"c5.large": price})


def test_caveats_of_old_and_undated_lists() -> None:
    aws, *_, jobs = SHIPPED.sources
    day = datetime.date.fromisoformat(aws.date)
    assert price_caveats([aws], day + datetime.timedelta(days=90)) == ()
    (stale,) = price_caveats([aws], day + datetime.timedelta(days=91))
    assert stale.code == "stale-prices"
    assert stale.message == f"The prices of AWS are 91 days old ({aws.date})."
    (undated,) = price_caveats([jobs], day)
    assert undated.code == "undated-prices"


SECONDS = st.floats(min_value=0, max_value=1e7)
UNITS = st.sampled_from([0.1, 1.0, 60.0, 600.0, 3600.0])
LEAST = st.integers(min_value=0, max_value=100)


def paid_units(seconds: float, unit: float, num_least: int) -> float:
    """Return the paid units of a machine that costs $3600 an hour, $1 a second."""
    machine = Machine(
        provider="p", name="m", num_vcpus=1, memory_bytes=1, usd_per_hour=3600.0, region="r"
    )
    source = PriceSource(
        id="p",
        name="P",
        date="",
        source="made up",
        billing_s=unit,
        least_billed_s=num_least * unit,
    )
    return billed_usd(machine, source, seconds) / unit


@given(SECONDS, SECONDS, UNITS, LEAST)
def test_longer_never_costs_less(one: float, other: float, unit: float, num_least: int) -> None:
    short, long = sorted((one, other))
    assert paid_units(short, unit, num_least) <= paid_units(long, unit, num_least)


@given(SECONDS, UNITS, LEAST)
def test_paid_time_is_the_least_number_of_whole_units(
    seconds: float, unit: float, num_least: int
) -> None:
    paid = paid_units(seconds, unit, num_least)
    assert paid == pytest.approx(round(paid), rel=1e-12)
    assert round(paid) >= num_least
    # Up to a millionth of a unit is rounding.
    assert round(paid) >= seconds / unit - 1e-6
    assert round(paid) == num_least or round(paid) < seconds / unit + 1 + 1e-6


@given(st.integers(min_value=1, max_value=100_000), UNITS)
def test_whole_units_are_not_rounded_up(number: int, unit: float) -> None:
    assert paid_units(number * unit, unit, 0) == pytest.approx(number, rel=1e-12)


def test_billed_time_by_hand() -> None:
    jobs = SHIPPED.sources[-1]
    machine = next(one for one in SHIPPED.machines if one.name == "T4 small")
    # 61 seconds are two minutes at $0.40 an hour.
    assert billed_usd(machine, jobs, 61) == pytest.approx(0.40 * 2 / 60)
    assert billed_usd(machine, jobs, 60) == pytest.approx(0.40 / 60)

"""Current prices: by a made-up gpuhunt, and by the real one with lists on disk."""

from __future__ import annotations

import csv
import io
import socket
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from breakeven.cli import main
from breakeven.errors import BreakevenError
from breakeven.money import known_prices, shipped_prices
from breakeven.store import refresh_prices


@dataclass
class Offer:
    provider: str
    instance_name: str
    location: str
    price: float
    gpu_count: int = 0
    spot: bool = False
    provider_data: dict[str, Any] = field(default_factory=dict)


OFFERS = [
    Offer("aws", "p5.48xlarge", "ap-south-1", 40.0, 8),
    Offer("aws", "p5.48xlarge", "us-east-2", 51.0, 8),
    Offer("aws", "p5.48xlarge", "us-east-1", 50.0, 8),
    Offer("aws", "p5.48xlarge", "us-east-1", 21.0, 8, spot=True),
    Offer("aws", "p5.48xlarge", "us-east-2", 11.0, 8, spot=True),
    Offer("aws", "c5.large", "us-west-2", 0.08),
    Offer("aws", "brand-new.large", "us-west-2", 0.01),
    # Other GPUs than shipped are another machine.
    Offer("aws", "g4dn.xlarge", "us-east-1", 0.1, 4),
    Offer("gcp", "a3-highgpu-8g", "us-central1-a", 80.0, 8),
    Offer(
        "gcp", "a3-highgpu-8g", "us-central1-b", 9.0, 8, provider_data={"is_dws_calendar_mode": 1}
    ),
    Offer("runpod", "RTX 4090", "US-KS-2", 0.3, 1),
]


class FakeHunt(ModuleType):
    """Stands in for gpuhunt: its error, and a catalogue of the offers above."""

    class GPUHuntError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("gpuhunt")
        self.failure: Exception | None = None
        self.limits_s: list[float | None] = []
        self.offers = OFFERS

    def Catalog(self, *, balance_resources: bool, auto_reload: bool) -> Any:  # noqa: N802
        assert not balance_resources, "offers must be as the provider lists them"
        assert not auto_reload, "one fetch is enough"

        def load() -> None:
            self.limits_s.append(socket.getdefaulttimeout())
            if self.failure is not None:
                raise self.failure

        def query(*, provider: str, cpu_arch: str) -> list[Offer]:
            assert cpu_arch == "x86"
            return [offer for offer in self.offers if offer.provider == provider]

        lists = {
            name: SimpleNamespace(version="20261120-7")
            for name in ("aws", "gcp", "azure", "runpod")
        }
        return SimpleNamespace(catalog=lists, load=load, query=query)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "prices.json"
    monkeypatch.setenv("BREAKEVEN_PRICES", str(path))
    return path


@pytest.fixture
def hunt(monkeypatch: pytest.MonkeyPatch, file: Path) -> FakeHunt:
    fake = FakeHunt()
    monkeypatch.setitem(sys.modules, "gpuhunt", fake)
    return fake


def test_refreshed_prices_replace_shipped_ones(hunt: FakeHunt, file: Path) -> None:
    assert refresh_prices() == file
    known = known_prices()
    by_name = {machine.name: machine for machine in known.machines}
    # All shipped machines remain, each once, and no other is added.
    assert sorted(by_name) == sorted(machine.name for machine in shipped_prices().machines)
    assert len(known.machines) == len(by_name)
    p5 = by_name["p5.48xlarge"]
    # The cheapest region in the USA, though India is cheaper, and the spot price there.
    assert (p5.usd_per_hour, p5.spot_usd_per_hour, p5.region) == (50.0, 21.0, "us-east-1")
    assert p5.gpu == "h100-sxm5-80gb"
    assert known.source_of(p5).date == "2026-11-20"
    assert "gpuhunt" in known.source_of(p5).source
    a3 = by_name["a3-highgpu-8g"]
    assert (a3.usd_per_hour, a3.region) == (80.0, "us-central1")
    assert by_name["c5.large"].usd_per_hour == 0.08


def test_what_the_new_list_lacks_keeps_price_and_date(hunt: FakeHunt, file: Path) -> None:
    refresh_prices()
    known, shipped = known_prices(), shipped_prices()
    old = {machine.name: machine for machine in shipped.machines}
    (g4,) = [machine for machine in known.machines if machine.name == "g4dn.xlarge"]
    assert g4.usd_per_hour == old["g4dn.xlarge"].usd_per_hour
    assert g4.cloud == "aws"
    assert known.source_of(g4).date == shipped.source_of(old["g4dn.xlarge"]).date
    # Azure's list had no machine that is known, so all of it is as shipped.
    azure = [machine for machine in known.machines if machine.cloud == "azure"]
    assert azure == [machine for machine in shipped.machines if machine.cloud == "azure"]


def test_network_has_a_time_limit_while_fetching_only(hunt: FakeHunt, file: Path) -> None:
    before = socket.getdefaulttimeout()
    refresh_prices()
    (limit_s,) = hunt.limits_s
    assert limit_s is not None
    assert socket.getdefaulttimeout() == before


@pytest.mark.parametrize("failure", [FakeHunt.GPUHuntError("all failed"), OSError("no route")])
def test_offline_keeps_the_file_from_before(failure: Exception, hunt: FakeHunt, file: Path) -> None:
    refresh_prices()
    before = file.read_bytes()
    hunt.failure = failure
    with pytest.raises(BreakevenError, match=f"cannot fetch current prices: {failure}"):
        refresh_prices()
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_lists_without_known_machines_change_nothing(hunt: FakeHunt, file: Path) -> None:
    hunt.offers = [OFFERS[-1]]
    with pytest.raises(BreakevenError, match="no machine that breakeven knows"):
        refresh_prices()
    assert not file.exists()


def test_without_gpuhunt(
    monkeypatch: pytest.MonkeyPatch, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    assert main(["prices", "--refresh"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pip install 'breakeven[prices]'" in captured.err
    assert not file.parent.exists()


def test_folder_that_cannot_be_made(
    hunt: FakeHunt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("BREAKEVEN_PRICES", str(tmp_path / "taken" / "prices.json"))
    with pytest.raises(BreakevenError, match="cannot write"):
        refresh_prices()


def test_real_gpuhunt_with_lists_on_disk(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gpuhunt", reason="breakeven[prices] is not installed")
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", tmp_path.as_uri())
    with pytest.raises(BreakevenError, match="cannot fetch current prices"):
        refresh_prices()
    rows = [
        {"instance_name": "p5.48xlarge", "location": "us-east-1", "price": 50.0, "cpu": 192,
         "memory": 2048.0, "gpu_count": 8, "gpu_name": "H100", "gpu_memory": 80.0, "spot": spot,
         "gpu_vendor": "nvidia", "cpu_arch": "x86"}
        for spot in (False, True)
    ]  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    (tmp_path / "aws" / "20261120-7").mkdir(parents=True)
    (tmp_path / "aws" / "version").write_text("20261120-7\n")
    with zipfile.ZipFile(tmp_path / "aws" / "20261120-7" / "catalog.zip", "w") as archive:
        archive.writestr("aws.csv", text.getvalue())
    refresh_prices()
    (p5,) = [one for one in known_prices().machines if one.name == "p5.48xlarge"]
    assert (p5.usd_per_hour, p5.spot_usd_per_hour) == (50.0, 50.0)
    assert known_prices().source_of(p5).date == "2026-11-20"

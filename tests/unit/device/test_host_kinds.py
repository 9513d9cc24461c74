"""Kinds of machines that feed GPUs: what is known of each, and which GPU is in which."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from breakeven import processor
from breakeven.calibrate import here as module
from breakeven.calibrate import host_called
from breakeven.calibrate.here import kind_here
from breakeven.cost import reference_host
from breakeven.device import (
    HERE,
    DeviceWork,
    HostSpec,
    find_device,
    find_host_kind,
    load_host_kinds,
)
from breakeven.device.host_kinds import KindEntry, SeenMachine, kinds_of
from breakeven.errors import BreakevenError
from breakeven.report import RecordedStep, record
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.trace import StepTrace
from factories.steps import op, tensor


def machine(factor: float, handoff_ns: float = 0.0) -> SeenMachine:
    return SeenMachine(name="m", factor=factor, num_rows=9, source="s", handoff_ns=handoff_ns)


def here() -> HostSpec:
    return replace(reference_host(), id=HERE, name="this CPU")


def small_step() -> StepTrace:
    """Return a step that the host decides on any GPU."""
    x = tensor(8, 8, device="cuda:0")
    return StepTrace(events=tuple(op(inputs=(x, x), outputs=(x,)) for _ in range(100)))


def predicted(host: HostSpec, *devices: str) -> tuple[StepPrediction, ...]:
    return predict_steps(small_step(), [find_device(name) for name in devices], host)


def on_a_machine(patch: pytest.MonkeyPatch, folder: Path, flags: str) -> None:
    info = folder / "cpuinfo"
    info.write_text(f"flags\t\t: fpu {flags}\n")
    patch.setattr(processor, "_CPUINFO", info)
    for name in module.NOTEBOOK_VARIABLES:
        patch.delenv(name, raising=False)
    patch.setattr(module.platform, "release", lambda: "6.1.0")


def test_a_kind_is_the_mean_of_its_machines_and_how_far_another_may_be() -> None:
    (kind,) = kinds_of((KindEntry(id="k", name="k", machines=(machine(1.0), machine(4.0))),))
    assert kind.factor == pytest.approx(2.0)
    # One more machine than two: sqrt(1 + 1/2) times their standard deviation.
    assert kind.log_sigma == pytest.approx(1.2006, rel=1e-3)
    assert not kind.is_spread_borrowed


def test_a_kind_of_one_machine_borrows_the_widest_spread_and_is_told_less() -> None:
    entries = (
        KindEntry(id="a", name="a", machines=(machine(1.0), machine(4.0))),
        KindEntry(id="b", name="b", machines=(machine(1.0), machine(1.1))),
        KindEntry(id="c", name="c", machines=(machine(3.0),)),
    )
    a, b, c = kinds_of(entries)
    assert c.is_spread_borrowed
    assert c.log_sigma > a.log_sigma > b.log_sigma


def test_machines_say_where_they_were_measured() -> None:
    assert all(
        seen.source and seen.num_rows for kind in load_host_kinds() for seen in kind.machines
    )


@pytest.mark.parametrize(
    ("name", "kind"), [("cloud", "cloud"), ("Colab", "sandbox"), ("kaggle", "sandbox"), ("", None)]
)
def test_kinds_are_found_by_their_names(name: str, kind: str | None) -> None:
    found = find_host_kind(name)
    assert (found.id if found else None) == kind


def test_rented_machines_take_longer_to_issue() -> None:
    (bare,) = predicted(host_called("desktop", here()), "T4")
    (cloud,) = predicted(host_called("cloud", here()), "T4")
    assert cloud.estimate.value_ns > 2 * bare.estimate.value_ns


def test_the_interval_has_the_spread_between_machines() -> None:
    (plain,) = predicted(here(), "RTX 4090")
    (known,) = predicted(host_called("desktop", here()), "RTX 4090")
    spread = known.estimate.high_ns / known.estimate.low_ns
    assert spread > 1.1 * plain.estimate.high_ns / plain.estimate.low_ns


def test_cards_for_desks_are_fed_by_a_desktop_and_others_are_rented(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_machine(monkeypatch, tmp_path, "sse2")
    card, rented = predicted(host_called("auto", here()), "RTX 4090", "T4")
    assert card.fed_by == "Linux desktop or bare server"
    assert rented.fed_by == "cloud virtual machine"
    # Each as if it had been asked for alone.
    assert predicted(host_called("auto", here()), "T4") == (rented,)


def test_a_rented_machine_is_as_fast_as_others_of_its_kind_whatever_its_cpu_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_machine(monkeypatch, tmp_path, "hypervisor")
    slow = replace(here(), op_ns=10 * here().op_ns)
    for name in ("auto", HERE, "cloud"):
        assert predicted(host_called(name, slow), "T4") == predicted(
            host_called(name, here()), "T4"
        )
    # The desk of one's own has this CPU.
    card, other = (predicted(host_called("auto", host), "RTX 4090")[0] for host in (slow, here()))
    assert card.estimate.value_ns > 2 * other.estimate.value_ns


def test_a_machine_is_known_by_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_machine(monkeypatch, tmp_path, "sse2")
    assert kind_here().id == "desktop"
    on_a_machine(monkeypatch, tmp_path, "hypervisor")
    assert kind_here().id == "cloud"
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    assert kind_here().id == "sandbox"
    monkeypatch.setattr(module.platform, "release", lambda: "5.15-microsoft-standard-WSL2")
    assert kind_here().id == "windows"


def test_a_host_whose_own_steps_were_measured_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_machine(monkeypatch, tmp_path, "hypervisor")
    seen = replace(here(), device_work=DeviceWork(has_steps=True))
    assert predicted(host_called(HERE, seen), "T4") == predicted(seen, "T4")
    assert predicted(host_called("auto", seen), "T4") == predicted(seen, "T4")
    assert predicted(host_called("colab", seen), "T4") != predicted(seen, "T4")


def test_a_stored_step_is_predicted_in_the_same_machines_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_machine(monkeypatch, tmp_path, "sse2")
    for host in (host_called("auto", here()), host_called("colab", here()), reference_host()):
        stored = msgspec.json.encode(record(small_step(), host))
        found = msgspec.json.decode(stored, type=RecordedStep)
        assert found.is_whole
        assert predicted(found.host, "RTX 4090", "T4") == predicted(host, "RTX 4090", "T4")


def test_an_unknown_host_is_told_with_the_kinds() -> None:
    with pytest.raises(BreakevenError) as error:
        host_called("no such machine", here())
    assert "cloud" in error.value.hint

"""Speeds that were measured elsewhere: how they are written, what they tell, where it is kept."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven.calibrate import (
    anchors_of,
    as_measured,
    host_called,
    in_measured_machines,
    read_speeds,
)
from breakeven.calibrate.elsewhere import (
    PASS_LOG_SIGMA,
    HostAnchor,
    backward_fraction,
    combined,
    read_speed,
)
from breakeven.calibrate.here import with_kinds
from breakeven.cost import reference_host
from breakeven.device import (
    FOLDER_VARIABLE,
    HERE,
    FeedingHost,
    HostSpec,
    find_device,
    find_kind,
)
from breakeven.errors import Caveat, UsageError
from breakeven.simulate import StepPrediction, build_program, predict_steps
from breakeven.trace import Phase, StepTrace
from breakeven.units import NS_PER_MS, NS_PER_S
from factories.steps import op, tensor


def here() -> HostSpec:
    return replace(reference_host(), id=HERE, name="this CPU")


def small_step() -> StepTrace:
    """Return a step that the host decides on any GPU."""
    x = tensor(8, 8, device="cuda:0")
    return StepTrace(events=tuple(op(inputs=(x, x), outputs=(x,)) for _ in range(100)))


def large_step() -> StepTrace:
    """Return a step that any GPU decides."""
    x = tensor(8_192, 8_192, device="cuda:0")
    return StepTrace(events=(op(name="aten.mm.default", inputs=(x, x), outputs=(x,)),) * 20)


def predicted(trace: StepTrace, host: HostSpec, device: str) -> StepPrediction:
    return predict_steps(trace, [find_device(device)], host)[0]


def told(
    trace: StepTrace, *texts: str, host: HostSpec | None = None, target: str = "train.py"
) -> tuple[HostSpec, Sequence[Caveat]]:
    """Return a host with what speeds of a step tell, of which an epoch has 100."""
    host = host or host_called("cloud", here())
    speeds = read_speeds(texts)
    counts = {"sample": 1 / 32, "epoch": 100.0}
    program = build_program(trace)
    new, caveats = anchors_of(speeds, program, host, target, counts)
    return in_measured_machines(host, new, program=program), caveats


def ms_at(trace: StepTrace, factor: float) -> float:
    """Return a T4's step in a cloud machine that takes so many times as long as most."""
    kind = find_kind("cloud")
    host = host_called("cloud", here())
    assert isinstance(host, FeedingHost)
    slow = host.each(lambda one: replace(one, kind=replace(kind, factor=factor * kind.factor)))
    return predicted(trace, slow, "T4").estimate.value_ns / NS_PER_MS


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))
    return tmp_path / "own" / "hosts"


@pytest.mark.parametrize(
    ("text", "kind", "device", "time_ns", "per"),
    [
        ("T4: 340 it/s", None, "T4", NS_PER_S / 340, "step"),
        ("rtx 4090: 12 ms", None, "RTX 4090", 12e6, "step"),
        ("colab T4: 45 s/epoch", "sandbox", "T4", 45e9, "epoch"),
        ("Windows RTX 4090 : 1.5 min/epoch", "windows", "RTX 4090", 90e9, "epoch"),
        ("A100: 5,000 samples/s", None, "A100 SXM4 80GB", 200_000.0, "sample"),
    ],
)
def test_a_speed_is_of_a_gpu_in_a_kind_of_machine(
    text: str, kind: str | None, device: str, time_ns: float, per: str
) -> None:
    speed = read_speed(text)
    assert (speed.kind and speed.kind.id) == kind
    assert speed.device.name == device
    assert speed.time_ns == pytest.approx(time_ns)
    assert speed.per == per


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("T4: 340", "'340' is no number above 0 with a unit"),
        ("T4: 340 parsecs", "'340 parsecs' is no number"),
        ("T4: -3 ms", "'-3 ms' is no number"),
        ("T4: 0 it/s", "'0 it/s' is no number"),
        ("T4: 12,5 ms", "'12,5 ms' is no number"),
        ("T4 340 it/s", "'T4 340 it/s' is no number"),
        ("", "'' is no number"),
        ("340 it/s", "No device called"),
        ("T5: 340 it/s", "No device called “T5”"),
        ("basement T4: 340 it/s", "No device called “basement T4”"),
    ],
)
def test_what_is_no_speed_is_refused_with_the_right_form(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--measured {text!r}")) as error:
        read_speed(text)
    assert why in error.value.message
    assert "'T4: 340 it/s'" in str(error.value.hint)
    assert error.value.exit_code == 2


def test_the_host_moves_towards_what_was_measured_and_its_interval_narrows() -> None:
    step, usual = small_step(), host_called("cloud", here())
    seen_ms = ms_at(step, 1.5)
    host, (caveat,) = told(step, f"T4: {seen_ms} ms")
    before, after = (predicted(step, each, "T4").estimate for each in (usual, host))
    assert before.value_ns < after.value_ns < seen_ms * NS_PER_MS < after.high_ns
    assert after.high_ns / after.low_ns < 0.9 * before.high_ns / before.low_ns
    assert "is usual in a cloud virtual machine" in caveat.message
    # Other GPUs in such machines, too.
    other, usual_other = (predicted(step, each, "A100").estimate for each in (host, usual))
    ratios = other.value_ns / usual_other.value_ns, after.value_ns / before.value_ns
    assert ratios[0] == pytest.approx(ratios[1], rel=0.05)


def test_a_step_that_the_gpu_decides_tells_nothing_of_the_host(folder: Path) -> None:
    step, usual = large_step(), host_called("cloud", here())
    host, (caveat,) = told(step, f"T4: {1.2 * ms_at(step, 1.0)} ms")
    assert predicted(small_step(), host, "T4") == predicted(small_step(), usual, "T4")
    assert "the host does not decide this step" in caveat.message
    assert not folder.exists()


def test_each_measurement_narrows_what_is_known(folder: Path) -> None:
    step, kind = small_step(), find_kind("cloud")
    sigmas = [kind.log_sigma]
    for target in ("a.py", "b.py"):
        told(step, f"T4: {ms_at(step, 1.5)} ms", target=target)
        sigmas.append(as_measured(kind).log_sigma)
    assert sigmas == sorted(sigmas, reverse=True)
    # The same again tells nothing new.
    told(step, f"cloud tesla t4: {ms_at(step, 1.5)} ms", target="b.py")
    assert as_measured(kind).log_sigma == sigmas[-1]


def anchor(*, factor: float, backward: float, log_sigma: float = PASS_LOG_SIGMA) -> HostAnchor:
    return HostAnchor(
        date="2026-11-29", said="T4: 1 ms", target="train.py", factor=factor, log_sigma=log_sigma,
        backward_fraction=backward,
    )  # fmt: skip


def test_steps_with_equal_halves_are_weighted_by_their_precision() -> None:
    kind = replace(find_kind("cloud"), factor=2.0, log_sigma=0.3)
    anchors = [
        anchor(factor=2.0 * math.e, backward=0.5, log_sigma=sigma) for sigma in (0.1, 0.2, 0.3)
    ]
    factor, log_sigma = combined(kind, anchors, 0.5)
    weights = [each**-2 for each in (0.3, 0.1, 0.2, 0.3)]
    assert log_sigma == pytest.approx(sum(weights) ** -0.5)
    assert math.log(factor) == pytest.approx(sum(weights[1:]) / sum(weights))


@given(
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    backward=st.floats(0.0, 1.0),
    log_factor=st.floats(-2.0, 2.0),
)
def test_a_step_shows_most_about_steps_with_a_similar_mix(
    shares: list[float], backward: float, log_factor: float
) -> None:
    kind = replace(find_kind("cloud"), factor=1.0, log_sigma=0.3)

    def sigma(*of: float) -> float:
        return combined(kind, [anchor(factor=1.5, backward=one) for one in of], backward)[1]

    # Each measured step narrows what is known.
    alone = 0.3 * math.sqrt(2 * (backward**2 + (1 - backward) ** 2))
    assert sigma(*shares, backward) <= sigma(*shares) + 1e-9 <= alone + 2e-9
    assert sigma(backward) <= sigma(1 - backward) + 1e-9
    one = anchor(factor=math.exp(log_factor), backward=shares[0])
    moved = math.log(combined(kind, [one], backward)[0])
    assert moved * log_factor >= 0


def test_the_backward_fraction_is_of_the_time_to_issue() -> None:
    x = tensor(8, 8, device="cuda:0")
    forward = op(inputs=(x, x), outputs=(x,))
    backward = replace(forward, phase=Phase.BACKWARD)
    shares = [
        backward_fraction(build_program(StepTrace(events=events)), here())
        for events in ((forward,) * 4, (forward, backward), (backward,) * 4, ())
    ]
    assert shares[0] == 0.0 < shares[1] < shares[2] == 1.0
    assert shares[3] == 0.5  # nothing is issued


def test_only_an_eager_step_in_a_measured_machine_has_the_smaller_error(folder: Path) -> None:
    eager, usual = small_step(), host_called("cloud", here())
    told(eager, f"T4: {ms_at(eager, 1.5)} ms")
    assert folder.exists()
    compiled = replace(eager, settings=replace(eager.settings, is_compiled=True))
    assert isinstance(usual, FeedingHost)

    def error(trace: StepTrace) -> float:
        found = in_measured_machines(usual, program=build_program(trace))
        assert isinstance(found, FeedingHost)
        return found.log_sigma

    assert PASS_LOG_SIGMA <= error(eager) < usual.log_sigma == error(compiled)


def test_a_gpu_may_be_in_a_machine_of_its_own() -> None:
    step, cloud = small_step(), host_called("cloud", here())
    speed = read_speed("colab T4: 1 ms")
    assert speed.kind is not None
    host = with_kinds(cloud, here(), {speed.device.id: speed.kind})
    assert predicted(step, host, "T4").fed_by == find_kind("sandbox").name
    assert predicted(step, host, "A100") == predicted(step, cloud, "A100")
    assert with_kinds(cloud, here(), {}) is cloud
    # Also if all others are fed by a CPU that was named.
    host = with_kinds(reference_host(), here(), {speed.device.id: speed.kind})
    assert predicted(step, host, "T4").fed_by == find_kind("sandbox").name
    assert predicted(step, host, "A100") == predicted(step, reference_host(), "A100")


@pytest.mark.parametrize("unit", ["s", "us"])
def test_a_slip_of_the_unit_is_refused_with_both_figures(unit: str) -> None:
    step = small_step()
    seen = f"T4: {ms_at(step, 1.0)} {unit}"
    with pytest.raises(UsageError, match=re.escape(f"--measured {seen!r}: that is ")) as error:
        told(step, seen)
    assert re.search(r" a step, and .* is predicted, more than 30 times", error.value.message)


def test_samples_and_epochs_are_counted_in_steps() -> None:
    step = small_step()
    seen_ms = ms_at(step, 1.5)
    hosts = [
        told(step, text)[0]
        for text in (
            f"T4: {seen_ms} ms",
            f"T4: {seen_ms / 10} s/epoch",
            f"T4: {32_000 / seen_ms} samples/s",
            f"T4: {1_000 / seen_ms} it/s",
        )
    ]
    steps_ns = [predicted(step, host, "T4").estimate.value_ns for host in hosts]
    assert steps_ns == pytest.approx([steps_ns[0]] * 4)


def test_an_epoch_without_a_number_of_steps_is_refused() -> None:
    host = host_called("cloud", here())
    speeds = {"T4: 45 s/epoch": read_speed("T4: 45 s/epoch")}
    with pytest.raises(UsageError, match="the steps per epoch are unknown") as error:
        anchors_of(speeds, build_program(small_step()), host, "train.py", {"epoch": None})
    assert "it/s" in str(error.value.hint)


@pytest.mark.parametrize("host", ["reference", "EPYC 7763", "Xeon CPU @ 2.20GHz"])
def test_a_gpu_that_a_named_cpu_feeds_tells_of_no_kind(host: str) -> None:
    with pytest.raises(UsageError, match="in no kind of machine here: name one"):
        told(small_step(), "T4: 340 it/s", host=host_called(host, here()))


def test_what_was_measured_is_kept_shown_and_forgotten(folder: Path) -> None:
    step, usual = small_step(), host_called("cloud", here())
    _, (caveat,) = told(step, f"T4: {ms_at(step, 1.5):.4g} ms")
    assert f"until you delete {folder / 'cloud.json'}" in caveat.message
    (kept,) = json.loads((folder / "cloud.json").read_bytes())
    assert kept.keys() == {
        "date", "said", "target", "factor", "log_sigma", "backward_fraction"
    }  # fmt: skip
    assert kept["factor"] == pytest.approx(1.5 * find_kind("cloud").factor, rel=0.05)
    again = predicted(step, in_measured_machines(usual, program=build_program(step)), "T4")
    assert again.estimate.value_ns > predicted(step, usual, "T4").estimate.value_ns
    assert re.fullmatch(
        r"cloud virtual machine, taking 1\.4× the usual time as measured by you "
        r"\(T4: [0-9.]+ ms, train\.py, \d{4}-\d\d-\d\d\)",
        again.fed_by,
    )
    # No other kind is changed.
    assert as_measured(find_kind("sandbox")) == find_kind("sandbox")
    (folder / "cloud.json").unlink()
    assert in_measured_machines(usual) == usual


@pytest.mark.parametrize("content", [b"", b"{}", b'[{"factor": -1}]', b"\xff\xfe[]"])
def test_a_damaged_file_is_told_and_changes_nothing(folder: Path, content: bytes) -> None:
    step, usual = small_step(), host_called("cloud", here())
    folder.mkdir(parents=True)
    (folder / "cloud.json").write_bytes(content)
    found = predicted(step, in_measured_machines(usual), "T4")
    assert found.estimate == predicted(step, usual, "T4").estimate
    assert f"cannot be read: delete {folder / 'cloud.json'}" in found.fed_by
    # What is measured later takes its place.
    host, _ = told(step, f"T4: {ms_at(step, 1.5)} ms")
    again = predicted(step, in_measured_machines(usual, program=build_program(step)), "T4")
    assert again == predicted(step, host, "T4")
    assert again.estimate.value_ns > found.estimate.value_ns


def test_a_folder_that_cannot_be_made_keeps_nothing_and_loses_nothing(folder: Path) -> None:
    folder.parent.write_text("a file")
    step, usual = small_step(), host_called("cloud", here())
    host, (caveat,) = told(step, f"T4: {ms_at(step, 1.5)} ms")
    assert "it is not kept" in caveat.message
    before, after = (predicted(step, each, "T4").estimate.value_ns for each in (usual, host))
    assert after > 1.1 * before


def test_two_speeds_of_one_gpu_are_refused() -> None:
    with pytest.raises(UsageError, match="T4: 340 it/s' is of the same GPU"):
        read_speeds(["T4: 340 it/s", "L4: 2 ms", "colab Tesla T4: 3 ms"])


def test_nothing_is_kept_of_a_command_that_is_refused(folder: Path) -> None:
    step = small_step()
    with pytest.raises(UsageError, match="times apart"):
        told(step, f"T4: {ms_at(step, 1.5)} ms", "A100: 2000 s")
    assert not list(folder.rglob("*.json"))

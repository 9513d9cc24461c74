from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from breakeven.capture import fake_gpus
from breakeven.capture.pretend.fake_cuda import fake_cuda
from breakeven.capture.record.recorder import StrictDeviceChecker
from breakeven.errors import UsageError
from breakeven.report import ClaimOutcome
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import Ratio
from breakeven.systems.device_rules import (
    CopyTimes,
    RuleOutcome,
    check_rules,
    copies_claim,
    copy_tables,
    rules_claim,
    time_copies,
)
from breakeven.timing import Estimate, Source

# Fake GPUs, several of them.


def test_devices_are_numbered_and_one_is_current() -> None:
    with fake_gpus(3):
        assert torch.cuda.device_count() == 3
        assert torch.ones(2).cuda().device == torch.device("cuda", 0)
        assert torch.ones(2, device="cuda:2").get_device() == 2
        with torch.cuda.device(1):
            assert torch.cuda.current_device() == 1
            assert torch.zeros(2, device="cuda").device == torch.device("cuda", 1)
        torch.cuda.set_device(2)
        assert torch.ones(2).to("cuda").device == torch.device("cuda", 2)
        assert torch.cuda.current_stream().device == torch.device("cuda", 2)
    assert torch.ones(2).device.type == "cpu"


@pytest.mark.parametrize("place", ["cuda:0", "cuda:1"])
def test_results_and_gradients_stay_on_their_device(place: str) -> None:
    with fake_gpus(2):
        layer = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(place)
        output = layer(torch.ones(5, 3, device=place))
        output[:, 0].square().sum().backward()
        places = {str(p.grad.device) for p in layer.parameters()} | {str(output.device)}
    assert places == {place}


@pytest.mark.parametrize(
    ("mix", "named"),
    [
        (lambda a, b, c: a + b, "cuda:0 and cuda:1"),
        (lambda a, b, c: torch.cat([b, a]), "cuda:1 and cuda:0"),
        (lambda a, b, c: c @ b, "cpu and cuda:1"),
        (lambda a, b, c: nn.functional.mse_loss(a, c), "cuda:0 and cpu"),
    ],
)
def test_mixing_raises_in_the_words_of_torch(mix, named: str) -> None:
    with (
        fake_gpus(2),
        pytest.raises(RuntimeError, match=f"at least two devices, {named}!"),
    ):
        mix(torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1"), torch.ones(2))


def test_copy_crosses_devices_and_keeps_the_place_of_the_target() -> None:
    with fake_gpus(2):
        first, second = torch.zeros(2, device="cuda:0"), torch.ones(2, device="cuda:1")
        assert first.copy_(second).device == torch.device("cuda", 0)
        assert torch.zeros(2).copy_(second).device.type == "cpu"
        assert first.tolist() == [1.0, 1.0]


def test_gradient_returns_to_the_device_that_it_came_from() -> None:
    with fake_gpus(2):
        x = torch.ones(3, device="cuda:1", requires_grad=True)
        x.to("cuda:0").sum().backward()
        assert str(x.grad.device) == "cuda:1"


def test_device_that_is_not_there_raises() -> None:
    with fake_gpus(2), pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(2).to("cuda:2")


def test_array_of_a_device_tensor_raises() -> None:
    with fake_gpus(2), pytest.raises(TypeError, match="cuda:1 device type tensor to numpy"):
        torch.ones(2, device="cuda:1").numpy()


def test_data_parallel_splits_gathers_and_trains_as_one() -> None:
    seen: list[tuple[int, int]] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            seen.append((batch.get_device(), len(batch)))
            return self.norm(self.layer(batch))

    torch.manual_seed(0)
    model, batch = Spy(), torch.randn(50, 4)
    model.eval()  # batch statistics of halves are not those of the whole
    alone = copy.deepcopy(model)
    expected = alone(batch)
    expected.square().sum().backward()
    seen.clear()
    with fake_gpus(2):
        output = nn.DataParallel(model.cuda())(batch.cuda())
        output.square().sum().backward()
        assert (len(output), str(output.device)) == (50, "cuda:0")
        assert {str(p.grad.device) for p in model.parameters()} == {"cuda:0"}
        model.train()
        nn.DataParallel(model)(batch.cuda())  # its first replica shares the statistics
    assert seen == [(0, 25), (1, 25)] * 2
    assert torch.allclose(output, expected, atol=1e-5)
    for own, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(own.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert model.norm.running_mean.abs().sum() > 0


def test_long_loop_keeps_nothing() -> None:
    recorder = StrictDeviceChecker(1)
    with fake_cuda(recorder, lambda: None):
        x = torch.ones(128, device="cuda", requires_grad=True)
        for _ in range(50):
            loss = (x * 2).cpu().cuda().sum()
            loss.backward()
            loss.item()
        del loss
        assert recorder.devices.device_bytes == 2 * 512  # x and its gradient
    assert recorder.events == []
    assert recorder.origins.stacks == []


def test_torch_is_as_before_also_after_an_exception() -> None:
    before = (torch.Tensor.to, torch.cuda.is_available, torch.cuda.Stream, torch.cuda.device)
    with pytest.raises(ZeroDivisionError), fake_gpus(2):
        _ = 1 / 0
    after = (torch.Tensor.to, torch.cuda.is_available, torch.cuda.Stream, torch.cuda.device)
    assert after == before


def test_no_gpu_cannot_be_fake() -> None:
    with pytest.raises(UsageError, match="0 GPUs"), fake_gpus(0):
        pass


# The system.


@pytest.fixture(scope="module")
def outcomes() -> tuple[RuleOutcome, ...]:
    return check_rules()


@pytest.fixture(scope="module")
def copies() -> tuple[CopyTimes, ...]:
    with Bench() as bench:
        return time_copies(bench)


def test_every_rule_holds(outcomes: tuple[RuleOutcome, ...]) -> None:
    assert [outcome.rule for outcome in outcomes if not outcome.holds] == []
    assert rules_claim(outcomes).outcome is ClaimOutcome.AGREES
    codes = " ".join(outcome.code for outcome in outcomes)
    for word in (".cuda()", ".cpu()", ".to(", "copy_", "numpy", "default_dtype", "[25, 25]"):
        assert word in codes


def test_broken_rule_disagrees_and_is_named(outcomes: tuple[RuleOutcome, ...]) -> None:
    broken = RuleOutcome(rule="two is three", code="2 == 3", holds=False, found="False")
    claim = rules_claim((*outcomes, broken))
    assert claim.outcome is ClaimOutcome.DISAGREES
    assert "two is three" in claim.because
    assert rules_claim(()).outcome is ClaimOutcome.DISAGREES


def test_copies_grow_with_their_size_and_are_fastest_inside(copies: tuple[CopyTimes, ...]) -> None:
    by_device: dict[str, list[CopyTimes]] = {}
    for found in copies:
        by_device.setdefault(found.device, []).append(found)
    assert len(by_device) == 3
    for times in by_device.values():
        assert [t.num_bytes for t in times] == sorted(t.num_bytes for t in times)
        inside_ns = [t.ways[3].value_ns for t in times]
        assert inside_ns == sorted(inside_ns)
        largest = times[-1]
        from_pageable, from_pinned, _, inside = largest.ways
        assert inside.value_ns < from_pinned.value_ns
        assert from_pinned.value_ns < from_pageable.value_ns
    assert copies_claim(copies).outcome is ClaimOutcome.AGREES


def test_copies_claim_is_open_or_fails_by_its_interval() -> None:
    def time(value_ns: float, factor: float) -> Estimate:
        return Estimate(
            value_ns=value_ns, low_ns=value_ns / factor, high_ns=value_ns * factor,
            source=Source.PREDICTED,
        )  # fmt: skip

    def claim(ratio: float, factor: float) -> ClaimOutcome:
        slow, fast = time(ratio * 1e6, factor), time(1e6, 1.0)
        found = CopyTimes(device="T4", num_bytes=1_000_000_000, ways=(slow, slow, slow, fast))
        assert isinstance(found.pinned_ratio, Ratio)
        return copies_claim((found,)).outcome

    assert claim(20.0, 1.1) is ClaimOutcome.AGREES
    assert claim(6.0, 2.0) is ClaimOutcome.OPEN
    assert claim(2.0, 1.1) is ClaimOutcome.DISAGREES


def test_tables_have_a_cell_for_every_column(copies: tuple[CopyTimes, ...]) -> None:
    tables = copy_tables(copies)
    assert len(tables) == 3
    for table in tables:
        assert {len(row.cells) for row in table.rows} == {len(table.columns)}

"""A step of a table on a device that is here, and the switches of torch meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from breakeven.trace import NumberFormat, StepCase, TimedPhase
from breakeven.workloads import products_in_tf32, step_on_device
from breakeven.workloads.case_traces import fill
from breakeven.workloads.timed_step import BuiltStep

CPU = torch.device("cpu")


def switches() -> tuple[bool, bool, bool]:
    backends = torch.backends
    return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, backends.cudnn.benchmark


@pytest.mark.parametrize("is_allowed", [True, False])
def test_tf32_is_as_asked_inside_and_as_before_afterwards(is_allowed: bool) -> None:
    before = switches()
    seen: list[tuple[bool, bool, bool]] = []

    def fail() -> None:
        seen.append(switches())
        raise KeyError

    with pytest.raises(KeyError), products_in_tf32(is_allowed=is_allowed):
        fail()
    assert seen == [(is_allowed, is_allowed, True)]
    assert switches() == before


def test_miopen_searches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with products_in_tf32(is_allowed=False):
        assert switches() == (False, False, False)


def test_a_step_updates_the_model_under_the_switches_of_its_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bool, bool, bool]] = []
    updates: list[torch.Tensor] = []

    def step(self: torch.optim.SGD) -> None:
        seen.append(switches())
        (group,) = self.param_groups
        updates.append(group["params"][0].grad.clone())

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    case = StepCase(
        workload="breakeven:mlp?width=8&input=4",
        phase=TimedPhase.TRAIN,
        number_format=NumberFormat.TF32,
        optimizer="sgd",
    )
    call = step_on_device(case, 4, CPU)
    before = switches()
    call()
    call()
    assert seen == [(True, True, True)] * 2
    assert updates[0].abs().sum() > 0
    assert switches() == before


def test_tokens_are_ones_that_every_embedding_has() -> None:
    model = nn.ModuleList([nn.Embedding(50, 2), nn.Embedding(7, 2)])
    tokens, images = torch.zeros(200, dtype=torch.int64), torch.zeros(200)
    fill(BuiltStep(model=model, inputs=(tokens, images), targets=(), forward=int, loss=torch.sum))
    assert set(tokens.tolist()) == set(range(7))
    assert images.unique().numel() == 200

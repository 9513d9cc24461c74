"""Random small models: generated gradients are those of eager torch, or the step is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from generated_call import GeneratedCall
from random_models import Case, gradients, make_case
from torch import Tensor, nn

from faststep.codegen.program import UnsupportedError

NUM_SEEDS, NUM_USUAL, NUM_TOGETHER = 300, 40, 20
LEAST_COVERED = 0.9
# Models of even batches that look at each sample alone.
DIVIDED = (13, 17, 41)


def as_double(case: Case) -> Case:
    """Return the same model, batch and loss in float64."""
    copied = copy.deepcopy(case)
    copied.model.double()
    if isinstance(copied.loss_fn, nn.Module):
        copied.loss_fn.double()
    copied.inputs, copied.targets = (
        one.double() if one.is_floating_point() else one for one in (copied.inputs, copied.targets)
    )
    return copied


def generate(case: Case, *, divides: bool) -> tuple[GeneratedCall, list[Tensor]]:
    """Return code for the loss and the gradients, and the arguments it takes."""
    model = case.model
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = list(state)
    trained = [name for name, one in state.items() if one.requires_grad]
    weights = dict(case.loss_fn.named_buffers()) if isinstance(case.loss_fn, nn.Module) else {}

    def function(*tensors: Tensor) -> list[Tensor]:
        given = dict(zip(names, tensors, strict=False))
        params = {name: given[name].detach().requires_grad_() for name in trained}
        inputs, targets = tensors[len(names) : len(names) + 2]
        out = torch.func.functional_call(model, {**given, **params}, (inputs,))
        if weights:
            others = dict(zip(weights, tensors[len(names) + 2 :], strict=True))
            assert isinstance(case.loss_fn, nn.Module)
            loss = torch.func.functional_call(case.loss_fn, others, (out, targets))
        else:
            loss = case.loss_fn(out, targets)
        found = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        return [loss.detach(), *(one for one in found if one is not None)]

    arguments = [
        *(one.detach().clone() for one in state.values()),
        case.inputs,
        case.targets,
        *weights.values(),
    ]
    batch = (len(names), len(names) + 1) if divides else ()
    return GeneratedCall(function, arguments, batch=batch), arguments


def check(seed: int, *, divides: bool = False) -> str | None:
    """Compare one model; return why it is not generated, or not divided if it is to be."""
    case = make_case(seed)
    refused = None
    try:
        generated, arguments = generate(case, divides=divides)
    except UnsupportedError as error:
        refused = error.message
    if refused is not None:
        assert "aten." in refused or "prims." in refused, refused
        return refused
    if divides and not generated.is_divided:
        return "not divided"
    exact_case = as_double(case)
    exact = gradients(exact_case)
    stock = gradients(case)
    found = generated(*arguments)
    epsilon = 1e-6 if case.dtype == torch.float32 else 1e-12
    assert len(exact) == len(found)
    # Gradients that cancel out are what is left of larger numbers.
    scale = max(0.1, *(float(one.norm()) for one in exact[1:]))
    for number, (wanted, usual, got) in enumerate(zip(exact, stock, found, strict=True)):
        size = wanted.abs() if number == 0 else scale
        allowed = 4 * (usual.double() - wanted).norm() + epsilon * size
        error = (got.double() - wanted).norm()
        assert got.dtype == case.dtype
        # Where the model's own numbers are not finite, so are the generated ones.
        if not wanted.isfinite().all():
            assert torch.equal(usual.isfinite(), got.isfinite()), f"seed {seed}\n{case}"
            continue
        assert error <= allowed, f"seed {seed}, result {number}: {error} > {allowed}\n{case}"
    buffers = arguments[len(list(case.model.parameters())) :]
    for kept, now in zip(case.model.buffers(), buffers, strict=False):
        torch.testing.assert_close(now, kept, msg=lambda text: f"seed {seed}: {text}\n{case}")
    return None


def check_all(seeds: range) -> None:
    refused = {seed: reason for seed in seeds if (reason := check(seed)) is not None}
    share = 1 - len(refused) / len(seeds)
    print(f"{share:.1%} of {len(seeds)} models are covered; {refused}")
    assert share >= LEAST_COVERED, refused


def test_random_models() -> None:
    check_all(range(NUM_USUAL))


@pytest.mark.full
@pytest.mark.parametrize("start", range(NUM_USUAL, NUM_SEEDS, NUM_TOGETHER))
def test_more_random_models(start: int) -> None:
    check_all(range(start, start + NUM_TOGETHER))


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide all steps that can be, however small they are."""
    monkeypatch.setattr(
        "faststep.codegen.dividing.choose_sample_parts",
        lambda half, count, lanes: 4 if count % 4 == 0 else 2,
    )


@pytest.mark.full
@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("start", range(0, NUM_SEEDS, NUM_TOGETHER))
def test_random_models_by_parts_of_their_samples(start: int) -> None:
    seeds = range(start, start + NUM_TOGETHER)
    reasons = {seed: check(seed, divides=True) for seed in seeds}
    print(f"{sum(one is None for one in reasons.values())} of {len(seeds)} are divided; {reasons}")


@pytest.mark.usefixtures("divided")
def test_random_models_that_can_be_divided() -> None:
    assert {seed: check(seed, divides=True) for seed in DIVIDED} == dict.fromkeys(DIVIDED)

"""Generated steps: when they are taken, what they refuse, and that nothing of theirs is stale."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from factories.traced_steps import run_as_traced
from faststep import FastStepError, fast_step
from faststep.codegen import toolchain
from faststep.codegen.program import UnsupportedError
from faststep.codegen.toolchain import CompilerError


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what Inductor would get as it is traced: compiling takes seconds."""
    run_as_traced(monkeypatch)


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def make_batch(size: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3), torch.randn(size, 2)


def make_step(model: nn.Module, loss_fn: Any = None, **options: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return fast_step(model, loss_fn or nn.MSELoss(), optimizer, **options)


class Sorted(nn.Module):
    """What no code is generated for."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x, dim=1).values


def test_a_step_is_generated_unless_told_otherwise() -> None:
    step = make_step(make_mlp())
    assert step.engine is None
    for _ in range(3):
        step(*make_batch())
    assert (step.engine, step.not_generated) == ("generated C", None)
    assert step.cost is not None
    assert step.cost.compile_ns > 0


@pytest.mark.slow
def test_a_step_by_parts_of_its_samples_trains_as_the_loop_does() -> None:
    def create() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(8, 64),
            nn.Tanh(),
            nn.Dropout(0.1),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 2),
        )

    torch.manual_seed(0)
    x, y = torch.randn(256, 8), torch.randn(256).gt(0).long()
    indices = torch.arange(256).view(2, 128)
    model, stock = create(), create()
    step = make_step(model, nn.CrossEntropyLoss(), max_grad_norm=0.5)
    optimizer = torch.optim.Adam(stock.parameters(), lr=0.01)
    torch.manual_seed(2)
    found = [step(x[:128], y[:128]) for _ in range(4)] + list(step.run(x, y, indices))
    generated = step._steps.latest
    assert "samples_part" in generated._generated.source
    torch.manual_seed(2)
    for number, loss in enumerate(found):
        chosen = slice(128, 256) if number == 5 else slice(0, 128)
        optimizer.zero_grad()
        wanted = nn.functional.cross_entropy(stock(x[chosen]), y[chosen])
        wanted.backward()
        nn.utils.clip_grad_norm_(stock.parameters(), 0.5)
        optimizer.step()
        torch.testing.assert_close(loss, wanted.detach())
    for one, other in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("traced")
def test_what_is_not_covered_is_left_to_inductor_with_the_reason() -> None:
    step = make_step(nn.Sequential(nn.Linear(3, 2), Sorted()))
    for _ in range(3):
        step(*make_batch())
    assert step.engine == "Inductor"
    assert "aten.sort" in step.not_generated


def test_what_is_not_covered_is_an_error_where_generated_code_was_asked_for() -> None:
    step = make_step(nn.Sequential(nn.Linear(3, 2), Sorted()), engine="generated")
    step(*make_batch())
    with pytest.raises(UnsupportedError, match=r"aten\.sort"):
        step(*make_batch())


def test_an_unknown_engine_and_one_for_another_device_are_refused() -> None:
    with pytest.raises(FastStepError, match="fastest"):
        make_step(make_mlp(), engine="fastest")
    step = make_step(make_mlp(), engine="generated", autocast=torch.bfloat16)
    step(*make_batch())
    with pytest.raises(FastStepError, match="autocast"):
        step(*make_batch())


@pytest.mark.usefixtures("traced")
def test_without_a_c_compiler_inductor_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    step = make_step(make_mlp())
    for _ in range(3):
        step(*make_batch())
    assert step.engine == "Inductor"
    assert "no-such-compiler" in step.not_generated


@pytest.mark.usefixtures("traced")
def test_a_generated_step_that_computes_something_else_is_never_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gate finds it, and the model is trained as the stock step would have."""
    load = toolchain.load
    wrong = "f32_tanh(t0) * 1.01f"
    monkeypatch.setattr(
        "faststep.codegen.generated.load",
        lambda source: load(source.replace("f32_tanh(t0)", wrong)),
    )
    model = make_mlp()
    other = copy.deepcopy(model)
    step = make_step(model)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    for _ in range(4):
        x, y = make_batch()
        step(x, y)
        optimizer.zero_grad()
        nn.MSELoss()(other(x), y).backward()
        optimizer.step()
    assert step.engine == "Inductor"
    assert "something else than the stock step" in step.not_generated
    torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_several_steps_take_indices_from_the_end_and_refuse_others() -> None:
    model = make_mlp()
    other = copy.deepcopy(model)
    step = make_step(model, steps_per_call=3, engine="generated")
    twin = make_step(other, engine="generated")
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    indices = torch.randint(-20, 20, (9, 4), dtype=torch.int32)
    losses = step.run(x, y, indices)
    wanted = [twin(x[row], y[row]) for row in indices]
    torch.testing.assert_close(losses, torch.stack(wanted))
    torch.testing.assert_close(model.state_dict(), other.state_dict())
    for wrong in (20, -21):
        with pytest.raises(IndexError, match="outside of 20 samples"):
            step.run(x, y, torch.full((3, 4), wrong))
    with pytest.raises(FastStepError, match=r"indices are torch\.bool"):
        step.run(x, y, indices > 0)


def test_a_loss_of_one_element_keeps_its_shape_and_counts_in_double_are_kept() -> None:
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = make_mlp()
        step = make_step(model, lambda out, y: (out - y).square().mean().reshape(1))
        for _ in range(5):
            loss = step(*make_batch())
    finally:
        torch.set_default_dtype(was)
    assert step.engine == "generated C"
    assert loss.shape == (1,)
    optimizer = step._optimizer
    assert {float(one["step"]) for one in optimizer.state.values()} == {5.0}


def test_a_compiler_that_fails_says_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CompilerError, match="error"):
        toolchain.load("int step(void) { return missing_name; }")
    # Nothing is left of it.
    assert not list((tmp_path / "faststep" / "generated").iterdir())


def test_on_windows_steps_are_left_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.getuid")
    with pytest.raises(CompilerError, match="Linux and macOS"):
        toolchain.load("int answer(void) { return 44; }")


def test_a_binary_is_made_once_and_kept_with_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = "int answer(void) { return 42; }"
    assert toolchain.load(source).answer() == 42
    folder = tmp_path / "faststep" / "generated"
    kept = sorted(path.name for path in folder.iterdir())
    assert [name.rpartition(".")[2] for name in kept] == ["c", "so"]
    monkeypatch.setattr(toolchain, "_compile", lambda *_: pytest.fail("compiled again"))
    assert toolchain.load(source).answer() == 42


def test_nothing_is_run_from_a_folder_that_others_can_write_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "faststep" / "generated"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert toolchain.load("int answer(void) { return 43; }").answer() == 43
    assert not list(folder.iterdir())


def test_epochs_of_a_data_set_are_those_of_the_loop() -> None:
    model = make_mlp()
    other = copy.deepcopy(model)
    step = make_step(model, steps_per_call=4, engine="generated")
    x, y = torch.randn(23, 3), torch.randn(23, 2)
    epochs = [torch.randperm(23)[:20].view(5, 4) for _ in range(5)]
    losses = torch.cat([step.run(x, y, rows) for rows in epochs])
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    wanted = []
    for rows in torch.cat(epochs):
        optimizer.zero_grad()
        loss = nn.MSELoss()(other(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        wanted.append(loss.detach())
    torch.testing.assert_close(losses, torch.stack(wanted))
    torch.testing.assert_close(model.state_dict(), other.state_dict())
    # Batches by fours or alone are one piece of code.
    assert len({id(one) for one in step._steps._steps.values()}) == 1

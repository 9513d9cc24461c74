"""The whole step, compiled for real: right numbers, faster than the loop, nothing left changed."""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from factories.sampled import sampled
from faststep import fast_step
from faststep.engines import Engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def make_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)
    )


@pytest.mark.timing
@pytest.mark.parametrize(
    ("engine", "steps_per_call", "times"),
    sampled([("generated", 12, 8), ("inductor", 4, 2)], "generated"),
)
def test_is_faster_than_the_loop_and_computes_the_same(
    engine: Engine, steps_per_call: int, times: int
) -> None:
    import torch._inductor.config as inductor_config

    torch.manual_seed(0)
    model = make_mlp()
    other = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    other_optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    step = fast_step(model, loss_fn, optimizer, steps_per_call=steps_per_call, engine=engine)
    x_data, y_data = torch.randn(256, 4), torch.randn(256, 4)
    x, y = x_data[:32], y_data[:32]
    indices = torch.randint(0, 256, (12, 32))

    def loop_step() -> None:
        other_optimizer.zero_grad()
        loss_fn(other(x), y).backward()
        other_optimizer.step()

    settings = (inductor_config.cpp_wrapper, inductor_config.cpp.threads)
    others = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state().tolist())
    for _ in range(4):
        step(x, y)
        loop_step()
    step.run(x_data, y_data, indices)
    for row in indices:
        other_optimizer.zero_grad()
        loss_fn(other(x_data[row]), y_data[row]).backward()
        other_optimizer.step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert step.num_compiled == 2
    assert (inductor_config.cpp_wrapper, inductor_config.cpp.threads) == settings
    assert others == (
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
    )

    many = indices.repeat(4, 1)
    ways: dict[str, Callable[[], object]] = {
        "loop": lambda: [loop_step() for _ in range(48)],
        "one": lambda: [step(x, y) for _ in range(48)],
        "several": lambda: step.run(x_data, y_data, many),
    }
    samples: dict[str, list[int]] = {name: [] for name in ways}
    for _ in range(9):
        for name, run in ways.items():
            start_ns = time.process_time_ns()
            run()
            samples[name].append(time.process_time_ns() - start_ns)
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    assert medians["several"] < medians["one"] < medians["loop"] / times
    cost = step.cost
    assert cost is not None
    assert cost.steps_per_call == steps_per_call
    assert cost.pays_off_after_steps is not None


@pytest.mark.full
def test_dropout_and_normalisation_compile() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(4 * 36, 3),
    )  # fmt: skip
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    step = fast_step(model, nn.CrossEntropyLoss(), optimizer)
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,))
    torch.manual_seed(1)
    ours = [step(x, y).item() for _ in range(4)]
    torch.manual_seed(1)
    theirs: list[float] = []
    for _ in range(4):
        other_optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(other(x), y)
        loss.backward()
        other_optimizer.step()
        theirs.append(loss.item())
    assert ours == pytest.approx(theirs, rel=1e-4)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def test_without_a_compiler_it_says_so_and_trains_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, faststep as w\n"
        "model = torch.nn.Linear(3, 2)\n"
        "step = w.fast_step(model, torch.nn.MSELoss(), torch.optim.Adam(model.parameters()), "
        "engine='inductor')\n"
        "x, y = torch.ones(4, 3), torch.ones(4, 2)\n"
        "step(x, y)\n"
        "before = model.weight.clone()\n"
        "try:\n"
        "    step(x, y)\n"
        "except w.FastStepError as error:\n"
        "    print(error.message, '|', error.hint, '|', torch.equal(before, model.weight))\n"
    )
    environment = {**os.environ, "CXX": "/nowhere/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert "C++ compiler" in done.stdout
    assert "Install one" in done.stdout
    assert done.stdout.strip().endswith("True")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_on_a_gpu(mode: str) -> None:
    model = make_mlp().cuda()
    other = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    other_optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    step = fast_step(model, nn.MSELoss(), optimizer, mode=mode)  # type: ignore[arg-type]
    x, y = torch.randn(32, 4, device="cuda"), torch.randn(32, 4, device="cuda")
    for _ in range(8):
        step(x, y)
        other_optimizer.zero_grad()
        nn.MSELoss()(other(x), y).backward()
        other_optimizer.step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-5)

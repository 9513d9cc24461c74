"""The benchmark's networks under JAX: the same networks, and failures that say what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from breakeven.errors import BreakevenError
from breakeven.systems import script_path
from breakeven.systems import shi2016_runs as jax_runs
from breakeven.systems.shi2016_runs import JAX_NETWORKS, JaxTimes, jax_label, measure_jax
from factories.sampled import sampled

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="needs jax: pip install jax"
)
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen on this system"
)

TORCH = runpy.run_path(str(script_path("shi2016.py")))
JAX = runpy.run_path(str(script_path("shi2016_jax.py")))


def script_that(folder: Path, code: str) -> Path:
    script = folder / "script.py"
    script.write_text(code)
    return script


def use_script(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    monkeypatch.setattr(jax_runs, "script_path", lambda name: script)


def test_times_are_read_from_the_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"version": "9.9", "first_ns": 5_000, "steps_ns": [100, 120, 110]}
    use_script(
        monkeypatch, script_that(tmp_path, f"print('1  loss 2.3')\nprint({json.dumps(times)!r})")
    )
    run = measure_jax("FCN-R", num_threads=0)
    assert run == JaxTimes(version="9.9", first_ns=5_000, steps_ns=(100, 120, 110))
    assert run.estimate.value_ns == 110
    assert run.estimate.low_ns < 100
    assert run.estimate.high_ns > 120


def test_the_script_is_told_the_network_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script(monkeypatch, script_that(tmp_path, "import sys; sys.exit(' '.join(sys.argv[1:]))"))
    with pytest.raises(BreakevenError, match=r"failed: --network LSTM --json --threads 2$"):
        measure_jax("LSTM", num_threads=2)
    with pytest.raises(BreakevenError, match=r"failed: --network LSTM --json$"):
        measure_jax("LSTM", num_threads=0)


def test_a_failure_says_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_script(monkeypatch, script_that(tmp_path, "raise RuntimeError('no memory left')"))
    with pytest.raises(BreakevenError, match="FCN-R under JAX failed: RuntimeError: no memory"):
        measure_jax("FCN-R", num_threads=0)


def test_a_silent_failure_says_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script(monkeypatch, script_that(tmp_path, "import os; os._exit(7)"))
    with pytest.raises(BreakevenError, match="exit code 7"):
        measure_jax("FCN-R", num_threads=0)


def test_an_endless_run_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_script(monkeypatch, script_that(tmp_path, "import time; time.sleep(60)"))
    monkeypatch.setattr(jax_runs, "_TIME_LIMIT_S", 0.5)
    with pytest.raises(BreakevenError, match="took longer than 500 ms"):
        measure_jax("FCN-R", num_threads=0)


def test_a_script_that_ends_without_times_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script(monkeypatch, script_that(tmp_path, "print('bye')"))
    with pytest.raises(BreakevenError, match="FCN-R under JAX gave no times"):
        measure_jax("FCN-R", num_threads=0)


def test_without_jax_there_is_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert jax_label() is None


@needs_affinity
def test_the_script_refuses_more_threads_than_processors() -> None:
    command = [sys.executable, str(script_path("shi2016_jax.py")), "--threads", "100000"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "--threads 100000: there are" in run.stderr


@needs_affinity
def test_threads_are_limited_before_jax_looks(tmp_path: Path) -> None:
    # The first processor that it may use, and no other.
    first = min(os.sched_getaffinity(0))
    (tmp_path / "jax.py").write_text("import os; raise SystemExit(str(os.sched_getaffinity(0)))")
    command = [sys.executable, str(script_path("shi2016_jax.py")), "--threads", "1"]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert run.stderr.strip() == str({first})


def torch_model_of(name: str, params: Any) -> torch.nn.Module:
    """Return PyTorch's network with the parameters of JAX's."""
    model = TORCH["NETWORKS"][name].create()
    if name == "LSTM":
        embedding, layers, output = params
        values: list[Any] = [embedding]
        for weight, bias in layers:
            values += [weight[:256].T, weight[256:].T, bias, 0 * bias]
        values += [output[0].T, output[1]]
    elif name == "AlexNet-R":
        convolutions, (weight, bias) = params
        values = [value for layer in convolutions for value in (layer[0], layer[1].reshape(-1))]
        values += [weight.T, bias]
    else:
        values = [value for weight, bias in params for value in (weight.T, bias)]
    parameters = list(model.parameters())
    assert len(parameters) == len(values)
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(torch.from_numpy(np.array(value)).reshape(parameter.shape))
    return model


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["FCN-R", "AlexNet-R", "LSTM"], "AlexNet-R"))
def test_jax_computes_what_pytorch_does(name: str) -> None:
    import jax

    (create, loss), default_size, shape, num_classes, momentum = JAX["create_networks"]()[name]
    network = TORCH["NETWORKS"][name]
    assert (default_size, shape, num_classes, momentum) == (
        network.batch_size, network.sample_shape, network.num_classes, network.momentum,
    )  # fmt: skip
    batch = JAX["create_batch"](4, shape, num_classes)
    params = create(jax.random.key(0))
    model = torch_model_of(name, params)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    velocities = jax.tree.map(lambda p: 0 * p, params) if momentum else ()
    step = JAX["create_step"](loss, momentum)
    inputs, targets = (torch.from_numpy(array.copy()) for array in batch)
    for _ in range(3):
        params, velocities, jax_loss = step(params, velocities, *batch)
        torch_loss = torch.nn.functional.cross_entropy(model(inputs), targets.long())
        optimizer.zero_grad()
        torch_loss.backward()
        optimizer.step()
        assert float(jax_loss) == pytest.approx(torch_loss.item(), rel=1e-4)


@needs_jax
def test_every_network_of_ours_is_one_of_the_script() -> None:
    assert tuple(JAX["create_networks"]()) == JAX_NETWORKS

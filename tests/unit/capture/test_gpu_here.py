"""GPUs of other vendors, of which there is none here: what torch says of them is made up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from breakeven.capture import PlainRun
from breakeven.capture.gpus import (
    gpu_here,
    gpu_name,
    gpu_peak_bytes,
    gpu_with_most,
)
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.device_map import is_cuda
from breakeven.capture.sessions.in_process import _request
from breakeven.capture.sessions.plain import PlainSession
from breakeven.measure import GpuClock


def _tell(told: str | int, index: int | None = None) -> str | int:
    """Return what torch says of a GPU, another than the current one being twice as much."""
    return told * 2 if index else told


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that says which GPUs are there, and returns whose turn it was to wait."""

    def let(*kinds: str) -> list[str]:
        waits: list[str] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in kinds)
        monkeypatch.setattr(torch.xpu, "is_available", lambda: "xpu" in kinds)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)
        for kind in kinds:
            backend = torch.get_device_module(kind)
            monkeypatch.setattr(backend, "synchronize", lambda _kind=kind: waits.append(_kind))
            for name, told in (
                ("get_device_name", f"Made-up {kind}"),
                ("max_memory_allocated", 2 << 20),
                ("current_allocated_memory", 1 << 20),
            ):
                monkeypatch.setattr(backend, name, partial(_tell, told), raising=False)
        return waits

    return let


@pytest.mark.parametrize(
    ("kinds", "found"),
    [((), ""), (("mps",), "mps"), (("mps", "xpu"), "xpu"), (("xpu", "cuda"), "cuda")],
)
def test_one_gpu_is_taken(
    kinds: tuple[str, ...], found: str, there: Callable[..., list[str]]
) -> None:
    there(*kinds)
    assert gpu_here() == found


def test_a_gpu_has_the_name_and_the_memory_that_torch_tells(
    there: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    there("cuda", "xpu", "mps")
    monkeypatch.setattr("breakeven.capture.gpus.cpu_name", lambda: "Apple M2")
    monkeypatch.setattr(torch.version, "hip", None)
    gpus = [torch.device(kind) for kind in ("cuda", "xpu", "mps")]
    assert [gpu_name(gpu) for gpu in gpus] == ["Made-up cuda", "Made-up xpu", "Apple M2 GPU"]
    assert [gpu_peak_bytes(gpu) for gpu in gpus] == [2 << 20, 2 << 20, 1 << 20]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert gpu_name(gpus[0]) == "Made-up cuda (ROCm)"


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_gpu_that_most_numbers_lie_on_is_told_of(
    kind: str, there: Callable[..., list[str]]
) -> None:
    there(kind)

    def lying(where: str, numel: int) -> Any:
        return SimpleNamespace(device=torch.device(where), numel=lambda: numel)

    few, many, rest = lying(f"{kind}:0", 3), lying(f"{kind}:1", 4), lying("cpu", 9)
    second = gpu_with_most(kind, [few, many, rest])
    assert second == torch.device(kind, 1)
    assert gpu_name(second) == f"Made-up {kind}" * 2
    assert gpu_peak_bytes(second) == 4 << 20
    assert gpu_with_most(kind, [rest]) is None


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_the_clock_waits_for_its_gpu_alone(kind: str, there: Callable[..., list[str]]) -> None:
    waits = there("cuda", "xpu", "mps")
    GpuClock(kind).synchronize()
    assert waits == [kind]


def train_on_gpu() -> PlainRun | None:
    """Train a model of the CPU for some steps, and return what a session for the GPU tells."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight])
    request = replace(_request("made up", 0.01), on_gpu=True)
    with PlainSession(request, lambda: None) as session:
        for _ in range(60):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        return session.result()


@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_steps_on_a_gpu_wait_for_it_at_their_ends(
    kind: str, there: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = there(kind)
    # Tensors there can be no more than said to be there.
    gpu = torch.device(kind, 1)
    monkeypatch.setattr("breakeven.capture.sessions.trained.gpu_with_most", lambda *_: gpu)
    run = train_on_gpu()
    assert run is not None
    # Another one than the current device.
    assert run.processor == gpu_name(gpu)
    assert run.peak_memory_bytes == gpu_peak_bytes(gpu)
    assert run.phases is None  # the host goes on before the device is done
    # One wait ends each sample.
    assert len(waits) >= len(run.measurement.samples_ns) > 0
    assert set(waits) == {kind}


def test_a_script_that_leaves_the_gpu_is_not_measured_on_it(there: Callable[..., None]) -> None:
    there("mps")
    assert train_on_gpu() is None


def test_gpus_are_hidden_where_the_cpu_is_measured(there: Callable[..., list[str]]) -> None:
    there("xpu", "mps")
    for keeps_compile in (False, True):
        with redirect_cuda_to_cpu(keeps_compile=keeps_compile):
            assert gpu_here() == ""
            assert torch.xpu.device_count() == 0
        assert gpu_here() == "xpu"


@pytest.mark.parametrize("name", ["mps", "mps:0", "xpu", torch.device("xpu", 0)])
def test_a_script_that_names_such_a_gpu_runs_on_the_cpu(name: Any) -> None:
    assert is_cuda(name)
    with redirect_cuda_to_cpu():
        made = torch.ones(2, device=name)
        model = torch.nn.Linear(2, 1).to(name)
        assert model(made).device.type == made.to(name).device.type == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(("device", "found"), [("cpu", ""), ("gpu", "mps")])
def test_a_run_for_the_cpu_finds_no_gpu(device: str, found: str) -> None:
    # In a process of its own, as what is put around a script stays until the process ends.
    text = f"""
import torch
torch.backends.mps.is_available = lambda: True
from breakeven.capture.process.run_to_end import EndRequest
from breakeven.capture.gpus import gpu_here
from breakeven.capture.process.run_to_end import _RunToEnd
from breakeven.trace import Configuration
request = EndRequest(is_module=False, device={device!r}, has_cuda=False,
                     configuration=Configuration(), num_steps=0, is_quiet=True)
_RunToEnd(request)._configure(torch)
print(gpu_here())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == f"{found}\n"

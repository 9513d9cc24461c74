"""Every question that a script may ask of ``torch.cuda`` has an answer."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch

from breakeven.capture.pretend.cuda_api import _answering
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from factories.fake_steps import pretending

# Graphs are captured, jiterator compiles, and `check_error` is about a number that one has.
LEFT_OUT = ("graphs", "_", "jiterator")
IS_BUILT_FOR_CUDA = torch.version.cuda is not None


def modules() -> list[Any]:
    names = [
        f"torch.cuda.{info.name}"
        for info in pkgutil.iter_modules(torch.cuda.__path__)
        if not info.name.startswith(LEFT_OUT)
    ]
    return [importlib.import_module(name) for name in ("torch.cuda", "torch.accelerator", *names)]


def questions() -> list[tuple[Any, str]]:
    """Return the public functions of torch.cuda that need no argument."""
    found = []
    for module in modules():
        for name, value in sorted(vars(module).items()):
            is_own = inspect.isfunction(value) and value.__module__.startswith(
                ("torch.cuda", "torch.accelerator")
            )
            if name.startswith("_") or not is_own or "graph" in value.__module__ + name:
                continue
            parameters = inspect.signature(value).parameters.values()
            if all(
                one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
                for one in parameters
            ):
                found.append((module, name))
    return found


QUESTIONS = questions()


def test_there_are_many() -> None:
    names = {name for _, name in QUESTIONS}
    assert len(names) > 60
    assert {"memory_stats", "mem_get_info", "temperature", "current_blas_handle"} <= names


@pytest.mark.parametrize(
    ("module", "name"), QUESTIONS, ids=[f"{one.__name__}.{name}" for one, name in QUESTIONS]
)
@pytest.mark.parametrize("is_fake", [False, True], ids=["redirect", "pretend"])
@pytest.mark.filterwarnings("ignore")
def test_question_has_an_answer(module: Any, name: str, is_fake: bool) -> None:
    with pretending() if is_fake else redirect_cuda_to_cpu(has_cuda=True):
        getattr(module, name)()


@pytest.mark.parametrize("is_fake", [False, True], ids=["redirect", "pretend"])
def test_answers_are_what_a_gpu_would_give(is_fake: bool) -> None:
    with pretending() if is_fake else redirect_cuda_to_cpu(has_cuda=True):
        assert torch.cuda.memory.memory_allocated("cuda:0") == 0
        assert torch.cuda.mem_get_info(0)[1] == torch.cuda.get_device_properties(0).total_memory
        assert torch.cuda.get_device_properties("cuda").multi_processor_count == 108
        assert torch.cuda.get_allocator_backend() == "native"
        assert torch.version.cuda is not None
        assert int(torch.version.cuda.split(".")[0]) >= 12
        assert torch.backends.cudnn.version() >= 9_000
        assert torch.backends.cuda.is_built()
        assert torch.cuda.streams.Stream is torch.cuda.Stream
        assert torch.cuda.memory.mem_get_info is torch.cuda.mem_get_info
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(1_000)
        end.record()
        assert start.elapsed_time(end) >= 0
        with torch.cuda.nvtx.range("step {}", 1), torch.cuda.profiler.profile():
            torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.power_draw() == 0
        assert IS_BUILT_FOR_CUDA or torch.cuda.nccl.version() is None
    assert IS_BUILT_FOR_CUDA or torch.version.cuda is None


def test_other_errors_are_raised() -> None:
    def refuse() -> None:
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        _answering(refuse, None)()


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version\nhere",
        "CUDA driver version is insufficient for CUDA runtime version (cudaError.???)",
        "CUDA error: no CUDA-capable device is detected",
        "Invalid device argument ",
    ],
)
def test_a_build_for_cuda_without_a_driver_answers_as_one_without_cuda(message: str) -> None:
    def refuse() -> dict[str, int]:
        raise RuntimeError(message)

    assert _answering(refuse, {"a": 1})() == {"a": 1}


def test_answers_are_ones_own() -> None:
    def ask() -> list[int]:
        raise AttributeError("module 'torch._C' has no attribute '_cuda_memorySnapshot'")

    answer = _answering(ask, [])
    answer().append(1)
    assert answer() == []

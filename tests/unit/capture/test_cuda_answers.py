"""Every question that a script may ask of ``torch.cuda`` has an answer."""

from __future__ import annotations

import pytest
import torch

from breakeven.capture.pretend.cuda_api import _ANSWERS
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from factories.fake_steps import pretending

IS_BUILT_FOR_CUDA = torch.version.cuda is not None


@pytest.mark.parametrize("is_fake", [False, True], ids=["redirect", "pretend"])
@pytest.mark.filterwarnings("ignore")
def test_usual_questions_have_an_answer(is_fake: bool) -> None:
    names = [*_ANSWERS, "synchronize", "current_device", "get_device_name", "get_rng_state_all"]
    with pretending() if is_fake else redirect_cuda_to_cpu(has_cuda=True):
        for name in names:
            getattr(torch.cuda, name)()
        assert torch.accelerator.is_available()
        torch.accelerator.synchronize()
        with torch.cuda.profiler.profile():
            torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("step"))


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
        assert torch.cuda.nccl.version() >= (2, 0)
    assert IS_BUILT_FOR_CUDA or torch.version.cuda is None

"""A step of a table as it really runs, on a device that is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from breakeven.errors import WorkloadError
from breakeven.trace import NumberFormat, StepCase
from breakeven.workloads.case_traces import prepare_case
from breakeven.workloads.spec import parse_workload
from breakeven.workloads.timed_step import BuiltLoop, BuiltStep, TimedStep


class _HereSession:
    """What a step asks of its session where tensors are real: the batch lies there already."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy_to_device(self, tensors: object) -> None:
        """Do nothing: such steps are compared without copies."""

    def wait(self) -> None:
        """Wait for the device."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def step_on_device(
    case: StepCase, batch_size: int, device: torch.device, *, compile_mode: str = "none"
) -> Callable[[], object]:
    """Return a call that does one step on random data.

    Args:
        case: What is timed; without copies of the batch.
        batch_size: Samples per step.
        device: Where.
        compile_mode: Mode of ``torch.compile`` for the model, or ``none``.

    Raises:
        WorkloadError: The workload cannot be built, or brings its own loop.
    """
    spec = parse_workload(case.workload)
    torch.manual_seed(0)
    with torch.device(device):
        built = prepare_case(spec, case)(batch_size)
    if isinstance(built, BuiltLoop):
        raise WorkloadError(f"{spec.text!r} brings its own loop, which decides its device itself")
    _fill(built)
    if compile_mode != "none":
        built.model.compile(mode=None if compile_mode == "default" else compile_mode)
    step = TimedStep(case, built.model, _HereSession(device), device_type=device.type)
    return partial(_run, step, built, case)


def _run(step: TimedStep, built: BuiltStep, case: StepCase) -> None:
    with products_in_tf32(is_allowed=case.number_format is NumberFormat.TF32):
        step.run(built)


@contextmanager
def products_in_tf32(*, is_allowed: bool) -> Iterator[None]:
    """Let products and convolutions of fp32 use TF32 inside, or forbid it.

    cuDNN tries its algorithms meanwhile. MIOpen does not: it would try all that there are, which
    takes minutes for a shape (pytorch/pytorch#145294).
    """
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = is_allowed
    cudnn.benchmark = torch.version.hip is None
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def _fill(built: BuiltStep) -> None:
    """Put random numbers into the batch: zeros draw less power, and one token is one address."""
    tokens = [m.num_embeddings for m in built.model.modules() if isinstance(m, nn.Embedding)]
    with torch.no_grad():
        for tensor in (*built.inputs, *built.targets):
            if tensor.is_floating_point():
                tensor.normal_()
            elif tokens:
                tensor.random_(0, min(tokens))

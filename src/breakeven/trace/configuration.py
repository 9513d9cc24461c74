"""The settings of a step that differ from the script's own, and the identity of a step."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# More than any machine has; all of them would start at once.
_Count = Annotated[int, Meta(ge=0, le=1_024)]
_Samples = Annotated[int, Meta(ge=0, le=10**9)]


class Configuration(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings applied to an unmodified script; the defaults change nothing.

    The script's explicit settings win: an optimizer built with ``fused=False`` stays as it is.

    Args:
        fast_step: The script's loop runs forward, backward and update as one compiled call.
        num_threads: torch's intra-op threads; 0 for the script's own.
        flushes_denormals: The processor treats subnormal numbers as zero.
        channels_last: Weights of two-dimensional convolutions lie in channels-last memory.
        keeps_freed_memory: The process keeps freed memory instead of returning it to the system.
        skips_profiler_ranges: Optimizers and loaders skip profiler annotations while no profiler
            runs.
        optimizer: Implementation of torch's optimizers, if they have it.
        autocast: Number format of an autocast region around each call of the model.
        compile_mode: Mode of ``torch.compile`` for the model; empty for none.
        gathers_batches: A data set of tensors returns whole batches instead of single samples.
        num_workers: Processes of each DataLoader; -1 for the script's own.
        pins_memory: DataLoaders pin their batches, and copies of them to CUDA do not block.
        keeps_data_on_device: A data set of tensors is copied to the CUDA device once.
        allows_tf32: Matrix products and convolutions of float32 may use TF32 on CUDA.
        benchmarks_cudnn: cuDNN times its algorithms and keeps the fastest.
        loader_batch_size: Batch size of the DataLoaders to change; 0 for none.
        new_batch_size: Their new batch size; it changes the training itself.
    """

    fast_step: bool = False
    num_threads: _Count = 0
    flushes_denormals: bool = False
    channels_last: bool = False
    keeps_freed_memory: bool = False
    skips_profiler_ranges: bool = False
    optimizer: Literal["", "fused"] = ""
    autocast: Literal["", "bfloat16", "float16"] = ""
    compile_mode: Literal[
        "", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    ] = ""
    gathers_batches: bool = False
    num_workers: Annotated[int, Meta(ge=-1, le=1_024)] = -1
    pins_memory: bool = False
    keeps_data_on_device: bool = False
    allows_tf32: bool = False
    benchmarks_cudnn: bool = False
    loader_batch_size: _Samples = 0
    new_batch_size: _Samples = 0

    @property
    def changes(self) -> dict[str, bool | int | str]:
        """Return the settings that differ from the script's own, by name."""
        return {
            name: value
            for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
            if (value := getattr(self, name)) != default
        }


class TimedPhase(StrEnum):
    """The content of the timed region."""

    TRAIN = "train"
    FORWARD_BACKWARD = "forward_backward"
    FORWARD = "forward"
    BACKWARD = "backward"
    INFERENCE = "inference"


class NumberFormat(StrEnum):
    """Storage and arithmetic of a step's numbers, in the words of the tables."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"


class MemoryFormat(StrEnum):
    """The memory format of images and of the weights of their convolutions."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"


class Attention(StrEnum):
    """A model's implementation of attention: one fused operator of torch, or single operators."""

    UNSAID = ""
    EAGER = "eager"
    SDPA = "sdpa"


class StepCase(msgspec.Struct, frozen=True, kw_only=True):
    """A step without its batch size, device and host: the properties that decide its operators.

    Args:
        workload: Spec of the model: ``torchvision:resnet50``, ``transformers:CLASS?config``,
            ``llm:FAMILY?numbers``, ``breakeven:NAME?args`` or ``path.py:function``.
        phase: Timed part.
        number_format: Format of parameters and arithmetic; TF32 is fp32 with a switch set.
        optimizer: ``none``, or its name in lower case: ``sgd``, ``adam``, ``adamw``, ...
        h2d: Memory from which the batch is copied to the device inside the timed region, or
            ``none``.
        zeroes_gradients: Whether gradients are zeroed in place at the start of the step, as
            torch did before 2.0, rather than released.
        channels_last: Whether a model of images and its batch are in channels-last memory.
        attention: Implementation of attention; if unsaid, the model's own.
    """

    workload: str
    phase: TimedPhase
    number_format: NumberFormat = NumberFormat.FP32
    optimizer: str = "none"
    h2d: Literal["none", "pageable", "pinned"] = "none"
    zeroes_gradients: bool = False
    channels_last: bool = False
    attention: Attention = Attention.UNSAID

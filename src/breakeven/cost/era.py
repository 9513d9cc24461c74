"""Which years' software ran a step: what a framework's name and versions say about it."""

from __future__ import annotations

import re
from enum import StrEnum

# Versions up to which an era lasts, by what changed after it: cuDNN 7's first tensor-core kernels,
# cuDNN 8, the allocator and dispatcher of the 1.13 containers, and torch 2. NGC containers carry
# the torch version in brackets.
_TORCH_ERAS = ((1, 0), (1, 6), (1, 12), (1, 99))
_CUDA_10 = (10, 2)


class Era(StrEnum):
    """Software of about the same years; its kernels and its host's work cost about the same."""

    TORCH7 = "Torch7 and its contemporaries"
    TORCH_0 = "torch up to 1.0"
    TORCH_1_EARLY = "torch 1.1 to 1.6"
    TORCH_1 = "torch 1.7 to 1.12"
    TORCH_1_LATE = "torch 1.13"
    TORCH_2 = "torch 2"
    UNKNOWN = "unknown"

    @property
    def is_before_torch_2(self) -> bool:
        """Return whether it is a torch that sets gradients to zero in place by default.

        torch 2.0 began to release them instead. Torch7 is another program, and where nothing is
        told a torch of today is assumed.
        """
        return self in (Era.TORCH_0, Era.TORCH_1_EARLY, Era.TORCH_1, Era.TORCH_1_LATE)


def era_of(framework: str) -> Era:
    """Return which years' software a framework is.

    Args:
        framework: As tables write it: ``torch 1.4 CUDA 10.0 cuDNN 7600``, ``torch NGC 20.10
            (1.7.0a0) CUDA 11.1``, ``torch (version not recorded) CUDA 10.2``, ``torch7``.
            Where no version of torch is told, that of CUDA decides; without either it is unknown.
    """
    words = framework.casefold()
    if re.match(r"(torch7|caffe|cntk|mxnet|tensorflow 0|theano)", words):
        return Era.TORCH7
    if not re.match(r"(py)?torch\b", words):
        return Era.UNKNOWN
    own, _, cuda = words.partition("cuda")
    own = re.sub(r"(?:ngc|rocm|cudnn|python)\s*[0-9.]+", "", own)
    versions = re.findall(r"(\d+)\.(\d+)", own)
    if versions:
        version = max((int(major), int(minor)) for major, minor in versions)
        return _torch_era(version)
    cuda_version = re.match(r"\s*(\d+)\.(\d+)", cuda)
    if cuda_version is None:
        return Era.UNKNOWN
    number = (int(cuda_version.group(1)), int(cuda_version.group(2)))
    if number < (10, 0):
        return Era.TORCH_0
    if number <= _CUDA_10:
        return Era.TORCH_1_EARLY
    return Era.TORCH_1 if number < (11, 7) else Era.TORCH_2


def _torch_era(version: tuple[int, int]) -> Era:
    eras = (Era.TORCH_0, Era.TORCH_1_EARLY, Era.TORCH_1, Era.TORCH_1_LATE)
    for last, era in zip(_TORCH_ERAS, eras, strict=True):
        if version <= last:
            return era
    return Era.TORCH_2

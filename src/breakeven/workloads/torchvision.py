"""Image classifiers of torchvision."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom

from breakeven.errors import WorkloadError
from breakeven.workloads.built_step import BuiltStep, StepFactory
from breakeven.workloads.spec import WorkloadSpec, suggest

_IMAGE_SIZE = 224
# Its auxiliary classifier needs more than 224 pixels.
_IMAGE_SIZES = {"inception_v3": 299}
# The weight of each auxiliary loss. Sources: Szegedy et al., arXiv 1409.4842, section 5;
# torchvision's documentation of Inception v3.
_AUXILIARY_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}

# Operators that torchvision describes to torch.compile when it is imported. A wheel built for
# CUDA cannot load them beside a torch built without; no classifier calls any.
_COMPILED_OPERATORS = (
    "nms", "qnms", "roi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward",
    "roi_pool", "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "deform_conv2d",
    "_deform_conv2d_backward",
)  # fmt: skip


@cache
def import_torchvision() -> ModuleType | None:
    """Return torchvision, or None where it is not installed.

    Where its compiled operators cannot be loaded they are declared, without an implementation.
    """
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        return importlib.import_module("torchvision")
    except (RuntimeError, OSError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _COMPILED_OPERATORS:
        library.define(f"{name}(Tensor input) -> Tensor")
    torchvision = importlib.import_module("torchvision")
    # The declarations live as long as the library.
    vars(torchvision)["_declared_by_breakeven"] = library
    return torchvision


def prepare_torchvision(spec: WorkloadSpec, dtype: torch.dtype) -> StepFactory:
    """Build a classifier, and return what makes steps of it.

    Args:
        spec: Options are ``image``, the size of the images, and arguments of the model's function.
        dtype: Of parameters and images.

    Raises:
        WorkloadError: torchvision is not installed, or has no such classifier or argument.
    """
    torchvision = import_torchvision()
    if torchvision is None:
        raise WorkloadError(
            f"{spec.text!r} needs torchvision, which is not installed",
            hint="pip install torchvision",
        )
    models = torchvision.models
    known = models.list_models(module=models)
    if spec.name not in known:
        raise WorkloadError(
            f"torchvision has no classifier {spec.name!r}", hint=suggest(spec.name, known)
        )
    options: dict[str, Any] = dict(spec.options)
    size = options.pop("image", _IMAGE_SIZES.get(spec.name, _IMAGE_SIZE))
    if not isinstance(size, int) or size < 1:
        raise WorkloadError(f"{size!r} is no image size in {spec.text!r}", hint="image=224")
    if spec.name in _AUXILIARY_WEIGHTS:
        # Their initial weights are drawn by SciPy, one by one.
        options.setdefault("init_weights", False)
    try:
        model = models.get_model(spec.name, weights=None, **options).to(dtype)
    except TypeError as error:
        raise WorkloadError(
            f"{spec.text!r} cannot be built: {error}",
            hint="options are image=SIZE and arguments of torchvision's function of that name",
        ) from error
    weight = _AUXILIARY_WEIGHTS.get(spec.name, 0.0)

    def make_step(batch_size: int) -> BuiltStep:
        images = torch.empty(batch_size, 3, size, size, dtype=dtype)
        labels = torch.zeros(batch_size, dtype=torch.int64)

        def loss(output: Any) -> torch.Tensor:
            if isinstance(output, torch.Tensor):
                return F.cross_entropy(output, labels)
            main, *others = (part for part in output if part is not None)
            total = F.cross_entropy(main, labels)
            for other in others:
                total = total + weight * F.cross_entropy(other, labels)
            return total

        return BuiltStep(
            model=model,
            inputs=(images,),
            targets=(labels,),
            forward=lambda: model(images),
            loss=loss,
        )

    return make_step

"""Image classifiers of torchvision and timm, without weights: nothing is downloaded."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import nn

from breakeven.errors import WorkloadError
from breakeven.workloads.libraries import import_torchvision
from breakeven.workloads.spec import WorkloadSpec, suggest
from breakeven.workloads.timed_step import BuiltStep, StepFactory

_IMAGE_SIZE = 224
# Its auxiliary classifier needs more than 224 pixels.
_IMAGE_SIZES = {"inception_v3": 299}
# The weight of each auxiliary loss. Sources: Szegedy et al., arXiv 1409.4842, section 5;
# torchvision's documentation of Inception v3.
_AUXILIARY_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}


def prepare_torchvision(
    spec: WorkloadSpec, dtype: torch.dtype, *, channels_last: bool
) -> StepFactory:
    """Build a classifier, and return what makes steps of it.

    Args:
        spec: Options are ``image``, the size of the images, and arguments of the model's function.
        dtype: Of parameters and images.
        channels_last: Whether parameters and images lie in channels-last memory.

    Raises:
        WorkloadError: torchvision is not installed, or has no such classifier or argument.
    """
    torchvision = import_torchvision()
    if torchvision is None:
        raise WorkloadError(
            "workloads of torchvision need it, and it is not installed",
            hint="pip install torchvision",
        )
    models = torchvision.models
    known = models.list_models(module=models)
    if spec.name not in known:
        raise WorkloadError(
            f"torchvision has no classifier {spec.name!r}", hint=suggest(spec.name, known)
        )
    options: dict[str, Any] = dict(spec.options)
    size = _image_size(spec, options, _IMAGE_SIZES.get(spec.name, _IMAGE_SIZE))
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

    def loss(output: Any, labels: torch.Tensor) -> torch.Tensor:
        if isinstance(output, torch.Tensor):
            return F.cross_entropy(output, labels)
        main, *others = (part for part in output if part is not None)
        total = F.cross_entropy(main, labels)
        for other in others:
            total = total + weight * F.cross_entropy(other, labels)
        return total

    return _steps(model, loss, (3, size, size), dtype, channels_last=channels_last)


def prepare_timm(spec: WorkloadSpec, dtype: torch.dtype, *, channels_last: bool) -> StepFactory:
    """Build a classifier, and return what makes steps of it as timm's own benchmark times them.

    The batch is on the device already but for its labels, which are made there; the loss is never
    scaled, and the loop waits for each step.

    Args:
        spec: Options are ``img``, the size of the images, ``fast_norm``, which lets timm's own
            normalization layers compute in the dtype of autocast, and arguments of the model's
            function.
        dtype: Of parameters and images.
        channels_last: Whether parameters and images lie in channels-last memory.

    Raises:
        WorkloadError: timm is not installed, or has no such model or argument.
    """
    if importlib.util.find_spec("timm") is None:
        raise WorkloadError(
            "workloads of timm need it, and it is not installed", hint="pip install timm"
        )
    import_torchvision()  # timm imports it, and fails where its compiled operators do.
    timm: Any = importlib.import_module("timm")
    name = spec.name
    if not timm.is_model(name):
        raise WorkloadError(f"timm has no model {name!r}", hint=suggest(name, timm.list_models()))
    # An older name of a model has no configuration of its own.
    name = timm.models.get_deprecated_models().get(name, name)
    options: dict[str, Any] = dict(spec.options)
    default: tuple[int, ...] = timm.get_pretrained_cfg(name).input_size
    size = _image_size(spec, options, default[-1], key="img")
    try:
        model = _create(timm, name, size, options).to(dtype)
    except (TypeError, RuntimeError, AssertionError) as error:
        raise WorkloadError(
            f"{spec.text!r} cannot be built: {error}",
            hint="options are img=SIZE, fast_norm=1 and arguments of timm's function of that name",
        ) from error
    make_step = _steps(
        model, F.cross_entropy, (default[0], size, size), dtype, channels_last=channels_last
    )
    return lambda batch_size: replace(make_step(batch_size), scales_loss=False, waits_for_step=True)


def _create(timm: Any, name: str, size: int, options: dict[str, Any]) -> nn.Module:
    """Return the model for images of a size, with the norms that are asked for."""
    is_fast = options.pop("fast_norm", 0)
    if is_fast not in (0, 1):
        raise WorkloadError(f"fast_norm is 0 or 1, not {is_fast!r}")
    if not is_fast:
        return _create_for(timm, name, size, options)
    timm.layers.set_fast_norm(True)
    try:
        return _create_for(timm, name, size, options)
    finally:
        timm.layers.set_fast_norm(False)


def _create_for(timm: Any, name: str, size: int, options: dict[str, Any]) -> nn.Module:
    """Return the model for images of a size; models of convolutions alone take no such argument."""
    try:
        return timm.create_model(name, img_size=size, **options)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
    return timm.create_model(name, **options)


def _image_size(
    spec: WorkloadSpec, options: dict[str, Any], default: int, *, key: str = "image"
) -> int:
    size = options.pop(key, default)
    if not isinstance(size, int) or size < 1:
        raise WorkloadError(f"{size!r} is no image size in {spec.text!r}", hint=f"{key}=224")
    return size


def _steps(
    model: nn.Module,
    loss: Callable[[Any, torch.Tensor], torch.Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    channels_last: bool,
) -> StepFactory:
    """Return what makes steps of a classifier, for images of a shape."""
    format_ = torch.channels_last if channels_last else torch.contiguous_format
    if channels_last:
        # `to` takes the format beside nothing else, which its stubs do not know.
        to: Any = model.to
        model = to(memory_format=format_)

    def make_step(batch_size: int) -> BuiltStep:
        images = torch.empty((batch_size, *shape), dtype=dtype, memory_format=format_)
        labels = torch.zeros(batch_size, dtype=torch.int64)
        return BuiltStep(
            model=model,
            inputs=(images,),
            targets=(labels,),
            forward=lambda: model(images),
            loss=lambda output: loss(output, labels),
        )

    return make_step

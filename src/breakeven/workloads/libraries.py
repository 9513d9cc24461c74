"""Models of transformers, torchvision and timm, built without downloads."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import nn

from breakeven.errors import WorkloadError
from breakeven.trace import Attention, StepCase, TimedPhase
from breakeven.workloads.spec import WorkloadSpec, suggest
from breakeven.workloads.timed_step import BuiltStep, StepFactory

# Operators that torchvision registers for torch.compile on import. A wheel built for CUDA cannot
# load them with a torch built without; no classifier calls any of them.
_COMPILED_OPERATORS = (
    "nms", "qnms", "roi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward",
    "roi_pool", "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "deform_conv2d",
    "_deform_conv2d_backward",
)  # fmt: skip
# Tables that do not name an implementation timed attention operator by operator.
_ATTENTION = {Attention.EAGER: "eager", Attention.SDPA: "sdpa", Attention.UNSAID: "eager"}
# Arguments of the loss besides the inputs, by the end of the class's name: one number per sample,
# or one per token.
_PER_SAMPLE = {
    "ForQuestionAnswering": ("start_positions", "end_positions"),
    "ForSequenceClassification": ("labels",),
    "ForImageClassification": ("labels",),
    "ForNextSentencePrediction": ("labels",),
}
_PER_TOKEN = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration",
              "ForTokenClassification")  # fmt: skip


@cache
def import_torchvision() -> ModuleType | None:
    """Return torchvision, or None if it is not installed.

    If its compiled operators cannot be loaded, they are declared without an implementation.
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


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise WorkloadError(
            f"workloads of {package} need it, and it is not installed",
            hint=f"pip install {package}",
        )


def prepare_transformers(spec: WorkloadSpec, dtype: torch.dtype, case: StepCase) -> StepFactory:
    """Build a model, and return a factory of its steps.

    A row of phase ``train`` is a training script: dropout is on, and the model computes its own
    loss and gets a mask and token types. A row of another phase is a benchmark of the model, like
    the published timings of single layers. It uses evaluation mode and only the tokens, calls
    ``backward`` with a gradient of ones at the logits, and accumulates gradients.

    Args:
        spec: Options are ``seq``, the number of tokens, ``attn_implementation``, and keys of the
            model's configuration.
        dtype: Dtype of the parameters.
        case: The case to time; its attention applies if the spec names none.

    Raises:
        WorkloadError: If transformers is not installed, or has no such model or key.
    """
    _require("transformers")
    import_torchvision()  # transformers imports it if installed, and fails if that fails
    import transformers

    model_class = getattr(transformers, spec.name, None) if spec.name in dir(transformers) else None
    config_class: Any = getattr(model_class, "config_class", None)
    if model_class is None or config_class is None:
        known = [name for name in dir(transformers) if "For" in name or name.endswith("Model")]
        raise WorkloadError(
            f"transformers has no model class {spec.name!r}", hint=suggest(spec.name, known)
        )
    options: dict[str, Any] = dict(spec.options)
    attention = options.pop("attn_implementation", _ATTENTION[case.attention])
    num_tokens = options.pop("seq", None)
    plain = config_class()
    for key in options:
        if not hasattr(plain, key):
            raise WorkloadError(
                f"{config_class.__name__} has no key {key!r}, which {spec.text!r} gives",
                hint=suggest(key, plain.to_dict()),
            )
    config = config_class(**options)
    config._attn_implementation = attention
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    # Disable the cache, which would copy keys and values; no row of a table reads it.
    config.use_cache = False
    try:
        model = model_class(config).to(dtype)
    except (TypeError, ValueError, ImportError) as error:
        raise WorkloadError(f"{spec.text!r} cannot be built: {error}") from error
    return _step_factory(spec, model, num_tokens, dtype, is_training=case.phase is TimedPhase.TRAIN)


def _step_factory(
    spec: WorkloadSpec, model: Any, num_tokens: Any, dtype: torch.dtype, *, is_training: bool
) -> StepFactory:
    takes = model.main_input_name
    if takes == "input_ids" and (not isinstance(num_tokens, int) or num_tokens < 1):
        raise WorkloadError(
            f"{spec.text!r} does not say how many tokens a sample has",
            hint=f"add {'&' if spec.options else '?'}seq=512",
        )
    if takes not in ("input_ids", "pixel_values"):
        raise WorkloadError(
            f"{spec.name} takes {takes}, an input of unknown shape",
            hint="models of text and of images can be named; write path.py:function for others",
        )

    def make_step(batch_size: int) -> BuiltStep:
        if takes == "pixel_values":
            config = model.config
            size = config.image_size
            sides = (size, size) if isinstance(size, int) else tuple(size)
            shape = (batch_size, config.num_channels, *sides)
            inputs = {"pixel_values": torch.empty(shape, dtype=dtype)}
        else:
            inputs = {"input_ids": torch.zeros(batch_size, num_tokens, dtype=torch.int64)}
            if model.config.is_encoder_decoder and not is_training:  # else made from the labels
                inputs["decoder_input_ids"] = torch.zeros_like(inputs["input_ids"])
            if is_training:
                inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if is_training and getattr(model.config, "type_vocab_size", None):
                inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        targets = _make_targets(spec, inputs) if is_training else {}

        def loss(output: Any) -> torch.Tensor:
            if is_training:
                return output.loss
            logits = getattr(output, "logits", None)
            return next(iter(output.values())) if logits is None else logits

        return BuiltStep(
            model=model,
            inputs=tuple(inputs.values()),
            targets=tuple(targets.values()),
            forward=lambda: model(**inputs, **targets),
            loss=loss,
            uses_training_mode=is_training,
            keeps_gradients=not is_training,
        )

    return make_step


def _make_targets(spec: WorkloadSpec, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    batch_size = next(iter(inputs.values())).shape[0]
    for ending, names in _PER_SAMPLE.items():
        if spec.name.endswith(ending):
            return {name: torch.zeros(batch_size, dtype=torch.int64) for name in names}
    if spec.name.endswith(_PER_TOKEN):
        return {"labels": torch.zeros_like(inputs["input_ids"])}
    raise WorkloadError(
        f"the loss of {spec.name} is unknown, so it has no training step",
        hint="name a class with a loss, such as BertForMaskedLM, or another phase",
    )


_IMAGE_SIZE = 224
# Inception's auxiliary classifier needs more than 224 pixels.
_IMAGE_SIZES = {"inception_v3": 299}
# Weight of each auxiliary loss. Sources: Szegedy et al., arXiv 1409.4842, section 5;
# torchvision's documentation of Inception v3.
_AUXILIARY_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}


def prepare_torchvision(
    spec: WorkloadSpec, dtype: torch.dtype, *, channels_last: bool
) -> StepFactory:
    """Build a classifier, and return a factory of its steps.

    Args:
        spec: Options are ``image``, the size of the images, and arguments of the model's function.
        dtype: Dtype of parameters and images.
        channels_last: Whether parameters and images are in channels-last memory.

    Raises:
        WorkloadError: If torchvision is not installed, or has no such classifier or argument.
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
        # SciPy would draw the initial weights one by one.
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
    """Build a classifier, and return a factory of its steps as timm's own benchmark times them.

    The images are on the device already, and the labels are made there. The loss is never scaled,
    and the loop waits for each step.

    Args:
        spec: Options are ``img``, the size of the images; ``fast_norm``, which lets timm's own
            normalization layers compute in the dtype of autocast; and arguments of the model's
            function.
        dtype: Dtype of parameters and images.
        channels_last: Whether parameters and images are in channels-last memory.

    Raises:
        WorkloadError: If timm is not installed, or has no such model or argument.
    """
    _require("timm")
    import_torchvision()  # timm imports it, and fails if its compiled operators do
    timm: Any = importlib.import_module("timm")
    name = spec.name
    if not timm.is_model(name):
        raise WorkloadError(f"timm has no model {name!r}", hint=suggest(name, timm.list_models()))
    # A model's deprecated name has no configuration.
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
    """Return the model for images of a size, with fast norms if requested."""
    is_fast = options.pop("fast_norm", 0)
    if is_fast not in (0, 1):
        raise WorkloadError(f"fast_norm is 0 or 1, not {is_fast!r}")
    if is_fast:
        timm.layers.set_fast_norm(True)
    try:
        return timm.create_model(name, img_size=size, **options)
    except TypeError as error:  # purely convolutional models have no such argument
        if "img_size" not in str(error):
            raise
        return timm.create_model(name, **options)
    finally:
        if is_fast:
            timm.layers.set_fast_norm(False)


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
    """Return a factory of a classifier's steps, for images of a shape."""
    format_ = torch.channels_last if channels_last else torch.contiguous_format
    if channels_last:
        # The stubs of `to` do not know a memory format alone.
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

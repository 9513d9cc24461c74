"""Which part of a training framework's step is running below the user's line that called it."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

from torch import nn

# Packages that run a whole step below one line: `trainer.fit(model)`, `model.learn(...)`.
_FRAMEWORKS = frozenset({
    "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "sb3_contrib",
    "stable_baselines3", "transformers", "trl",
})  # fmt: skip

# Functions that tell the parts of a step apart, each with what it does: of those that do the same
# within each other, the outermost is named. Many are hooks that a user knows from the documentation
# of his framework.
_PARTS = {
    "optimizer_step": "step", "step": "step",
    "backward": "backward", "manual_backward": "backward",
    "zero_grad": "zero_grad", "optimizer_zero_grad": "zero_grad",
    "clip_grad_norm_": "clip", "clip_grad_value_": "clip", "clip_gradients": "clip",
    "configure_gradient_clipping": "clip",
    "unscale_": "unscale", "unscale_gradients": "unscale",
    "get_batch_samples": "data", "__next__": "data", "__iter__": "data",
    "batch_to_device": "transfer", "transfer_batch_to_device": "transfer",
    "send_to_device": "transfer", "to_torch": "transfer",
    "training_step": "training_step", "compute_loss": "compute_loss",
    "evaluate_actions": "evaluate_actions", "collect_rollouts": "collect_rollouts",
    "compute_returns_and_advantage": "returns", "polyak_update": "polyak_update",
    "validation_step": "evaluate", "evaluate": "evaluate", "evaluation_loop": "evaluate",
    "log": "log", "log_dict": "log", "log_metrics": "log", "dump_logs": "log",
    "update_train_step_metrics": "log", "_maybe_log_save_evaluate": "log",
    "save_checkpoint": "save", "_save_checkpoint": "save",
    "update_lr_schedulers": "schedule",
    "on_train_batch_start": "callback", "on_train_batch_end": "callback",
    "call_event": "callback", "on_step": "callback",
}  # fmt: skip
# Modules of torch whose functions of these names are such parts as well.
_TORCH_PARTS = ("torch._tensor", "torch.amp.", "torch.autograd", "torch.nn.utils.", "torch.optim.")

_CALL_OF_MODULE = nn.Module._call_impl.__code__


class FrameworkFrame(NamedTuple):
    """A function that runs below the user's line.

    Args:
        name: Module and function: ``lightning.pytorch.core.module:LightningModule.backward``.
        part: What it does of the step; empty where its name does not tell.
        is_framework: Whether a framework provides it, rather than torch.
    """

    name: str
    part: str
    is_framework: bool


# Stands for the call of an `nn.Module`: what is below it is told apart by modules.
CALL_OF_MODULE = FrameworkFrame(name="", part="", is_framework=False)


def framework_frame(frame: FrameType) -> FrameworkFrame | None:
    """Return what ``frame`` tells of a framework's step; None where it tells nothing."""
    code = frame.f_code
    if code is _CALL_OF_MODULE:
        return CALL_OF_MODULE
    module = str(frame.f_globals.get("__name__", ""))
    part = _PARTS.get(code.co_name, "")
    is_framework = module.partition(".")[0] in _FRAMEWORKS
    if not is_framework and not (part and module.startswith(_TORCH_PARTS)):
        return None
    if code.co_name.startswith("<"):
        return None
    name = f"{module}:{code.co_qualname}"
    return FrameworkFrame(name=name, part=part, is_framework=is_framework)


def parts_of_step(frames: Iterable[FrameworkFrame]) -> tuple[str, ...]:
    """Return the names of the frames that say what a framework is doing, outermost first.

    The first is the function that the user's line calls. Where no other frame is known to be a
    part of a step, the innermost one of the framework is named.

    Args:
        frames: Those below the user's line, outermost first.

    Returns:
        No names where no framework runs.
    """
    known = list(frames)
    while known and not known[0].is_framework:
        del known[0]
    if not known:
        return ()
    entry = known[0]
    named: dict[str, str] = {entry.part: entry.name} if entry.part else {}
    for frame in known:
        if frame.part:
            named.setdefault(frame.part, frame.name)
    names = dict.fromkeys((entry.name, *named.values()))
    if len(names) == 1 and not entry.part:
        innermost = next(frame for frame in reversed(known) if frame.is_framework)
        names[innermost.name] = None
    return tuple(names)

"""Training loops of Lightning, transformers and Stable-Baselines3, as they run on the CPU.

Each runs on copies: the user's model, optimizer and trainer stay as they are. No framework is
imported; a trainer is known by its class.
"""

from __future__ import annotations

import copy
import io
import sys
from typing import Any

from breakeven.capture import TrainingLoop
from breakeven.errors import BreakevenError, UsageError

# More steps than any measurement takes.
_ENDLESS = 10**9
_LIGHTNING_HINT = "pass (trainer, module) or (trainer, module, loader)"


def training_loop(what: object) -> TrainingLoop | None:
    """Return the loop of a framework's trainer; None if it is no such object.

    Args:
        what: ``(trainer, module)`` or ``(trainer, module, loader)`` of Lightning, a ``Trainer`` of
            transformers, or an agent of Stable-Baselines3.

    Raises:
        UsageError: If a Lightning trainer comes without its module or data.
        BreakevenError: If the trainer is on a GPU.
    """
    first, *rest = what if isinstance(what, tuple) and what else (what,)
    if kind := _class_of(first, ("lightning", "pytorch_lightning"), "Trainer"):
        return _lightning(kind, first, rest)
    if rest:
        return None
    if _class_of(first, ("transformers",), "Trainer"):
        return _transformers(first)
    if _class_of(first, ("stable_baselines3",), "BaseAlgorithm"):
        return _stable_baselines(first)
    return None


def _class_of(value: object, packages: tuple[str, ...], name: str) -> Any:
    """Return the framework's class that a value is an instance of, or None."""
    return next(
        (
            kind
            for kind in type(value).__mro__
            if kind.__name__ == name and kind.__module__.partition(".")[0] in packages
        ),
        None,
    )


def _lightning(kind: Any, trainer: Any, rest: list[Any]) -> TrainingLoop:
    if not rest or not hasattr(rest[0], "training_step") or len(rest) > 2:
        raise UsageError("a Lightning Trainer needs its module", hint=_LIGHTNING_HINT)
    module = rest[0]
    base = next(one for one in type(module).__mro__ if one.__name__ == "LightningModule")
    if len(rest) == 1 and type(module).train_dataloader is base.train_dataloader:
        raise UsageError("the module has no train_dataloader", hint=_LIGHTNING_HINT)

    def run() -> None:
        # A trainer cannot be copied once it has workers or loggers: make one that trains alike.
        twin = kind(
            accelerator="cpu", devices=1, precision=trainer.precision,
            accumulate_grad_batches=trainer.accumulate_grad_batches,
            gradient_clip_val=trainer.gradient_clip_val,
            gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            max_epochs=-1, limit_val_batches=0, num_sanity_val_steps=0, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        memo = {id(owner): None for owner in (trainer, getattr(module, "_trainer", None)) if owner}
        twin.fit(copy.deepcopy(module, memo), *rest[1:])

    return TrainingLoop(name=type(module).__name__, run=run)


def _transformers(trainer: Any) -> TrainingLoop:
    _ensure_cpu(trainer.args.device, "TrainingArguments(use_cpu=True)")
    if trainer.train_dataset is None:
        raise UsageError("the Trainer has no train_dataset", hint="pass one to the Trainer")

    def run() -> None:
        # Datasets, callbacks and the accelerator stay the user's; the copy has none of the latter.
        twin = copy.copy(trainer)
        twin.model, twin.optimizer = copy.deepcopy((trainer.model, trainer.optimizer))
        twin.model_wrapped, twin.lr_scheduler = twin.model, None
        twin.args, twin.state, twin.control = map(
            copy.deepcopy, (trainer.args, trainer.state, trainer.control)
        )
        twin.args.max_steps, twin.args.disable_tqdm = _ENDLESS, True
        for part in ("save", "eval", "logging"):
            strategy = getattr(twin.args, f"{part}_strategy")
            setattr(twin.args, f"{part}_strategy", type(strategy)("no"))
        modules = sys.modules["transformers.trainer"]
        twin.callback_handler = modules.CallbackHandler(
            [modules.DefaultFlowCallback], twin.model, twin.processing_class, twin.optimizer, None
        )
        twin.create_accelerator_and_postprocess()
        twin.train()

    return TrainingLoop(name=type(trainer.model).__name__, run=run)


def _stable_baselines(agent: Any) -> TrainingLoop:
    _ensure_cpu(agent.device, 'device="cpu"')
    stored = io.BytesIO()
    agent.save(stored)  # copy.deepcopy fails on the tensors of an earlier training

    def run() -> None:
        try:
            environment = copy.deepcopy(agent.get_env())
        except Exception as error:
            raise BreakevenError(
                f"the agent's environment cannot be copied ({error})",
                hint="pass a function that does one training step",
            ) from error
        stored.seek(0)
        twin = type(agent).load(stored, env=environment, device="cpu")
        twin.verbose, twin.tensorboard_log, twin._custom_logger = 0, None, False
        twin.learn(_ENDLESS)

    return TrainingLoop(name=type(agent).__name__, run=run)


def _ensure_cpu(device: Any, option: str) -> None:
    if device.type != "cpu":
        raise BreakevenError(
            f"the trainer is on {device}, and a step is measured on the CPU",
            hint=f"make it with {option}",
        )

"""The user's lines that led to an event, and the library code that ran below them.

Below a line that calls a training framework, also the running part of the framework's step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import NamedTuple

import torch
from torch import nn

from breakeven.capture.location import is_user_file, location_of, runs_user_code
from breakeven.trace import Location

# The Python function below which the autograd engine runs.
_ENGINE = torch.autograd.graph._engine_run_backward.__code__

# Modules that every call passes through: they read a tensor only for the user's line.
_PASSED_THROUGH = frozenset({
    "torch", "torch._compile", "torch._jit_internal", "torch._ops", "torch._tensor",
    "torch._tensor_str", "torch._utils", "torch.accelerator", "torch.cuda", "torch.cuda.memory",
    "torch.autograd", "torch.autograd.function", "torch.autograd.graph",
    "torch.autograd.profiler", "torch.functional", "torch.nn.functional",
    "torch.nn.modules.container", "torch.nn.modules.module", "torch.overrides",
    "torch.utils._contextlib", "torch.utils._device", "torch.utils._python_dispatch",
    "torch.utils.checkpoint",
})  # fmt: skip
# Packages whose modules all count as such: they show or convert data from a line.
_PASSED_THROUGH_PACKAGES = frozenset(
    {"breakeven", "faststep", "numpy", "tqdm", *sys.stdlib_module_names}
)

# Limit for recursive functions, which may have any number of frames.
_MAX_STACK = 64


class Origin(NamedTuple):
    """The origin of an event.

    Args:
        location: The user's innermost line; in the backward pass, that of the forward operator.
        module: Dotted path of the ``nn.Module``.
        stack: Number of the user's lines in `OriginFinder.stacks`, and of the code below them in
            `OriginFinder.frames`; -1 without any.
        via: Dotted name of the library module that acts below that line; empty if none does.
    """

    location: Location | None = None
    module: str = ""
    stack: int = -1
    via: str = ""


class OriginFinder:
    """Finds the current origin, and keeps those of forward operators for their backward pass."""

    def __init__(self) -> None:
        # Each item holds the user's lines, outermost first.
        self.stacks: list[tuple[Location, ...]] = []
        # For each stack, the functions of a training framework below its last line.
        self.frames: list[tuple[str, ...]] = []
        self._forward: dict[int, Origin] = {}
        self._numbers: dict[tuple[tuple[Location, ...], tuple[str, ...]], int] = {}
        # Keys: code of the frames below the user's, then code and instruction of each of the
        # user's frames. They are quicker to get than lines.
        self._numbers_by_frames: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._framework_frames: dict[int, FrameworkFrame | None] = {}
        # Keep code objects alive, so that no id is reused.
        self._codes: dict[int, CodeType] = {}
        self._libraries: dict[str, str | None] = {}

    def start_step(self) -> None:
        """Discard the forward operators of the previous step."""
        # After an update within a backward pass, the rest of that pass still needs them.
        if torch._C._current_autograd_node() is None:
            self._forward.clear()

    def current(self, frame: FrameType | None, module: str) -> Origin:
        """Return the origin of ``frame``; in backward, that of the forward operator.

        The user's Python may run within the backward pass too: hooks, the ``backward`` of an
        `autograd.Function`, a recomputed forward pass. It has its own lines.
        """
        node = torch._C._current_autograd_node()
        if node is not None and not runs_user_code(frame, below=_ENGINE):
            found = self._forward.get(node._sequence_nr())
            if found is None:
                return self._origin_of(frame, "")
            return self._in_backward(found, frame)
        origin = self._origin_of(frame, module)
        # A forward operator's node is created just before its dispatch. Detached and grad-free
        # operators create none, and must not overwrite an earlier entry.
        next_number = torch.autograd._get_sequence_nr()  # pyright: ignore[reportPrivateImportUsage]
        self._forward.setdefault(next_number - 1, origin)
        return origin

    def _in_backward(self, forward: Origin, frame: FrameType | None) -> Origin:
        """Return the origin of a forward operator for its backward pass.

        The line stays. If a framework runs both below it, its current part separates them.
        """
        if forward.stack < 0 or not self.frames[forward.stack]:
            return forward
        now = self._origin_of(frame, "")
        return forward._replace(stack=now.stack) if now.location == forward.location else forward

    def _origin_of(self, frame: FrameType | None, module: str) -> Origin:
        libraries, parts = self._libraries, self._framework_frames
        key: list[int] = []
        below: list[int] = []
        via = ""
        innermost = frame
        while frame is not None and len(key) < 2 * _MAX_STACK:
            code = frame.f_code
            file = code.co_filename
            library = libraries[file] if file in libraries else self._classify(frame)
            if library is None:
                key += (id(code), frame.f_lasti)
            elif not key:
                via = via or library
                number = id(code)
                part = parts[number] if number in parts else self._framework_frame(frame)
                if part is CALL_OF_MODULE:
                    below.clear()
                elif part is not None:
                    below.append(number)
            frame = frame.f_back
        numbered = tuple(below), tuple(key)
        stack = self._numbers_by_frames.get(numbered)
        if stack is None:
            stack = self._number_of(innermost, below)
            self._numbers_by_frames[numbered] = stack
        location = self.stacks[stack][-1] if stack >= 0 else None
        return Origin(location, module, stack, via)

    def _framework_frame(self, frame: FrameType) -> FrameworkFrame | None:
        code = frame.f_code
        self._codes[id(code)] = code
        found = self._framework_frames[id(code)] = framework_frame(frame)
        return found

    def _classify(self, frame: FrameType) -> str | None:
        """Return None for the user's file, else the library name to report, which may be empty."""
        file = frame.f_code.co_filename
        if is_user_file(file):
            self._libraries[file] = None
            return None
        name = str(frame.f_globals.get("__name__", ""))
        is_passed = (
            name in _PASSED_THROUGH
            or name.partition(".")[0] in _PASSED_THROUGH_PACKAGES
            or name.startswith("torch._dynamo.")
        )
        # Generated code (`<string>`) shares its file name with that of other modules.
        self._libraries[file] = "" if is_passed or file.startswith("<") else name
        return self._libraries[file]

    def _number_of(self, frame: FrameType | None, below: list[int]) -> int:
        """Return the number of the user's lines that lead to ``frame``; -1 without any.

        Args:
            frame: The innermost frame.
            below: Codes of the framework's frames below the last line, innermost first.
        """
        lines: list[Location] = []
        while frame is not None and len(lines) < _MAX_STACK:
            code = frame.f_code
            if self._libraries[code.co_filename] is None:
                self._codes[id(code)] = code
                lines.append(location_of(code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        if not lines:
            return -1
        known = (self._framework_frames[code] for code in reversed(below))
        parts = parts_of_step(frame for frame in known if frame is not None)
        stack = tuple(reversed(lines))
        if (stack, parts) not in self._numbers:
            self._numbers[stack, parts] = len(self.stacks)
            self.stacks.append(stack)
            self.frames.append(parts)
        return self._numbers[stack, parts]


# Packages that run a whole step below one line: `trainer.fit(model)`, `model.learn(...)`.
_FRAMEWORKS = frozenset({
    "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "sb3_contrib",
    "stable_baselines3", "transformers", "trl",
})  # fmt: skip

# Functions that separate the parts of a step, by their purpose. Of nested functions with the same
# purpose, the outermost is named. Many are hooks that a user knows from the framework's
# documentation.
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
# Modules of torch in which functions of these names are such parts too.
_TORCH_PARTS = ("torch._tensor", "torch.amp.", "torch.autograd", "torch.nn.utils.", "torch.optim.")

_CALL_OF_MODULE = nn.Module._call_impl.__code__


class FrameworkFrame(NamedTuple):
    """A function below the user's line.

    Args:
        name: Module and function: ``lightning.pytorch.core.module:LightningModule.backward``.
        part: Its part of the step; empty if unknown from its name.
        is_framework: Whether it belongs to a framework, not to torch.
    """

    name: str
    part: str
    is_framework: bool


# Marks the call of an `nn.Module`: modules separate the work below it.
CALL_OF_MODULE = FrameworkFrame(name="", part="", is_framework=False)


def framework_frame(frame: FrameType) -> FrameworkFrame | None:
    """Return the frame's part in a framework's step; None if it has none."""
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
    """Return the names of the frames that show a framework's current work, outermost first.

    The first is the function that the user's line calls. If no other frame is a known part of a
    step, the second is the framework's innermost one.

    Args:
        frames: Frames below the user's line, outermost first.

    Returns:
        No names if no framework runs.
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

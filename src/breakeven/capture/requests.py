"""What is asked for: what of the user's to run, measured or to its end, and what it may change.

The target is found, and told apart, before anything runs.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from breakeven.capture.location import as_text
from breakeven.errors import ScriptError
from breakeven.timing import TurnKind
from breakeven.trace import Configuration


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of a script leave behind; by default nothing.

    Args:
        writes: Files are written where the script writes them.
        trackers: Experiment trackers log as the script sets them up.
        raw_folders: Folders in which they are in any case, as bytes.
    """

    writes: bool = False
    trackers: bool = False
    raw_folders: tuple[bytes, ...] = ()


KEEP_NOTHING = Keep()


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """One run of the target.

    Args:
        target: What to run.
        is_traced: Record a step with a pretended CUDA device; otherwise time plain steps.
        is_moved: Record a script that never uses a GPU as if model and batches were moved to one.
        records_longer: Record as many steps as come within some seconds, where a few did not show
            what is typical.
        time_limit_s: When to give up.
        budget_s: How long to take samples once steps run; a few slow steps may exceed it.
        has_cuda: Let ``torch.cuda.is_available()`` say yes in a plain run too, for scripts that
            refuse to run without a GPU.
        on_gpu: Leave the GPU of this machine to the script; otherwise it is hidden.
        loader_batch_size: Batch size of the DataLoaders that are to be changed; 0 to change none.
        new_batch_size: Their batch size in this run.
        configuration: Settings in effect around the script; a traced run ignores all but the
            threads.
        keeps_compile: Let the script's own ``torch.compile`` do its work in a plain run, in which
            its CUDA calls are not run by the CPU then. Otherwise it is ignored, and so it is with
            ``has_cuda``.
        turns: Run a few steps at a time, and wait for a byte on the pipe of turns in between.
        raw_changed_text: Run this text in place of the script's own, under the script's name; empty
            for its own.
        num_recorded_steps: Record the losses and gradients of so many steps of a plain run, with
            all that is unseeded seeded alike, instead of timing it; 0 to time it. Of steps that
            take longer than ``budget_s`` in all, at least two.
        raw_numbers_path: The file that they are written to.
        num_probe_steps: Run the script until it has taken so many steps, to see whether it fails by
            itself: with nothing replaced but, with ``has_cuda``, CUDA by the CPU; 0 for no probe.
        weight_noise_roundoffs: Move the weights by so many unit roundoffs in such a run, before the
            first step and after each.
        weight_noise_seed: Which of them up, and which down.
        backwards_per_step: End a step of a plain run after so many backward passes; 0 where
            optimizers of torch end it.
        records_after: Record what follows so many updates of a traced run, up to the next one or
            for a while, in place of a step; 0 for a step.
        num_skipped_steps: Steps of a plain run that are left out before the first one counts.
        times_loader: Time worker processes of a DataLoader by themselves after a plain run.
        tries_threads: Go on with one thread, and with as many as there are cores, for a while after
            a plain run with more, unless the script sets their number.
        tries_generated: Go on for some steps after a plain run on the CPU, where steps are short,
            and time what one of them takes as generated code.
        watches_program: Wait in a plain run for what is done between some of the steps, until it is
            known how often that comes, and tell what it is.
    """

    target: Target
    is_traced: bool
    time_limit_s: float
    is_moved: bool = False
    records_longer: bool = False
    budget_s: float = 1.0
    has_cuda: bool = False
    on_gpu: bool = False
    loader_batch_size: int = 0
    new_batch_size: int = 0
    configuration: Configuration = Configuration()
    keeps_compile: bool = False
    turns: TurnKind = TurnKind.NONE
    raw_changed_text: bytes = b""
    num_recorded_steps: int = 0
    raw_numbers_path: bytes = b""
    num_probe_steps: int = 0
    weight_noise_roundoffs: float = 0.0
    weight_noise_seed: int = 0
    backwards_per_step: int = 0
    records_after: int = 0
    num_skipped_steps: int = 0
    times_loader: bool = False
    tries_threads: bool = False
    tries_generated: bool = False
    watches_program: bool = False

    @property
    def compiles(self) -> bool:
        """Return whether the run may compile what the script or the configuration asks for."""
        wanted = self.configuration
        return self.keeps_compile or bool(wanted.compile_mode) or wanted.fast_step


class HostRequest(msgspec.Struct, frozen=True, kw_only=True, tag="measure-host"):
    """Measure what this host spends to issue an operator, instead of running a target.

    Args:
        num_rounds: Each measures everything once.
    """

    num_rounds: int


class RatesRequest(msgspec.Struct, frozen=True, kw_only=True, tag="measure-rates"):
    """Measure what a core of this CPU computes and moves, instead of running a target."""


Request = RunRequest | HostRequest | RatesRequest


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a script is run to its end.

    Args:
        is_module: The target is the name of a module.
        device: Where the step runs; for ``cpu``, CUDA is hidden.
        has_cuda: Have CUDA calls run by the CPU, and let ``torch.cuda.is_available()`` say yes, for
            scripts that refuse to run without a GPU.
        configuration: Settings in effect around the script.
        num_steps: Steps that the run will have; 0 where that is not known.
        is_quiet: Write nothing of breakeven's own.
        pays_after_s: What costs time once, such as compiling, begins when steps have gone on for so
            long; 0 for at once.
    """

    is_module: bool
    device: Literal["cpu", "gpu"]
    has_cuda: bool
    configuration: Configuration
    num_steps: int
    is_quiet: bool
    pays_after_s: float = 0.0


class TargetKind(StrEnum):
    """How a target is started."""

    SCRIPT = "script"
    MODULE = "module"
    FUNCTION = "function"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants checked.

    Args:
        kind: Script, module (``python -m``) or function.
        raw_path: Absolute path of the file; for a module, its dotted name. File names and
            arguments are bytes, which need not be UTF-8.
        label: The target as the user wrote it, fit to be shown.
        raw_name: ``sys.argv[0]`` of the script, which is its path as the user wrote it; empty for
            the absolute one.
        function: Name of the function; empty for scripts and modules.
        raw_arguments: ``sys.argv[1:]`` of the script.
    """

    kind: TargetKind
    raw_path: bytes
    label: str
    raw_name: bytes = b""
    function: str = ""
    raw_arguments: tuple[bytes, ...] = ()

    @property
    def path(self) -> str:
        """Return the path as Python's own functions take it."""
        return os.fsdecode(self.raw_path)

    @property
    def name(self) -> str:
        """Return how the user wrote the path or the module."""
        return os.fsdecode(self.raw_name or self.raw_path)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments as ``sys.argv`` has them."""
        return tuple(map(os.fsdecode, self.raw_arguments))


def find_target(text: str, arguments: Sequence[str] = (), *, is_module: bool = False) -> Target:
    """Return the target that ``text`` names.

    Args:
        text: ``train.py``, ``train.py:step``, or a module's dotted name.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: ``text`` is a module, as for ``python -m``.

    Raises:
        ScriptError: There is no such file, module, or it cannot be read.
    """
    if is_module:
        return _find_module(text, arguments)
    path, function = Path(text), ""
    if not os.path.exists(path) and ":" in text:  # noqa: PTH110
        name, _, function = text.rpartition(":")
        path = Path(name)
    _check_file(path, text)
    if function and not function.isidentifier():
        raise ScriptError(
            f"{function!r} in {text!r} is not the name of a function", hint="write path.py:function"
        )
    return Target(
        kind=TargetKind.FUNCTION if function else TargetKind.SCRIPT,
        # A link keeps its name in what is shown, as it does in Python's own tracebacks.
        raw_path=os.fsencode(path.absolute()),
        raw_name=os.fsencode(path),
        label=as_text(text),
        function=function,
        raw_arguments=tuple(map(os.fsencode, arguments)),
    )


def _check_file(path: Path, text: str) -> None:
    # Unlike that of a `Path`, it raises nothing of links that lead nowhere and names too long.
    if not os.path.exists(path):  # noqa: PTH110
        near = sorted(other.name for other in path.parent.glob("*.py"))
        hint = f"files there: {', '.join(near[:8])}" if near else "check the path"
        raise ScriptError(f"there is no file {text!r}", hint=hint)
    if path.is_dir():
        raise ScriptError(
            f"{text!r} is a directory", hint="name the script in it, or a module with -m"
        )
    if not os.access(path, os.R_OK):
        raise ScriptError(f"{text!r} cannot be read", hint="check its permissions")


def _find_module(name: str, arguments: Sequence[str]) -> Target:
    # A module of the current folder, as `python -m` finds it; its parents are packages that must
    # not be imported here, so only the top one is looked for.
    top = name.partition(".")[0]
    has_local = Path(f"{top}.py").exists() or Path(top).is_dir()
    try:
        is_found = has_local or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        is_found = False
    if not is_found:
        raise ScriptError(
            f"there is no module {name!r}",
            hint="run from the folder that holds it, or name the script file without -m",
        )
    return Target(
        kind=TargetKind.MODULE,
        raw_path=os.fsencode(name),
        label=as_text(name),
        raw_arguments=tuple(map(os.fsencode, arguments)),
    )

"""Run a script to its end under a configuration, stored or newly tuned."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from breakeven.capture import EndRequest, TargetKind, find_target
from breakeven.errors import BreakevenError, UsageError, has_caveat
from breakeven.source import CONVERT
from breakeven.store import TUNED_FILE_NAME, Tuned, read_tuned, this_machine
from breakeven.units import NS_PER_S
from breakeven.verdict import Machine, Numerics

# Caveat code of a script whose CUDA calls ran on the CPU when it was measured.
_NEEDS_CUDA = "needs-cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """A script or module to run.

    Args:
        text: The script, or the module's name, as the user wrote it.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Whether it is a module, run as ``python -m`` does.
    """

    text: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def command(self, *program: str, options: Sequence[str] = ()) -> str:
        """Return a command line for the target that the user can copy."""
        words = [*program, *(["-m"] if self.is_module else []), self.text, *options]
        if self.arguments:
            dashes = [] if program == ("python",) else ["--"]
            words += [*dashes, *self.arguments]
        return shlex.join(words)


def check_runnable(target: RunTarget) -> None:
    """Check that the target exists and has an end.

    Raises:
        ScriptError: If there is no such file or module.
        UsageError: If it is a function, which breakeven would call again and again, or a notebook.
    """
    found = find_target(target.text, target.arguments, is_module=target.is_module)
    if found.kind is TargetKind.FUNCTION:
        raise UsageError(
            f"{target.text} is a function, and has no end to be run to",
            hint=f"name the script alone: breakeven run {found.path}",
        )
    if found.is_notebook:
        raise UsageError(
            f"{target.text} is a notebook, and breakeven run is for scripts",
            hint=f"{CONVERT} {target.text}",
        )


def stored_configuration(
    target: RunTarget,
    config: Path | None,
    *,
    is_exact_only: bool,
    machine: Callable[[str], Machine] | None = None,
) -> Tuned | None:
    """Return the stored configuration of the target, after checking that it fits this machine.

    Args:
        target: The target to run.
        config: The file; None for the one in the current folder, if it is for this target.
        is_exact_only: Accept only a configuration that keeps every bit of the training.
        machine: Returns this machine for the device that the step runs on.

    Returns:
        The configuration; None if no file was named and the folder has none for this target.

    Raises:
        StoredDataError: If the file cannot be read.
        BreakevenError: If it is for another target, machine, or other versions.
    """
    path = config or Path(TUNED_FILE_NAME)
    if config is None and not os.path.lexists(path):
        return None
    tuned = read_tuned(path)
    is_for_target = tuned.target == os.fsencode(target.text).decode(errors="backslashreplace")
    if not is_for_target and not target.is_module and "\0" not in tuned.target:
        stored = path.resolve().parent / tuned.target
        is_for_target = stored.resolve() == Path(target.text).resolve()
    if not is_for_target:
        if config is None:
            return None
        raise BreakevenError(
            f"{path} is for {tuned.target}, not for {target.text}",
            hint=f"make one for it: {target.command('breakeven', 'tune')}",
        )
    again = f"{target.command('breakeven', 'tune', options=['--force'])}"
    changes = machine_changes(tuned.machine, (machine or _machine_here)(tuned.device))
    if changes:
        raise BreakevenError(
            f"{path} is out of date: {'; '.join(changes)}",
            hint=f"tune it again: {again}, or run it as it is: {target.command('python')}",
        )
    if is_exact_only and tuned.evidence.numerics is not Numerics.EXACT:
        raise BreakevenError(
            f"{path} changes the numbers of the training, which --exact forbids: their class is "
            f"{tuned.evidence.numerics}",
            hint=f"drop --exact, or tune it again: {again} --exact",
        )
    return tuned


def machine_changes(then: Machine, now: Machine) -> tuple[str, ...]:
    """Return the differences between a configuration's machine and this one, in words."""
    return tuple(
        f"{name} was {getattr(then, name) or 'none'}, and is {getattr(now, name) or 'none'} here"
        for name in Machine.__struct_fields__
        if getattr(then, name) != getattr(now, name)
    )


def pays_after_s(target: RunTarget, tuned: Tuned, num_steps: int) -> float:
    """Return how many seconds of stock steps to run before compiling; 0 for none.

    Compiling starts at once only if the run is known to be long enough. Otherwise the script's own
    steps continue until they have lost as much time as compiling costs.

    Args:
        target: The target to run.
        tuned: Its configuration.
        num_steps: Steps of the run as the user gives them; 0 if not given.
    """
    evidence = tuned.evidence
    after_steps = evidence.pays_off_after_steps or 0
    is_seen = evidence.is_length_known is not None and tuned.arguments == target.arguments
    if is_seen and not num_steps:
        num_steps = evidence.num_steps
    if num_steps >= after_steps:
        return 0.0
    return after_steps * evidence.baseline_step_ns / NS_PER_S


def end_request(
    target: RunTarget, tuned: Tuned, *, num_steps: int, is_quiet: bool, pays_after_s: float = 0.0
) -> EndRequest:
    """Return the request that runs a script to its end.

    Args:
        target: The target to run.
        tuned: Its configuration.
        num_steps: Steps of the run; 0 if unknown.
        is_quiet: Suppress breakeven's own output.
        pays_after_s: Seconds of stock steps to run before compiling.
    """
    # Other arguments may change the step.
    is_same_step = pays_after_s and tuned.arguments == target.arguments
    return EndRequest(
        is_module=target.is_module,
        device=tuned.device,
        has_cuda=has_caveat(tuned.evidence.caveats, _NEEDS_CUDA),
        configuration=tuned.configuration,
        num_steps=num_steps,
        is_quiet=is_quiet,
        pays_after_s=pays_after_s,
        pays_after_steps=tuned.evidence.pays_off_after_steps or 0 if is_same_step else 0,
    )


def _machine_here(device: str) -> Machine:
    gpu = ""
    if device == "gpu":
        import torch  # slow, and only needed for the GPU's name

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return this_machine(gpu=gpu)

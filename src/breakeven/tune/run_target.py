"""Run a script to its end under the configuration that was found for it, or that is found now."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from breakeven.capture import EndRequest, TargetKind, find_target
from breakeven.errors import BreakevenError, UsageError, has_caveat
from breakeven.store import TUNED_FILE_NAME, Tuned, read_tuned, this_machine
from breakeven.units import NS_PER_S
from breakeven.verdict import Machine, Numerics

# The caveat of a script that was measured with its CUDA calls run by the CPU.
_NEEDS_CUDA = "needs-cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """What is to be run.

    Args:
        text: The script, or the module's name, as the user wrote it.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: It is a module, run as ``python -m`` does.
    """

    text: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def command(self, *program: str, options: Sequence[str] = ()) -> str:
        """Return a command line about the target, for a person to copy."""
        words = [*program, *(["-m"] if self.is_module else []), self.text, *options]
        if self.arguments:
            dashes = [] if program == ("python",) else ["--"]
            words += [*dashes, *self.arguments]
        return shlex.join(words)


def check_runnable(target: RunTarget) -> None:
    """Check that the target is there, and has an end.

    Raises:
        ScriptError: There is no such file or module.
        UsageError: It is a function, which breakeven would call again and again.
    """
    found = find_target(target.text, target.arguments, is_module=target.is_module)
    if found.kind is TargetKind.FUNCTION:
        raise UsageError(
            f"{target.text} is a function, and has no end to be run to",
            hint=f"name the script alone: breakeven run {found.path}",
        )


def stored_configuration(
    target: RunTarget,
    config: Path | None,
    *,
    is_exact_only: bool,
    machine: Callable[[str], Machine] | None = None,
) -> Tuned | None:
    """Return what a file says for the target, checked to hold for this machine.

    Args:
        target: What is to be run.
        config: The file; None for the one in the current folder, if it is for this target.
        is_exact_only: Take only what leaves every bit of the training as it is.
        machine: Returns this machine, given where the step runs.

    Returns:
        None where no file was named, and there is none for this target.

    Raises:
        StoredDataError: The file cannot be read back.
        BreakevenError: It is for another target, machine, or other versions.
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
    """Return what differs between the machine of a configuration and this one, for a person."""
    return tuple(
        f"{name} was {getattr(then, name) or 'none'}, and is {getattr(now, name) or 'none'} here"
        for name in Machine.__struct_fields__
        if getattr(then, name) != getattr(now, name)
    )


def pays_after_s(target: RunTarget, tuned: Tuned, num_steps: int) -> float:
    """Return after how many seconds of stock steps it pays to compile; 0 for at once.

    Compiling begins at once only where the run is known to be long enough. Otherwise the script's
    own steps go on until they have lost as much as compiling costs.

    Args:
        target: What is run.
        tuned: Under which configuration.
        num_steps: Steps of the run, as the user says; 0 where the user does not.
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
    """Return how a script is run to its end.

    Args:
        target: What is to be run.
        tuned: Under which configuration.
        num_steps: Steps that the run will have; 0 where that is not known.
        is_quiet: Write nothing of breakeven's own.
        pays_after_s: After how many seconds of stock steps it pays to compile.
    """
    # Under other arguments a step may be another one.
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
        import torch  # slow, and only needed to ask for the GPU's name

        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return this_machine(gpu=gpu)

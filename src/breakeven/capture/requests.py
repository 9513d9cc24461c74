"""What is asked for: what of the user's to run, how it is measured, and what it may change."""

from __future__ import annotations

import msgspec

from breakeven.capture.target import Target
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
        num_probe_steps: Run the script until it has taken so many steps, to see how long it is:
            with nothing replaced but, with ``has_cuda``, CUDA by the CPU; 0 for no probe.
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

"""The script's whole training as reports show it."""

from __future__ import annotations

import msgspec

from breakeven.verdict.results import Nanoseconds


class ProgramPart(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the script does between some of its steps.

    Args:
        file: The user's file.
        line: Its line.
        function: What it calls there; empty where that has no name.
        time_ns: Time per step, on this CPU.
    """

    file: str
    line: int
    function: str
    time_ns: Nanoseconds


class BetweenTime(msgspec.Struct, frozen=True, kw_only=True):
    """What is done between some of the steps, on a GPU.

    Args:
        device: Name of the GPU, as among the results.
        time_ns: Time per step.
        low_ns: Lower end of its 90 % interval; how often it comes is taken as it was seen.
        high_ns: Upper end.
    """

    device: str
    time_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds


class TrainingTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a whole training on one device.

    Args:
        device: Name of the device, as among the results.
        total_ns: From the beginning of the script to its last step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
    """

    device: str
    total_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds


class ProgramSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The script's whole training: what it does besides its steps, and what becomes of all of it.

    Args:
        startup_ns: From the beginning of the script to the end of its first step, on this CPU,
            without the import of torch.
        data_ns: Time of a step that waits for the next batch, on this CPU; a part of the step.
        other_ns: Time per step of what is done between some of the steps, on this CPU: rollouts,
            evaluations, checkpoints. 0 where nothing was seen; null where that cannot be told, as
            on a busy machine.
        other_low_ns: Lower end of its 90 % interval.
        other_high_ns: Upper end.
        step_fraction: Share of the training that the steps are, on this CPU, start-up aside.
        parts: What is done between the steps, the longest first.
        unevenness: Mean step over the median one: more than 1 where some take longer.
        speedup: Time of the training on the verdict's ``over`` divided by that on its ``device``,
            start-up aside.
        low: Lower end of its 90 % interval.
        high: Upper end.
        num_steps: Steps of the training; null where they were not asked about.
        times: Time of so many steps on each device that they fit, start-up included.
        between: What is done between the steps on GPUs, predicted from a recording of a part. On
            other devices, and without a recording, it is taken to stay on the CPU, and to take as
            long there as it does.
    """

    startup_ns: Nanoseconds
    data_ns: Nanoseconds
    other_ns: Nanoseconds | None
    other_low_ns: Nanoseconds
    other_high_ns: Nanoseconds
    step_fraction: float
    parts: tuple[ProgramPart, ...]
    unevenness: float
    speedup: float
    low: float
    high: float
    num_steps: int | None = None
    times: tuple[TrainingTime, ...] = ()
    between: tuple[BetweenTime, ...] = ()

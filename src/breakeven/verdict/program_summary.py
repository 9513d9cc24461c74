"""The script's whole training, as shown in reports."""

from __future__ import annotations

import msgspec

from breakeven.verdict.results import Nanoseconds


class ProgramPart(msgspec.Struct, frozen=True, kw_only=True):
    """Work of the script between some of its steps.

    Args:
        file: File of the user's code.
        line: Its line.
        function: The function called there; empty if it has no name.
        time_ns: Time per step, on this CPU.
    """

    file: str
    line: int
    function: str
    time_ns: Nanoseconds


class BetweenTime(msgspec.Struct, frozen=True, kw_only=True):
    """Work between some of the steps, on a GPU.

    Args:
        device: Name of the GPU, as among the results.
        time_ns: Time per step.
        low_ns: Lower end of its 90 % interval, which assumes that the work recurs as often as
            observed.
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
        total_ns: Time from the start of the script to the end of its last step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
    """

    device: str
    total_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds


class ProgramSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The script's whole training: the work outside its steps, and the total on each device.

    Args:
        startup_ns: Time from the start of the script to the end of its first step, on this CPU,
            without the import of torch.
        data_ns: Part of the step time spent waiting for the next batch, on this CPU.
        other_ns: Time per step of the work between some of the steps, on this CPU: rollouts,
            evaluations, checkpoints. 0 if there is none; null if unknown, as on a busy machine.
        other_low_ns: Lower end of its 90 % interval.
        other_high_ns: Upper end.
        step_fraction: Share of the training time spent in steps, on this CPU, without start-up.
        parts: The work between the steps, longest first.
        unevenness: Mean step divided by the median one; above 1 if some steps take longer.
        speedup: Time of the training on the verdict's ``over`` divided by that on its ``device``,
            without start-up.
        low: Lower end of its 90 % interval.
        high: Upper end.
        num_steps: Steps of the training; null if the user gave no length.
        times: Time of ``num_steps`` steps on each device that fits the step, with start-up.
        between: The work between the steps on GPUs, predicted from a recording of part of it.
            Without a recording, and on other devices, the work is assumed to stay on the CPU and to
            take as long as now.
        steps_per_epoch: Steps in a pass over the data of the script's DataLoader; null if unknown,
            and in older reports.
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
    steps_per_epoch: float | None = None

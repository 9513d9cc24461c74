"""The step at every point of a grid on every GPU, predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate import (
    MultiGpuSetup,
    StepPrediction,
    Strategy,
    build_program,
    model_size,
    phase_times,
    predict_multi_gpu,
    predict_steps,
)
from breakeven.sweep.grid import Values
from breakeven.trace import StepTrace

# Arrays of as many steps of a large network stay within some 100 MB.
_STEPS_AT_ONCE = 200

# What is predicted: a step by the values of its traced axes, and how many devices share it.
Predictions = dict[tuple[Values, int], tuple[StepPrediction, ...]]


def predict_grid(
    steps: Mapping[Values, StepTrace],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    *,
    nums_devices: Sequence[int] = (1,),
    strategy: Strategy = Strategy.DDP,
) -> Predictions:
    """Return each step on each device, in the order of the devices.

    Args:
        steps: Steps by the values of the traced axes.
        devices: GPUs.
        host: What issues the work.
        nums_devices: How many of a kind share a step, each with the batch of the step.
        strategy: How several share it.
    """
    # Points that differ in nothing that is traced share their step.
    distinct = {id(step): step for step in steps.values()}
    lone: dict[int, tuple[StepPrediction, ...]] = {}
    items = list(distinct.items())
    for first in range(0, len(items), _STEPS_AT_ONCE):
        some = items[first : first + _STEPS_AT_ONCE]
        flat = iter(predict_steps([step for _, step in some], devices, host))
        lone |= {key: tuple(next(flat) for _ in devices) for key, _ in some}
    found: Predictions = {(values, 1): lone[id(step)] for values, step in steps.items()}
    shared = [number for number in nums_devices if number > 1]
    if not shared:
        return found
    for values, step in steps.items():
        program, size = build_program(step), model_size(step)
        for index, device in enumerate(devices):
            times = phase_times(program, device, host)
            for number in shared:
                prediction = predict_multi_gpu(
                    step,
                    device,
                    host,
                    MultiGpuSetup(strategy=strategy, num_devices=number),
                    single=found[values, 1][index],
                    times=times,
                    size=size,
                )
                before = found.get((values, number), ())
                found[values, number] = (*before, prediction.step)
    return found

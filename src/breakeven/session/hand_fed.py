"""The step at other batch sizes of a script that feeds its batches by hand: all of it predicted."""

from __future__ import annotations

from breakeven.errors import Caveat
from breakeven.session.batch_sizes import (
    AXIS,
    LARGEST,
    Answer,
    cpu_curve,
    gpu_curves,
    powers_between,
)
from breakeven.session.compared_step import ComparedStep
from breakeven.timing import Estimate
from breakeven.trace import ScaledTrace, ScalingError, StepTrace, num_micro_batches, scaled_from_one
from breakeven.verdict import (
    NoCrossover,
    find_crossover,
)

# Beyond this factor from the one size that was measured, a time says nothing any more.
FARTHEST = 64


class HandFedSizes:
    """The step at batch sizes that nobody can set from outside.

    The recorded step is scaled along the dimension that is its batch; the time on this CPU goes on
    from the one size that was measured.

    Args:
        step: As it was recorded, for GPUs.
        cpu: Its time on this CPU.
    """

    def __init__(self, step: StepTrace, cpu: Estimate) -> None:
        self._step = step
        self._cpu = cpu
        # What to know of the answer.
        self.caveats: list[Caveat] = []
        self.scaled: ScaledTrace | None = None

    def search(self, compared: ComparedStep) -> Answer:
        """Return from which batch size the best GPU is faster than this CPU, and all curves.

        Args:
            compared: The step as it is, on this CPU and on the GPUs whose curves are wanted.
        """
        devices, best, host = compared.devices, compared.best.device, compared.host
        try:
            self.scaled = scaled_from_one(self._step)
        except ScalingError as error:
            return _none(error.message), ()
        base = self.scaled.first.batch_size
        assert base is not None, "a step is scaled from its batch size"
        # Of a step that accumulates gradients, each batch has a sample at least.
        least = num_micro_batches(self._step.events, self._step.facts.model_calls)
        steps = {size: self.scaled.at(size) for size in _sizes(base, least)}
        sizes, gpus = gpu_curves(steps, devices, best, host, largest_measured=base)
        cpu = cpu_curve(compared, {base: self._cpu}, sizes)
        self.caveats.append(predicted_sizes(base))
        return find_crossover(cpu, gpus[devices.index(best)]), (cpu, *gpus)


def predicted_sizes(base: int) -> Caveat:
    """Return what to know of other batch sizes than the one that the script has."""
    return Caveat(
        code="batch-sizes-predicted",
        message=f"the script feeds its batches by hand: only a batch of {base} was run. "
        "This CPU's times at other sizes are predicted from it, and the step on GPUs is "
        "scaled along the dimension that is its batch",
    )


def _none(because: str) -> NoCrossover:
    return NoCrossover(
        none_because="The script feeds its batches by hand, so their size cannot be set from "
        f"outside, and its recorded step cannot be scaled: {because}. If the script has an option "
        "for the batch size, check it at several values of that.",
        axis=AXIS,
    )


def _sizes(base: int, least: int) -> list[int]:
    """Return the script's own size and the powers of two around it, from the least on."""
    low, high = max(base // FARTHEST, least), max(min(base * FARTHEST, LARGEST), base)
    return sorted({base, *powers_between(low - 1, high + 1)})

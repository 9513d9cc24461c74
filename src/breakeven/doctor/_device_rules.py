"""Rules about what is on the device at all."""

from __future__ import annotations

from typing import ClassVar, final

from breakeven.doctor._rule import Case, Occurrence
from breakeven.trace import NEVER_ON_DEVICE


@final
class RaisesOnDevice:
    """DEV001: on a machine with a GPU this line raises.

    What it does:
        Finds lines that mix tensors of host and device, or turn a device tensor into a NumPy array.

    Why it costs time:
        It costs the run: the script stops there with ``Expected all tensors to be on the same
        device`` or ``can't convert cuda device type tensor to numpy``.

    Evidence:
        The traced step reached the line with its tensors placed as on a machine with a GPU.

    Fix:
        Move what is left on the host: ``.to(device)`` on the batch, the target, a mask, the
        module that was forgotten; ``.cpu()`` before ``.numpy()``.

    Known limits:
        Only the traced step is known; a line that runs later is not.
    """

    code: ClassVar[str] = "DEV001"
    cause: ClassVar[str] = "PART_ON_CPU"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that raises."""
        return tuple(
            Occurrence(
                title=f"on a GPU this line raises: {fault.message}",
                fix="move every tensor that it uses to the device, or back with .cpu()",
                location=fault.location,
                share_fraction=0.0,
            )
            for fault in case.trace.faults
        )


@final
class NeverOnDevice:
    """DEV002: the script never uses a GPU, even where there is one.

    What it does:
        Tells when no operator of the step runs on the device although one was available.

    Why it costs time:
        A GPU would be paid for and stay idle.

    Evidence:
        Users reported trainings that took days, with a GPU in the machine, because
        ``model.to(device)`` was missing.

    Fix:
        ``model.to(device)`` before the optimizer is made, and ``batch.to(device)`` in the loop.
        ``x.to(device)`` returns a copy: assign it.

    Known limits:
        A script that is meant for the CPU is reported too. Predictions for GPUs are made as if
        model and batches were moved.
    """

    code: ClassVar[str] = "DEV002"
    cause: ClassVar[str] = "NOT_ON_GPU"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence, without a line, when the script never uses a GPU."""
        if not any(caveat.code == NEVER_ON_DEVICE.code for caveat in case.trace.caveats):
            return ()
        return (
            Occurrence(
                title="the script never moves its model to a GPU",
                fix="model.to(device) before the optimizer is made, batch.to(device) in the loop",
                share_fraction=0.0,
            ),
        )

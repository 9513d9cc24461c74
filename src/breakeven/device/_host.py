"""What the host of a device spends to issue work."""

from __future__ import annotations

import msgspec


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU that runs the training script, as the cost model sees it. Times in nanoseconds.

    Args:
        id: ``here``, or the name of an entry of the shared table.
        name: Processor, as the operating system calls it.
        op_ns: One forward operator: Python, argument parsing and dispatcher, no autograd.
        autograd_ns: What recording it for backward adds.
        backward_ns: One operator of the backward pass, run by the autograd engine.
        foreach_ns: One ``_foreach`` call of an optimizer, without its tensors.
        foreach_tensor_ns: What each tensor adds to it.
        view_ns: An operator that only makes a view.
        source: The calibration that gave the figures: machine, date, torch version.
        log_sigma: Standard deviation of the logarithm of what the host spends on a step, predicted
            from these. By default that of a host that was measured.
    """

    id: str
    name: str
    op_ns: float
    autograd_ns: float
    backward_ns: float
    foreach_ns: float
    foreach_tensor_ns: float
    view_ns: float
    source: str
    # Of six small networks on one measured host, the predicted forward times lay within a factor
    # of 0.7 to 1.7 of the measured ones, whole steps closer.
    log_sigma: float = 0.25

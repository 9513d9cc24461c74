"""What the host of a device spends to issue work, and what was measured of it."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

# Id of the host that was measured on this machine, as opposed to one of a datasheet.
HERE = "here"


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU that runs the training script, as the cost model sees it. Times in nanoseconds.

    Args:
        id: ``here``, or the name of an entry of the shared table.
        name: Processor, as the operating system calls it.
        op_ns: One operator of a device: argument parsing and dispatcher, no autograd, no launch.
        python_ns: Python around an operator of a forward pass: modules and their wrappers.
        view_python_ns: Python around a view of a forward pass. Code that reshapes much, such as
            a transformer's, runs much Python of its own.
        autograd_ns: What recording it for backward adds.
        backward_ns: One operator of the backward pass, run by the autograd engine.
        backward_call_ns: One call of ``backward()``, whatever it runs.
        foreach_ns: One ``_foreach`` call of an optimizer, without its tensors.
        foreach_tensor_ns: What each tensor adds to it.
        view_ns: An operator that only makes a view.
        device_ns: What an operator of a device takes beyond one of the CPU: the part of ``op_ns``,
            ``backward_ns`` and ``foreach_ns`` that is not there on the CPU; 0 where unknown.
        module_ns: A call of a module that does nothing; 0 where unknown.
        step_ns: Python of a step outside of its operators: gradients set to zero, the call of
            the optimizer; 0 where no step was measured.
        forward_factor: What the forward pass of a measured step takes the host, over what the other
            costs make it.
        backward_factor: The same of the backward pass.
        optimizer_factor: The same of the update.
        source: The calibration that gave the figures: machine, date, torch version; then, after a
            semicolon, the assumption.
        assumption: How a device's share of an operator is known, where that was not measured
            with the rest.
        log_sigma: Standard deviation of the logarithm of what the host spends on a step, predicted
            from these.
        load_fraction: Part of its processors that other processes used while it was measured.
    """

    id: str
    name: str
    op_ns: float
    python_ns: float
    view_python_ns: float
    autograd_ns: float
    backward_ns: float
    backward_call_ns: float
    foreach_ns: float
    foreach_tensor_ns: float
    view_ns: float
    source: str
    device_ns: float = 0.0
    module_ns: float = 0.0
    step_ns: float = 0.0
    forward_factor: float = 1.0
    backward_factor: float = 1.0
    optimizer_factor: float = 1.0
    log_sigma: float = 0.25
    load_fraction: float = 0.0
    # Unset and not empty: the digest of a recording that was made before has no such field.
    assumption: str | UnsetType = UNSET

    @property
    def is_measured(self) -> bool:
        """Return whether the figures were measured on this machine."""
        return self.id == HERE


class HostFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One time that was measured, per call.

    Args:
        code: Stable identifier: ``op``, ``view``, ``module``, ``cuda_queued``, ...
        title: What was called, for a person.
        median_ns: Median of the rounds, in nanoseconds.
        low_ns: Tenth percentile of the rounds.
        high_ns: Ninetieth percentile.
        used_for: Which costs of the host it gives; empty where it is only shown.
    """

    code: str
    title: str
    median_ns: float
    low_ns: float
    high_ns: float
    used_for: str = ""


class HostCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """A measured host.

    Args:
        host: Its costs, as the model uses them.
        figures: What they were computed from, and more.
        num_rounds: Rounds, each of which measured every figure once.
        device_name: The CUDA device on which launches were measured too; empty without one.
    """

    host: HostSpec
    figures: tuple[HostFigure, ...]
    num_rounds: int
    device_name: str = ""

    def figure(self, code: str) -> HostFigure:
        """Return the figure called ``code``.

        Raises:
            KeyError: It was not measured.
        """
        for figure in self.figures:
            if figure.code == code:
                return figure
        raise KeyError(code)

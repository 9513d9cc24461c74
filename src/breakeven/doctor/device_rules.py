"""Rules about what is on the device at all."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar, final

from breakeven.doctor.device_part_rules import PART_RULES
from breakeven.doctor.device_source import (
    chooses_gpu,
    discarded_moves,
    forced_to_cpu,
    is_expected_to_fail,
    made_at,
    mentions_gpu,
    part_made_at,
    unused_choices,
)
from breakeven.doctor.rule import Case, Occurrence, Rule
from breakeven.doctor.timing_names import compares_devices
from breakeven.trace import NEVER_ON_DEVICE, DeviceFault, Location

_MOVE = "model.to(device) before the optimizer is made, batch.to(device) in the loop"


@final
class RaisesOnDevice:
    """DEV001: on a machine with a GPU this line raises.

    What it does:
        Finds lines that mix tensors of host and device, or turn a device tensor into a NumPy array.
        Where a whole module was left on the host, the line is that which makes it.

    Why it costs time:
        It costs the run: the script stops there with ``Expected all tensors to be on the same
        device`` or ``can't convert cuda device type tensor to numpy``.

    Evidence:
        The traced step reached the line with its tensors placed as on a machine with a GPU.

    Fix:
        Move what is left on the host: the batch, the target, a mask, the module that was forgotten;
        ``.cpu()`` before ``.numpy()``.

        ```python
        loss = criterion(model(x.to(device)), y)
        ```

        ```python
        loss = criterion(model(x.to(device)), y.to(device))
        ```

    Known limits:
        Only the traced step is known; a line that runs later is not. A line that a ``try`` around
        it expects to fail is left out, and so are the few operators that refuse tensors without
        dimensions of the host, which most take as numbers.
    """

    code: ClassVar[str] = "DEV001"
    cause: ClassVar[str] = "PART_ON_CPU"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that raises, and is not expected to."""
        found: dict[object, Occurrence] = {}
        for fault in case.trace.faults:
            if case.sources.is_at(fault.location, is_expected_to_fail):
                continue
            made = part_made_at(case.sources, fault.module) if fault.module else None
            one = _raising(fault) if made is None else _left_behind(fault, made)
            found.setdefault(one.location, one)
        return tuple(found.values())


def _raising(fault: DeviceFault) -> Occurrence:
    return Occurrence(
        title=f"on a GPU this line raises: {fault.message}",
        fix="move every tensor that it uses to the device, or back with .cpu()",
        evidence="the recorded step reached the line with its tensors placed as on a GPU",
        location=fault.location,
        share_fraction=0.0,
        is_error=True,
    )


def _left_behind(fault: DeviceFault, made: Location) -> Occurrence:
    """Return the occurrence of a module that stays on the host, at the line that makes it."""
    raising = fault.location
    where = "a line" if raising is None else f"line {raising.line} of {PurePath(raising.file).name}"
    return Occurrence(
        title=f"{fault.module} is made here and stays on the CPU; on a GPU {where} raises",
        fix="move it to the device too, or make it an attribute of the model before that is moved",
        evidence=f"{fault.message}; all parameters of the module are on the CPU",
        location=made,
        share_fraction=0.0,
        is_error=True,
    )


@final
class NeverOnDevice:
    """DEV002: the script has a GPU at hand and does not use it.

    What it does:
        Finds lines that move a tensor and drop the result (``x.to(device)`` returns a copy), a
        chosen device that nothing uses, and scripts that ask for a GPU and run nothing on it.

    Why it costs time:
        A GPU would be paid for and stay idle.

    Evidence:
        Users reported in public trainings that took days, with a GPU in the machine, because
        ``model.to(device)`` was missing.

    Fix:
        ``model.to(device)`` before the optimizer is made, and the batch in the loop; assign what
        ``.to`` returns for a tensor.

        ```python
        device = torch.device("cuda")
        for x, y in loader:
            x.to(device)
            loss = criterion(model(x), y)
        ```

        ```python
        device = torch.device("cuda")
        model.to(device)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = criterion(model(x), y)
        ```

    Known limits:
        A script that never mentions a GPU, or that was told by an option to stay on the CPU, is
        taken as meant. Predictions for GPUs are made as if model and batches were moved.
    """

    code: ClassVar[str] = "DEV002"
    cause: ClassVar[str] = "NOT_ON_GPU"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line at fault, or one without a line."""
        is_never = any(caveat.code == NEVER_ON_DEVICE.code for caveat in case.trace.caveats)
        if not is_never and not case.trace.faults:
            return ()
        found = [
            _unused(
                location,
                "a tensor is moved to the GPU and the result dropped: the tensor stays where it is",
                "assign it: x = x.to(device)",
                "the statement is a call of .to() or .cuda() alone",
            )
            for location in discarded_moves(case.sources)
        ]
        if is_never:
            found += _never_moved(case, tuple(unused_choices(case.sources)))
        if found or not is_never or not _is_at_fault(case):
            return tuple(found)
        return (
            _unused(
                next(forced_to_cpu(case.sources), None),
                "the script never moves its model to a GPU",
                _MOVE,
                "no operator of the step runs on the GPU",
            ),
        )


def _never_moved(case: Case, choices: tuple[Location, ...]) -> list[Occurrence]:
    """Return where a chosen GPU is left unused: the model's line, or that of the choice."""
    if not choices:
        return []
    calls = case.facts.model_calls
    model = made_at(case.sources, calls[0].model) if calls else None
    return [
        _unused(
            model or choices[0],
            "a GPU is chosen, and nothing is ever moved to it",
            _MOVE,
            "no operator of the step runs on the GPU, and nothing uses what line "
            f"{choices[0].line} chooses",
        )
    ]


def _unused(location: Location | None, title: str, fix: str, evidence: str) -> Occurrence:
    return Occurrence(
        title=title, fix=fix, evidence=evidence, location=location, share_fraction=0.0
    )


def _is_at_fault(case: Case) -> bool:
    """Return whether a script without a GPU meant to use one; unknown files may have."""
    if not case.sources.files:
        return True
    # A comparison that begins with the CPU is cut off before it comes to the GPU.
    is_meant = chooses_gpu(case.sources) or compares_devices(case.sources)
    return mentions_gpu(case.sources) and not is_meant


DEVICE_RULES: tuple[Rule, ...] = (RaisesOnDevice(), NeverOnDevice(), *PART_RULES)

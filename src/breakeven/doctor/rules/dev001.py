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

from __future__ import annotations

from pathlib import PurePath

from breakeven.doctor.device_source import is_expected_to_fail, made_at
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.trace import DeviceFault, Location

CAUSE = "PART_ON_CPU"


def detect(case: Case) -> Found:
    found: dict[object, Occurrence] = {}
    for fault in case.trace.faults:
        if case.sources.is_at(fault.location, is_expected_to_fail):
            continue
        made = made_at(case.sources, fault.module) if fault.module else None
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

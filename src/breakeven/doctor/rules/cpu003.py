"""CPU003: the CPU computes with subnormal numbers.

What it does:
    Counts values of parameters and gradients that are not 0 but smaller than the smallest
    normal float, and compares the step with one that takes such values as 0.

Why it costs time:
    Most processors handle these numbers in microcode, at some hundred cycles for an operation.
    GPUs compute with them at full speed.

Evidence:
    The measured step with ``torch.set_flush_denormal(True)`` against the step as it is.

Fix:
    Take them as 0.

    ```python
    train(model)
    ```

    ```python
    torch.set_flush_denormal(True)
    train(model)
    ```

Known limits:
    Activations are not counted. Only x86 processors with SSE3 and some Arm processors have the
    switch; it holds for the thread that sets it and those started after.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.step_times import faster_trial
from breakeven.simulate import Side
from breakeven.timing import CpuSetting, CpuTrial
from breakeven.units import format_percent

CAUSE = "DENORMALS"

_MIN_SUBNORMAL_FRACTION = 0.01


def detect(case: Case) -> Found:
    fraction = case.facts.subnormal_fraction
    was_tried = case.cpu is not None and any(map(_flushes, case.cpu.trials))
    faster = faster_trial(case.cpu, _flushes)
    if faster is None and (was_tried or fraction < _MIN_SUBNORMAL_FRACTION):
        return
    counted = f"{format_percent(fraction)} of parameters and gradients are subnormal"
    known = (counted if fraction > 0 else "", faster.evidence if faster else "")
    yield Occurrence(
        title="the CPU computes with subnormal numbers",
        fix="torch.set_flush_denormal(True) before the first step",
        evidence="; ".join(filter(None, known)),
        gain=faster.gain if faster else None,
        side=Side.CPU,
    )


def _flushes(trial: CpuTrial) -> bool:
    return trial.changes(CpuSetting.FLUSH_DENORMAL)

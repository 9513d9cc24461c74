"""CPU004: convolutions on the CPU are faster with channels last.

What it does:
    Compares the step as it is with the same step in channels-last layout, both measured on this
    machine.

Why it costs time:
    The CPU's convolutions work on blocks of channels; other layouts are converted before and
    after.

Evidence:
    The measured step in the other layout.

Fix:
    Convert the model once, and each batch.

    ```python
    model = ResNet()
    ```

    ```python
    model = ResNet().to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    ```

Known limits:
    Measured on this machine; other processors differ. The weights alone are converted for
    that: convolutions hand their layout on, but the first of them converts its batch.
"""

from __future__ import annotations

from breakeven.doctor.events import is_convolution
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.step_times import faster_trial
from breakeven.simulate import Side
from breakeven.timing import CpuSetting

CAUSE = "CPU_LAYOUT"


def detect(case: Case) -> Found:
    faster = faster_trial(case.cpu, lambda trial: trial.changes(CpuSetting.CHANNELS_LAST))
    if faster is not None and any(map(is_convolution, case.trace.ops)):
        yield Occurrence(
            title="convolutions on the CPU are faster with channels last",
            fix="model.to(memory_format=torch.channels_last), and the same for each batch",
            evidence=faster.evidence,
            gain=faster.gain,
            side=Side.CPU,
        )

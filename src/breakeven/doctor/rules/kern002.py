"""KERN002: fixed convolution shapes, and cuDNN chooses by rule of thumb.

What it does:
    Reports when convolutions take much of the step on the device, their shapes are the same in
    every recorded step, and ``torch.backends.cudnn.benchmark`` is off, its default.

Why it costs time:
    cuDNN has several algorithms for a convolution. By default a rule of thumb chooses; with
    the switch on, torch tries them once for each shape and keeps the fastest.

Evidence:
    In public reports steps became 1.4 to 2.4 times faster, 2.00 to 1.42 s and 60 to 25
    minutes per epoch, on Volta GPUs and older ones. On newer ones the rule of thumb is
    mostly right.

Fix:
    Switch it on before the first step.

    ```python
    model = Net().cuda()
    ```

    ```python
    torch.backends.cudnn.benchmark = True
    model = Net().cuda()
    ```

Known limits:
    No gain is simulated: which algorithm the rule of thumb takes is not known, so kernels are
    costed as the fastest. Results may differ in the last digits from run to run.
"""

from __future__ import annotations

from breakeven.cost import Family
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.step_times import DevicePace, device_times_ns
from breakeven.units import format_percent

CAUSE = "CUDNN_BENCH_OFF"

# Where convolutions take less, a faster one does not show.
_MIN_CONVOLUTION_FRACTION = 0.3
# Two steps of equal shapes are needed to say that shapes are fixed.
_MIN_STEPS = 2


def detect(case: Case) -> Found:
    facts = case.facts
    are_fixed = facts.num_convolution_shapes == 1 and facts.num_steps >= _MIN_STEPS
    is_of_cudnn = case.device.vendor == "nvidia"
    if case.trace.settings.cudnn_benchmark or not are_fixed or not is_of_cudnn:
        return
    times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
    if not times:
        return
    pace = DevicePace(case)
    fraction = pace.fraction(sum(times.values()))
    if not pace.is_device_bound() or fraction < _MIN_CONVOLUTION_FRACTION:
        return
    yield Occurrence(
        title="convolution shapes are fixed, and cuDNN does not search for the fastest",
        fix="torch.backends.cudnn.benchmark = True before the first step",
        evidence=f"convolutions take {format_percent(fraction)} of what GPU and launches "
        f"take, in the same shapes in all {facts.num_steps} recorded steps; "
        "cudnn.benchmark is off",
        events=tuple(times),
    )

"""Rules about the step on the CPU that it was measured on."""

from __future__ import annotations

from typing import ClassVar, Final, final

from breakeven.cost import Family
from breakeven.doctor.cpu_trials import as_measured, faster_trial, measured_gain, trials_of
from breakeven.doctor.events import host_ns
from breakeven.doctor.operators import is_convolution
from breakeven.doctor.rule import Case, KnownGain, Occurrence, Rule
from breakeven.doctor.thread_rules import MoreThreadsThanCores, TooManyThreads
from breakeven.simulate import Side
from breakeven.trace import Op
from breakeven.units import format_duration, format_percent

_MIN_SUBNORMAL_FRACTION = 0.01
# Part of the operators' time from which products are what the CPU is busy with.
_MIN_PRODUCT_FRACTION = 0.5
_MIN_EAGER_FRACTION = 0.5
_PRODUCTS: Final = (Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION)
# What a compiler merges into the loops of its neighbours.
_FUSABLE: Final = (Family.ELEMENTWISE, Family.REDUCTION, Family.NORMALIZATION, Family.SOFTMAX)


@final
class Denormals:
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

    code: ClassVar[str] = "CPU003"
    cause: ClassVar[str] = "DENORMALS"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when flushing is faster, or untried and there are many."""
        cpu, fraction = case.cpu, case.facts.subnormal_fraction
        tried = () if cpu is None else trials_of(cpu, "flush-denormal")
        trial = None if cpu is None else faster_trial(cpu, tried)
        if trial is None and (tried or fraction < _MIN_SUBNORMAL_FRACTION):
            return ()
        counted = f"{format_percent(fraction)} of parameters and gradients are subnormal"
        measured = as_measured(cpu, trial) if cpu is not None and trial is not None else ""
        known = (counted if fraction > 0 else "", measured)
        return (
            Occurrence(
                title="the CPU computes with subnormal numbers",
                fix="torch.set_flush_denormal(True) before the first step",
                evidence="; ".join(filter(None, known)),
                gain=measured_gain(cpu, trial) if cpu is not None and trial is not None else None,
                side=Side.CPU,
            ),
        )


@final
class CpuLayout:
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

    code: ClassVar[str] = "CPU004"
    cause: ClassVar[str] = "CPU_LAYOUT"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when the measured step in the other layout is faster."""
        cpu = case.cpu
        if cpu is None or not any(is_convolution(op) for op in case.trace.ops):
            return ()
        trial = faster_trial(cpu, trials_of(cpu, "channels_last"))
        if trial is None:
            return ()
        return (
            Occurrence(
                title="convolutions on the CPU are faster with channels last",
                fix="model.to(memory_format=torch.channels_last), and the same for each batch",
                evidence=as_measured(cpu, trial),
                gain=measured_gain(cpu, trial),
                side=Side.CPU,
            ),
        )


@final
class CpuPrecision:
    """CPU005: the processor multiplies bfloat16 in hardware, and the step is in float32.

    What it does:
        Tells when matrix products and convolutions in float32 take most of the operators' time on
        a processor with AMX or AVX512-BF16.

    Why it costs time:
        Such processors multiply bfloat16 at 2 to 16 times the rate of float32 on paper.

    Evidence:
        The processor's features, and the operators' times in the recorded step.

    Fix:
        Autocast works on the CPU too.

        ```python
        loss = criterion(model(x), y)
        ```

        ```python
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        ```

    Known limits:
        Nothing is measured: the gain is at most the products' share of the step, and may be none.
    """

    code: ClassVar[str] = "CPU005"
    cause: ClassVar[str] = "CPU_PRECISION"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when products in float32 are what the CPU is busy with."""
        cpu = case.cpu
        if cpu is None or not cpu.has_bf16 or case.trace.settings.autocast_dtype:
            return ()
        total_ns = sum(op.host_ns for op in case.trace.ops)
        events = _float32_products(case)
        products_ns = sum(host_ns(case.trace.events[index]) for index in events)
        if total_ns <= 0 or products_ns < _MIN_PRODUCT_FRACTION * total_ns:
            return ()
        share = min(1.0, products_ns / total_ns)
        return (
            Occurrence(
                title=f"{cpu.name} multiplies bfloat16 in hardware, the step is in float32",
                fix='torch.autocast("cpu", dtype=torch.bfloat16) where it trains on the CPU',
                evidence=f"{len(events)} products in float32 take {format_percent(share)} of the "
                "operators' time on this CPU",
                events=tuple(events),
                gain=KnownGain(fraction=0.0, low_fraction=0.0, high_fraction=share),
                share_fraction=share,
                side=Side.CPU,
            ),
        )


@final
class EagerOverhead:
    """CPU006: on the CPU most of the step is spent on calling operators.

    What it does:
        Multiplies the number of operators with what Python, the dispatcher and autograd take for
        one on this machine, and compares with the measured step.

    Why it costs time:
        Each operator costs a microsecond or more before it computes anything. With small tensors
        that is most of the step, on the CPU as on a GPU.

    Evidence:
        The cost of one operator, measured on this machine, and the measured step.

    Fix:
        Fewer operators: ``torch.compile`` merges elementwise ones, ``fused=True`` updates all
        parameters at once, a larger batch makes each one count.

        ```python
        optimizer = torch.optim.Adam(model.parameters())
        ```

        ```python
        model = torch.compile(model)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        ```

    Known limits:
        The gain shown is the share of the operators that a compiler can merge; its interval goes
        from nothing to all of the calls' time. Compiled code checks its assumptions in each call,
        which took some 0.3 ms in one public report.
    """

    code: ClassVar[str] = "CPU006"
    cause: ClassVar[str] = "EAGER_OVERHEAD"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when calls take half of the measured step."""
        cpu, ops = case.cpu, case.trace.ops
        if cpu is None or cpu.dispatch_ns <= 0 or cpu.estimate.value_ns <= 0:
            return ()
        calls_ns = len(ops) * cpu.dispatch_ns
        share = calls_ns / cpu.estimate.value_ns
        if share < _MIN_EAGER_FRACTION or case.trace.settings.is_compiled:
            return ()
        share = min(1.0, share)
        mergeable = _mergeable_fraction(case)
        return (
            Occurrence(
                title=f"on the CPU calling {len(ops)} operators takes "
                f"{format_percent(share)} of the step",
                fix="torch.compile, fused=True in the optimizer, a larger batch",
                evidence=f"{len(ops)} operators at {format_duration(cpu.dispatch_ns)} each, in a "
                f"step of {format_duration(cpu.estimate.value_ns)}",
                gain=KnownGain(fraction=share * mergeable, low_fraction=0.0, high_fraction=share),
                share_fraction=share,
                side=Side.CPU,
            ),
        )


def _float32_products(case: Case) -> list[int]:
    found: list[int] = []
    for index, lowering in enumerate(case.program.lowerings):
        event = case.trace.events[index]
        if lowering is None or not isinstance(event, Op):
            continue
        is_product = any(kernel.family in _PRODUCTS for kernel in lowering.kernels)
        if is_product and any(spec.dtype == "float32" for spec in event.inputs):
            found.append(index)
    return found


def _mergeable_fraction(case: Case) -> float:
    """Return the part of the operators that a compiler can merge with their neighbours."""
    lowered = [lowering for lowering in case.program.lowerings if lowering is not None]
    mergeable = [
        lowering
        for lowering in lowered
        if all(kernel.family in _FUSABLE for kernel in lowering.kernels)
    ]
    return len(mergeable) / len(lowered) if lowered else 0.0


CPU_RULES: tuple[Rule, ...] = (
    TooManyThreads(),
    MoreThreadsThanCores(),
    Denormals(),
    CpuLayout(),
    CpuPrecision(),
    EagerOverhead(),
)

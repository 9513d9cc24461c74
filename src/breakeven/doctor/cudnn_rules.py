"""Rules about cuDNN's search for the fastest convolution."""

from __future__ import annotations

from typing import ClassVar, final

from breakeven.cost import Family
from breakeven.doctor.device_times import DevicePace, device_times_ns
from breakeven.doctor.rule import Case, Occurrence
from breakeven.doctor.source import is_constant
from breakeven.doctor.source_lines import assigned_at
from breakeven.trace import LoaderFacts, RunFacts
from breakeven.units import format_percent

# Where convolutions take less, a faster one does not show.
_MIN_CONVOLUTION_FRACTION = 0.3
# Two steps of equal shapes are needed to say that shapes are fixed.
_MIN_STEPS = 2
# A smaller last batch is one more shape, searched once.
_MIN_VARYING_SHAPES = 2
# A script that slices its data has no loader to ask; in so few steps of it an end is unlikely.
_FEW_STEPS = 3


@final
class BenchmarkOff:
    """KERN002: fixed convolution shapes, and cuDNN chooses by rule of thumb.

    What it does:
        Tells when convolutions take much of the step on the device, their shapes are the same in
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

    code: ClassVar[str] = "KERN002"
    cause: ClassVar[str] = "CUDNN_BENCH_OFF"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence, without a line, when the search would pay."""
        facts = case.facts
        are_fixed = facts.num_convolution_shapes == 1 and facts.num_steps >= _MIN_STEPS
        is_of_cudnn = case.device.vendor == "nvidia"
        if case.trace.settings.cudnn_benchmark or not are_fixed or not is_of_cudnn:
            return ()
        times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
        if not times:
            return ()
        pace = DevicePace(case)
        fraction = pace.fraction(sum(times.values()))
        if not pace.is_device_bound() or fraction < _MIN_CONVOLUTION_FRACTION:
            return ()
        return (
            Occurrence(
                title="convolution shapes are fixed, and cuDNN does not search for the fastest",
                fix="torch.backends.cudnn.benchmark = True before the first step",
                evidence=f"convolutions take {format_percent(fraction)} of what GPU and launches "
                f"take, in the same shapes in all {facts.num_steps} recorded steps; "
                "cudnn.benchmark is off",
                events=tuple(times),
            ),
        )


@final
class BenchmarkVarying:
    """KERN003: cuDNN searches anew for each of many shapes.

    What it does:
        Tells when ``torch.backends.cudnn.benchmark`` is on and convolutions have new shapes in one
        step after another.

    Why it costs time:
        For each new shape torch runs all algorithms that cuDNN has, with their workspaces, before
        it goes on. That pays if the shape comes again a hundred times.

    Evidence:
        In public reports forward passes took 0.6 to 2.3 s with the search and 0.02 s without.

    Fix:
        Switch it off, or bring inputs to a few sizes: pad, crop, sort by length.

        ```python
        torch.backends.cudnn.benchmark = True
        ```

        ```python
        torch.backends.cudnn.benchmark = False
        ```

    Known limits:
        No gain is simulated: how often a shape comes again after the recorded steps is not known.
    """

    code: ClassVar[str] = "KERN003"
    cause: ClassVar[str] = "CUDNN_BENCH_VARY"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence, at the line that switches the search on."""
        facts = case.facts
        varies = facts.num_convolution_shapes >= _num_varying_shapes(facts)
        is_of_cudnn = case.device.vendor == "nvidia"
        if not case.trace.settings.cudnn_benchmark or not varies or not is_of_cudnn:
            return ()
        switched = assigned_at(
            case.sources, "cudnn.benchmark", lambda value: not is_constant(value, False)
        )
        times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
        return (
            Occurrence(
                title="cuDNN searches for the fastest convolution again at each new shape",
                fix="torch.backends.cudnn.benchmark = False, or pad inputs to a few sizes",
                evidence=f"convolutions of {facts.num_convolution_shapes} different shapes in "
                f"{facts.num_steps} recorded steps; cudnn.benchmark is on",
                location=switched or facts.shapes_vary_at,
                events=tuple(times),
            ),
        )


def _num_varying_shapes(facts: RunFacts) -> int:
    """Return from how many shapes on they vary by more than a smaller last batch."""
    if facts.loaders:
        has_remainder = any(map(_has_smaller_last_batch, facts.loaders))
    else:
        has_remainder = facts.num_steps > _FEW_STEPS
    return _MIN_VARYING_SHAPES + int(has_remainder)


def _has_smaller_last_batch(loader: LoaderFacts) -> bool:
    return loader.batch_size < 1 or loader.num_samples % loader.batch_size != 0

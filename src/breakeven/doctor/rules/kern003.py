"""KERN003: cuDNN searches anew for each of many shapes.

What it does:
    Reports when ``torch.backends.cudnn.benchmark`` is on and convolutions have new shapes in one
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

from __future__ import annotations

from breakeven.cost import Family
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.source_lines import assigned_at
from breakeven.doctor.step_times import device_times_ns
from breakeven.source import is_constant
from breakeven.trace import LoaderFacts, RunFacts

CAUSE = "CUDNN_BENCH_VARY"

# A smaller last batch is one more shape, searched once.
_MIN_VARYING_SHAPES = 2
# A script that slices its data has no loader to ask; in so few steps of it an end is unlikely.
_FEW_STEPS = 3


def detect(case: Case) -> Found:
    facts = case.facts
    varies = facts.num_convolution_shapes >= _num_varying_shapes(facts)
    is_of_cudnn = case.device.vendor == "nvidia"
    if not case.trace.settings.cudnn_benchmark or not varies or not is_of_cudnn:
        return
    switched = assigned_at(
        case.sources, "cudnn.benchmark", lambda value: not is_constant(value, False)
    )
    times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
    yield Occurrence(
        title="cuDNN searches for the fastest convolution again at each new shape",
        fix="torch.backends.cudnn.benchmark = False, or pad inputs to a few sizes",
        evidence=f"convolutions of {facts.num_convolution_shapes} different shapes in "
        f"{facts.num_steps} recorded steps; cudnn.benchmark is on",
        location=switched or facts.shapes_vary_at,
        events=tuple(times),
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

"""Settings for torch's kernels, threads, memory, optimizers and profiler ranges."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import (
    LEAST_GAIN,
    NO_PRODUCT,
    SHORT_OP_NS,
    Count,
    Setting,
    StepFacts,
)
from breakeven.trace import Configuration
from breakeven.units import format_percent
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    import torch

    from breakeven.settings.in_effect import configured

# Above this fraction of subnormal values, their arithmetic takes measurable time.
_SUBNORMAL_FRACTION = 0.001
# A subnormal number: below the smallest normal number of float64.
_SUBNORMAL = 1e-310
# A page fault enters the kernel, which finds, zeroes and maps a page.
# Source: ResNet-18 at batch 64 on two cores, 62,000 faults and 161 ms of system time per step.
_FAULT_NS = 2_600.0
# Dimensions of the weights of a 2-d convolution: channels out, channels in, height, width.
_NUM_DIMENSIONS = 4
_NO_CHANNELS_FIRST = "no two-dimensional convolution has its channels first"
# One operator opens a range and another closes it; an update has a range, and so has zero_grad.
_RANGES_NS = 20_000.0


def is_flushing_denormals() -> bool:
    """Whether this thread flushes subnormal numbers to zero; torch has no query for it."""
    import torch

    return _SUBNORMAL * torch.ones((), dtype=torch.float64).item() == 0.0


def _why_not_flushed(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if facts.calls("torch.set_flush_denormal"):
        return "the script sets it itself"
    if facts.trace.facts.subnormal_fraction < _SUBNORMAL_FRACTION:
        return "weights and gradients hold no subnormal numbers"
    return None


def _flush_denormals(run: configured) -> Count:
    """Flush subnormal numbers; new threads inherit the setting from the thread that starts them."""
    import torch

    run.callback(torch.set_flush_denormal, is_flushing_denormals())
    torch.set_flush_denormal(True)
    return lambda _: int(is_flushing_denormals())


def _gain_of_memory(facts: StepFacts, value: object = True) -> float:
    """Return the predicted share of the step spent on page faults, at most 0.5."""
    return min(0.5, _FAULT_NS * facts.page_faults / facts.step_ns)


def _why_not_kept(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if _gain_of_memory(facts) < LEAST_GAIN:
        return f"a step gets {facts.page_faults:.0f} pages from the system: too few to matter"
    return None


def _keep_memory(run: configured) -> Count:
    from breakeven.configure import keep_freed_memory

    is_kept = keep_freed_memory()
    return lambda _: int(is_kept)


def _thread_counts(facts: StepFacts) -> list[int]:
    cores = max(1, facts.num_cores)
    return sorted({1, max(1, cores // 2), cores})


def _why_no_threads(facts: StepFacts, current: Configuration, num_threads: int) -> str | None:
    if facts.calls("torch.set_num_threads"):
        return "the script sets its threads itself"
    if current.fast_step and facts.generates_steps:
        return "a generated step runs on one core"
    if num_threads == (current.num_threads or facts.num_threads):
        return "the step already uses that"
    return None


def _threads_gain(facts: StepFacts, num_threads: int) -> float:
    """Return the measured gain if this count was tried, else a guess from the operators' length."""
    tried_ns = facts.steps_ns.get(num_threads)
    if tried_ns is not None:
        return max(0.0, 1.0 - tried_ns / facts.step_ns)
    if num_threads > facts.num_threads:
        return 0.2 if facts.op_ns > SHORT_OP_NS else 0.0
    return 0.3 * (1.0 - facts.op_ns / SHORT_OP_NS) if facts.op_ns < SHORT_OP_NS else 0.0


def _set_threads(run: configured) -> Count:
    import torch

    num_threads = run.wanted.num_threads
    run.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(num_threads)
    return lambda _: int(torch.get_num_threads() == num_threads)


def _why_no_tf32(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if facts.trace.settings.allow_tf32_matmul:
        return "the script allows TF32 already"
    return None if facts.has_products else NO_PRODUCT


def _allow_tf32(run: configured) -> Count:
    """Allow TF32 unless the script sets another precision."""
    import torch

    run.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")
    run.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    torch.backends.cudnn.allow_tf32 = True
    return lambda _: int(torch.get_float32_matmul_precision() == "high")


def _why_no_search(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if facts.trace.settings.cudnn_benchmark:
        return "the script has it on already"
    if not facts.has_convolution:
        return "the step has no convolution"
    if facts.trace.facts.num_convolution_shapes > 1:
        return "shapes change from step to step, and cuDNN would search again for each new one"
    return None


def _search_algorithms(run: configured) -> Count:
    import torch

    run.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    torch.backends.cudnn.benchmark = True
    return lambda _: int(torch.backends.cudnn.benchmark)


def _put_channels_last(run: configured) -> Count:
    """Put the weights of each new optimizer into channels-last memory.

    Convolutions pass the layout of their weights on, so batches need no conversion. Values and
    shapes do not change; weights keep the layout after the context is left.
    """
    import torch

    from breakeven.configure import updated_by

    num_changed = 0

    def change(optimizer: torch.optim.Optimizer) -> None:
        nonlocal num_changed
        for parameter in updated_by(optimizer):
            if parameter.dim() == _NUM_DIMENSIONS and not parameter.is_contiguous(
                memory_format=torch.channels_last
            ):
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
                num_changed += 1

    run.call_after_making(torch.optim.Optimizer, change)
    return lambda _: num_changed


def _why_not_fused(facts: StepFacts, current: Configuration, value: object) -> str | None:
    own = [one for one in facts.trace.facts.optimizers if one.is_from_torch]
    if not own:
        return "the step has no optimizer of torch"
    if all(one.fused is not None or one.foreach is not None for one in own):
        return "the script chooses the implementation itself"
    return None


def _fuse(run: configured) -> Count:
    """Let torch's optimizers run their fused implementation.

    An optimizer stays as the script makes it in three cases: the script names an implementation or
    ``differentiable``; the class has no ``fused`` or overrides ``step``; or a parameter is not
    floating point.
    """
    import torch

    from breakeven.configure import updated_by

    num_chosen = 0

    def choose(optimizer: torch.optim.Optimizer) -> None:
        nonlocal num_chosen
        all_options = (optimizer.defaults, *optimizer.param_groups)
        tensors = [*updated_by(optimizer)]
        if (
            "fused" in optimizer.defaults
            and inspect.unwrap(type(optimizer).step).__module__.startswith("torch.optim.")
            and all(one.get("fused") is one.get("foreach") is None for one in all_options)
            and not optimizer.defaults.get("differentiable")
            and tensors
            and all(tensor.is_floating_point() for tensor in tensors)
        ):
            for options in all_options:
                options["fused"] = True
            num_chosen += 1

    # Every optimizer calls this before it makes its state.
    run.call_after_making(torch.optim.Optimizer, choose)
    return lambda _: num_chosen


def _gain_of_ranges(facts: StepFacts, value: object = True) -> float:
    return min(0.3, _RANGES_NS / facts.step_ns)


def _why_not_skipped(facts: StepFacts, current: Configuration, value: object) -> str | None:
    gain = _gain_of_ranges(facts)
    return f"it would save {format_percent(gain)} of the step" if gain < LEAST_GAIN else None


def _skip_ranges(run: configured) -> Count:
    """Skip profiler ranges while no profiler runs.

    Every ``optimizer.step()``, ``zero_grad()`` and batch fetch opens a range. Each takes some
    10 µs, since dispatcher operators enter and leave it.
    """
    import torch
    import torch.autograd.profiler

    original = torch.autograd.profiler.record_function
    num_skipped = 0

    class record_function(original):  # noqa: N801 - torch's own name
        """A range that opens only while a profiler runs."""

        def __init__(self, name: str, args: str | None = None) -> None:
            nonlocal num_skipped
            super().__init__(name, args)
            self._is_seen = torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]
            num_skipped += not self._is_seen

        def __enter__(self) -> Any:
            return super().__enter__() if self._is_seen else self

        def __exit__(self, *error: Any) -> None:
            if self._is_seen:
                super().__exit__(*error)

    # torch and libraries look the class up at each use.
    run.replace(torch.autograd.profiler, "record_function", record_function)
    return lambda _: num_skipped


SETTINGS = (
    Setting(
        name="flushes_denormals",
        meaning="the processor takes subnormal numbers as zero",
        numerics=Numerics.REORDERED,
        family="flush-denormal",
        title="subnormal numbers flushed to zero",
        undo="torch.set_flush_denormal(False)",
        apply=_flush_denormals,
        only_on="cpu",
        why_not=_why_not_flushed,
        # Arithmetic on subnormal operands takes some 100 cycles.
        gain=lambda facts, _: min(0.9, 10.0 * facts.trace.facts.subnormal_fraction),
    ),
    Setting(
        name="keeps_freed_memory",
        meaning="the process keeps memory that is freed",
        note=", for the tensors of the next step, with glibc",
        numerics=Numerics.EXACT,
        family="keep-memory",
        title="freed memory kept for the next step",
        undo="it ends with the process of the run",
        apply=_keep_memory,
        why_not=_why_not_kept,
        gain=_gain_of_memory,
    ),
    Setting(
        name="num_threads",
        meaning="torch's threads within an operator",
        note=": one, half of the processors, all",
        numerics=Numerics.REORDERED,
        family="threads",
        title=lambda _, count: f"{count} intra-op thread{'' if count == 1 else 's'}",
        undo="the run sets torch.set_num_threads back; other processes never see it",
        apply=_set_threads,
        values=_thread_counts,
        only_on="cpu",
        why_not=_why_no_threads,
        gain=_threads_gain,
    ),
    Setting(
        name="allows_tf32",
        meaning="float32 matrix products may use TF32",
        note=", with 10 bits of mantissa, on tensor cores",
        numerics=Numerics.LOWER_PRECISION,
        family="tf32",
        title="TF32 for matrix products of float32",
        undo="torch.backends.cuda.matmul.allow_tf32 and cudnn.allow_tf32 are set back",
        apply=_allow_tf32,
        only_on="cuda",
        why_not=_why_no_tf32,
        gain=0.2,
    ),
    Setting(
        name="benchmarks_cudnn",
        meaning="cuDNN keeps the fastest of its algorithms",
        note=", found by trying them for each shape once",
        numerics=Numerics.REORDERED,
        family="cudnn-benchmark",
        title="cuDNN's fastest algorithm, found by trying",
        undo="torch.backends.cudnn.benchmark is set back",
        apply=_search_algorithms,
        only_on="cuda",
        why_not=_why_no_search,
        gain=0.1,
        cost_s=1.0,
    ),
    Setting(
        name="channels_last",
        meaning="weights of 2-d convolutions in channels-last memory",
        numerics=Numerics.REORDERED,
        family="channels-last",
        title="weights of convolutions in channels-last memory",
        undo="the layout of the weights ends with the run; saved weights load anywhere",
        apply=_put_channels_last,
        is_for_loop=True,
        why_not=lambda facts, *_: None if facts.has_convolution else _NO_CHANNELS_FIRST,
        gain=0.15,
    ),
    Setting(
        name="optimizer",
        meaning="which of torch's implementations of the optimizer runs",
        numerics=Numerics.REORDERED,
        family="optimizer",
        names={"fused": "fused-optimizer"},
        title="fused implementation of the optimizer",
        undo="the state of the optimizer is the same; the next optimizer is made as in the script",
        apply=_fuse,
        is_for_loop=True,
        values=("fused",),
        why_not=_why_not_fused,
        # Fusing removes most of the loop over parameters.
        gain=lambda facts, _: 0.9 * facts.update_fraction,
    ),
    Setting(
        name="skips_profiler_ranges",
        meaning="profiler annotations are skipped while no profiler runs",
        numerics=Numerics.EXACT,
        family="no-profiler-ranges",
        title="no profiler annotations while no profiler runs",
        undo="torch.autograd.profiler.record_function is put back",
        apply=_skip_ranges,
        why_not=_why_not_skipped,
        gain=_gain_of_ranges,
    ),
)

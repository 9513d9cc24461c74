"""Everything that can be tried."""

from __future__ import annotations

from breakeven.tune.candidate import Candidate
from breakeven.tune.cpu_candidates import (
    Autocast,
    ChannelsLast,
    FlushDenormal,
    InteropThreads,
    Threads,
)
from breakeven.tune.cuda_candidates import AllowTf32, BenchmarkCudnn
from breakeven.tune.loader_candidates import (
    GatherBatches,
    KeepDataOnDevice,
    LargerBatch,
    PinMemory,
    ReadAhead,
    Workers,
)
from breakeven.tune.process_candidates import (
    KeepMemory,
    SkipDistributionChecks,
    SkipProfilerRanges,
)
from breakeven.tune.step_candidates import Compile, CppWrapper, OptimizerKind
from breakeven.tune.step_facts import StepFacts

# A batch is doubled this often at most; the knee of the throughput comes earlier on a CPU.
_MOST_DOUBLINGS = 5
_MOST_WORKERS = 8


def all_candidates(facts: StepFacts, *, tries_batch_size: bool = False) -> tuple[Candidate, ...]:
    """Return what may be tried for a step; each knows by itself whether it applies.

    Args:
        facts: Of the step.
        tries_batch_size: Larger batches too, which change the training.
    """
    cores = max(1, facts.num_cores)
    candidates: list[Candidate] = [
        KeepDataOnDevice(),
        GatherBatches(),
        OptimizerKind("fused"),
        OptimizerKind("foreach"),
        *(Threads(count) for count in sorted({1, max(1, cores // 2), cores})),
        InteropThreads(),
        KeepMemory(),
        SkipProfilerRanges(),
        SkipDistributionChecks(),
        FlushDenormal(),
        ChannelsLast(),
        Autocast("bfloat16"),
        Autocast("float16"),
        AllowTf32(),
        BenchmarkCudnn(),
        *(Workers(count) for count in sorted({1, min(cores, _MOST_WORKERS)})),
        ReadAhead(),
        PinMemory(),
        Compile("default"),
        Compile("reduce-overhead"),
        Compile("max-autotune"),
        Compile("max-autotune-no-cudagraphs"),
        CppWrapper(),
    ]
    if tries_batch_size:
        candidates += _larger_batches(facts)
    return tuple(candidates)


def _larger_batches(facts: StepFacts) -> list[Candidate]:
    """Return the sizes to try; where none can be changed, one candidate that says so."""
    batch_size = facts.loader.batch_size if facts.loader else 0
    most = _MOST_DOUBLINGS if batch_size else 1
    return [LargerBatch(batch_size, 2**doublings) for doublings in range(1, most + 1)]

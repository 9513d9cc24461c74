"""LOAD003: worker processes are started again in every short epoch.

What it does:
    Finds a ``DataLoader`` with workers, without ``persistent_workers``, that is iterated in
    several epochs of so few steps that starting its workers is a twentieth of them or more.

Why it costs time:
    Each epoch starts all workers, and waits for the first batch while the GPU is idle; where
    processes are spawned rather than forked, each imports torch again.

Evidence:
    7.6 to 9.5 steps per second on Windows and 30 % of an epoch elsewhere in public reports;
    one data set took 33 s without workers and 136 s with eight.

Fix:
    Keep the workers.

    ```python
    loader = DataLoader(data, batch_size=16, num_workers=4)
    ```

    ```python
    loader = DataLoader(data, batch_size=16, num_workers=4, persistent_workers=True)
    ```

Known limits:
    The gain is not simulated: it takes 20 ms per worker and epoch, as measured on Linux, where
    processes are forked; 10 to 100 ms are its interval. It is of the time per step with the
    epochs' starts spread over their steps.
"""

from __future__ import annotations

import ast
import math

from breakeven.doctor.loading import settings_location
from breakeven.doctor.rule import Case, Found, KnownGain, Occurrence
from breakeven.source import is_constant, keyword
from breakeven.trace import LoaderFacts

CAUSE = "LOADER_RESPAWN"

# Starting and ending one forked worker: 17 to 45 ms with 1, 2 and 4 workers. With spawn, as on
# Windows and macOS, each imports torch again, which takes seconds.
# Source: as that of HANDOFF_NS.
_RESTART_NS, _RESTART_LOW_NS, _RESTART_HIGH_NS = 20e6, 10e6, 100e6
# A shorter epoch than this many restarts is short.
_MIN_RESTART_FRACTION = 0.05


def detect(case: Case) -> Found:
    for loader in case.facts.loaders:
        if not loader.num_workers or loader.persistent_workers or not loader.batch_size:
            continue
        num_steps = math.ceil(loader.num_samples / loader.batch_size)
        if not num_steps or not _has_several_epochs(case, loader):
            continue
        epoch_ns = num_steps * case.step_ns
        share, low, high = (
            loader.num_workers * each_ns / (loader.num_workers * each_ns + epoch_ns)
            for each_ns in (_RESTART_NS, _RESTART_LOW_NS, _RESTART_HIGH_NS)
        )
        if share < _MIN_RESTART_FRACTION:
            continue
        yield Occurrence(
            title=f"{loader.num_workers} workers are started again every {num_steps} steps",
            fix="DataLoader(..., persistent_workers=True), or no workers for small data",
            evidence=f"num_workers={loader.num_workers} without persistent_workers, "
            f"{loader.num_samples} samples in batches of {loader.batch_size}",
            location=settings_location(case, loader),
            share_fraction=share,
            gain=KnownGain(fraction=share, low_fraction=low, high_fraction=high),
        )


def _has_several_epochs(case: Case, loader: LoaderFacts) -> bool:
    if loader.num_epochs > 1:
        return True
    for source in case.sources:
        for name in ("max_epochs", "num_train_epochs"):
            for call in source.calls("Trainer", "TrainingArguments"):
                value = keyword(call, name)
                if value is not None:
                    return not is_constant(value, 1)
        if any(map(_is_over_epochs, source.nodes(ast.For))):
            return True
    return False


def _is_over_epochs(loop: ast.For) -> bool:
    is_once = isinstance(loop.iter, ast.Call) and any(
        is_constant(argument, 1) for argument in loop.iter.args[:1]
    )
    return "epoch" in ast.unparse(loop.target).lower() and not is_once

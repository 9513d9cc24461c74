"""A tuning as stored in ``breakeven.toml``."""

from __future__ import annotations

from typing import Any

import msgspec

from breakeven.errors import Caveat
from breakeven.trace import Configuration
from breakeven.verdict import Machine, Numerics, Outcome, Trial, TuneReport

MACHINE = Machine(
    processor="EPYC 7763",
    num_cores=2,
    gpu="",
    torch_version="2.13.0",
    python_version="3.11.7",
    breakeven_version="0.1.0",
)
TRIAL = Trial(
    candidate="threads=1",
    title="one thread",
    numerics=Numerics.REORDERED,
    outcome=Outcome.KEPT,
    reason="1.5× faster in 6 pairs of runs",
    speedup=1.5,
)


def report(**changes: Any) -> TuneReport:
    values: dict[str, Any] = {
        "target": "train.py",
        "device": "cpu",
        "machine": MACHINE,
        "num_steps": 1000,
        "baseline_step_ns": 300_000.5,
        "tuned_step_ns": 200e3,
        "speedup": 1.5,
        "low": 1.4,
        "high": 1.6,
        "configuration": Configuration(num_threads=1, optimizer="fused", gathers_batches=True),
        "numerics": Numerics.REORDERED,
        "pays_off_after_steps": 120,
        "trials": (TRIAL, msgspec.structs.replace(TRIAL, speedup=None)),
        "code_change": None,
        "duration_ns": 10**10,
        "caveats": (Caveat(code="busy", message="busy"),),
    }
    return TuneReport(**{**values, **changes})

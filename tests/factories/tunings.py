"""Made-up tunings for the tests of renderers and of the command line."""

from __future__ import annotations

from msgspec.structs import replace

from breakeven.errors import Caveat
from breakeven.timing import BUSY_MACHINE
from breakeven.trace import Configuration
from breakeven.verdict import (
    CodeChange,
    Machine,
    Numerics,
    Outcome,
    Trial,
    TuneReport,
)

US = 1_000.0
S = 1_000_000_000
TARGET = "examples/disc_classifier.py"
MACHINE = Machine(
    processor="AMD EPYC 7B13",
    num_cores=2,
    gpu="",
    torch_version="2.9.0",
    python_version="3.11.9",
    breakeven_version="0.6.0",
)
DIFF = """\
--- examples/disc_classifier.py
+++ examples/disc_classifier.py
@@ -41,9 +41,6 @@
+step = breakeven.fast_step(model, loss_fn, optimizer)
 for x, y in loader:
-    optimizer.zero_grad()
-    loss = loss_fn(model(x), y)
-    loss.backward()
-    optimizer.step()
+    loss = step(x, y)
"""


def trial(candidate: str, outcome: Outcome, reason: str, **more: object) -> Trial:
    return Trial(
        candidate=candidate,
        title=f"what {candidate} changes",
        numerics=Numerics.REORDERED,
        outcome=outcome,
        reason=reason,
        **more,  # type: ignore[arg-type]
    )


def measured(candidate: str, outcome: Outcome, step_us: float, low: float, high: float) -> Trial:
    return trial(
        candidate,
        outcome,
        f"5 pairs of runs say {low:g} to {high:g}",
        step_ns=step_us * US,
        speedup=(low + high) / 2,
        low=low,
        high=high,
        num_runs=5,
    )


TRIALS = (
    measured("threads=1", Outcome.KEPT, 261.0, 1.17, 1.21),
    replace(
        measured("fused-optimizer", Outcome.KEPT, 168.0, 1.52, 1.58),
        startup_ns=2.1 * S,
        pays_off_after_steps=6_400,
    ),
    measured("gather-batches", Outcome.NOT_FASTER, 167.0, 0.985, 1.021),
    replace(
        trial("compile", Outcome.NOT_WORTH_IT, "the first step is 31 s later"),
        step_ns=151 * US,
        speedup=1.11,
        low=1.08,
        high=1.14,
        startup_ns=31.0 * S,
        pays_off_after_steps=1_823_000,
    ),
    trial(
        "compile:max-autotune-no-cudagraphs",
        Outcome.CRASHED,
        "RuntimeError: expected scalar type Float but found BFloat16, raised 3 frames below the "
        "model's forward",
    ),
    trial(
        "bf16-autocast",
        Outcome.WRONG_NUMBERS,
        "step 2: gradient of layers.0.weight is off by 3.1 %, 1 % allowed",
    ),
    measured("fast-step", Outcome.NOT_FASTER, 168.0, 0.98, 1.02),
    trial("flush-denormal", Outcome.OUT_OF_BUDGET, "the budget of 60 s was over"),
    trial("channels-last", Outcome.NOT_APPLICABLE, "the step has no two-dimensional convolution"),
    trial("amp", Outcome.NOT_APPLICABLE, "the step runs on the CPU"),
)


def faster() -> TuneReport:
    return TuneReport(
        target=TARGET,
        device="cpu",
        machine=MACHINE,
        num_steps=100_000,
        baseline_step_ns=310 * US,
        tuned_step_ns=168 * US,
        speedup=1.842,
        low=1.794,
        high=1.901,
        configuration=Configuration(num_threads=1, optimizer="fused", gathers_batches=True),
        numerics=Numerics.REORDERED,
        pays_off_after_steps=6_400,
        trials=TRIALS,
        code_change=None,
        duration_ns=27 * S,
        caveats=(
            Caveat(code=BUSY_MACHINE, message="other processes took 12 % of this machine"),
            Caveat(code="few-steps", message="a run of the script has 40 steps only"),
        ),
    )


def with_fast_step() -> TuneReport:
    return replace(
        faster(),
        tuned_step_ns=31 * US,
        speedup=10.1,
        low=9.6,
        high=10.5,
        configuration=Configuration(fast_step=True, gathers_batches=True),
        trials=(measured("fast-step", Outcome.KEPT, 31.0, 9.7, 10.3), *TRIALS[2:6]),
        code_change=CodeChange(file=TARGET, line=41, diff=DIFF),
    )


def nothing_found() -> TuneReport:
    return replace(
        faster(),
        tuned_step_ns=310 * US,
        speedup=1.0,
        low=1.0,
        high=1.0,
        configuration=Configuration(),
        numerics=Numerics.EXACT,
        pays_off_after_steps=None,
        trials=(replace(TRIALS[2], step_ns=309 * US), *TRIALS[4:6], *TRIALS[8:]),
        code_change=None,
        caveats=(),
    )


ALL = {"faster": faster, "fast_step": with_fast_step, "nothing": nothing_found}

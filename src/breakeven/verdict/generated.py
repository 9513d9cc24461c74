"""A step of which forward, backward and update are generated code: measured, as the rest is."""

from __future__ import annotations

import msgspec

from breakeven.timing import Estimate, Source
from breakeven.verdict.results import Nanoseconds

# What a call of `fast_step` takes beside the generated code, and how far that varies: checks,
# addresses, numbers of the update.
# Source: a call less its code, docs/fast-step.md and benchmarks/fast_step.py; 3.5 us on that
# machine for a network of five layers, more for deeper ones and slower Pythons.
CALL_NS = (2_500.0, 4_000.0, 8_000.0)


class GeneratedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured of generated code for its step.

    Args:
        code: The generated code; null where there is none.
        kept: What the loop does beside forward, backward and update: its data, what it logs.
        compile_ns: What it took to generate and compile it.
        because: Why there is none; empty where there is.
    """

    code: Estimate | None = None
    kept: Estimate | None = None
    compile_ns: int = 0
    because: str = ""

    @property
    def step(self) -> Estimate | None:
        """Return the time of the whole step, called as `fast_step` calls it."""
        if self.code is None or self.kept is None:
            return None
        low_ns, call_ns, high_ns = CALL_NS
        return Estimate(
            value_ns=self.code.value_ns + self.kept.value_ns + call_ns,
            low_ns=self.code.low_ns + self.kept.low_ns + low_ns,
            high_ns=self.code.high_ns + self.kept.high_ns + high_ns,
            source=Source.MEASURED,
        )


class GeneratedStep(msgspec.Struct, frozen=True, kw_only=True):
    """This CPU's step with forward, backward and update as generated code.

    The code is made from a recording of the unchanged loop, and was held against its numbers.
    `breakeven.fast_step` does a step so.

    Args:
        step_ns: Time of one step: the parts below, added up.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        code_ns: The generated code, measured.
        call_ns: The call of it, as it was measured elsewhere.
        kept_ns: What the loop does besides, measured: its data, what it logs.
        compile_ns: What it took to generate and compile the code.
        speedup: Time of the CPU's best step as it is, divided by this one.
    """

    step_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    code_ns: Nanoseconds
    call_ns: Nanoseconds
    kept_ns: Nanoseconds
    compile_ns: int
    speedup: float

    @property
    def step(self) -> Estimate:
        """Return the time of the step."""
        return Estimate(
            value_ns=self.step_ns,
            low_ns=self.low_ns,
            high_ns=self.high_ns,
            source=Source.MEASURED,
        )

    @property
    def is_worth_it(self) -> bool:
        """Return whether it is faster than the step as it is by more than a machine's moods."""
        return self.speedup >= _LEAST_GAIN


# So many times as fast as the best step as it is, and it is shown.
_LEAST_GAIN = 1.1


def generated_step(run: GeneratedRun, step_ns: float) -> GeneratedStep | None:
    """Return what a report says of a run's generated code; None where there is none.

    Args:
        run: What was measured.
        step_ns: The CPU's best step as it is.
    """
    found = run.step
    if found is None or run.code is None or run.kept is None:
        return None
    return GeneratedStep(
        step_ns=found.value_ns,
        low_ns=found.low_ns,
        high_ns=found.high_ns,
        code_ns=run.code.value_ns,
        call_ns=CALL_NS[1],
        kept_ns=run.kept.value_ns,
        compile_ns=run.compile_ns,
        speedup=step_ns / found.value_ns,
    )

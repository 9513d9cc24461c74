"""A step whose forward, backward and update are generated code, measured like other steps."""

from __future__ import annotations

import msgspec

from breakeven.timing import Estimate, Source
from breakeven.verdict.results import Nanoseconds

# Low, typical and high time of a `fast_step` call without the generated code: checks, addresses,
# numbers of the update.
# Source: a call minus its code, docs/fast-step.md and benchmarks/fast_step.py; 3.5 us on that
# machine for a network of five layers, more for deeper ones and slower Pythons.
CALL_NS = (2_500.0, 4_000.0, 8_000.0)


class GeneratedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the generated code for a step.

    Args:
        code: Time of the generated code; null if there is none.
        kept: Time of the rest of the loop: data, logging.
        compile_ns: Time to generate and compile it.
        because: Why there is no generated code; empty if there is.
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

    The code is generated from a recording of the unchanged loop, and its results were checked
    against it. `breakeven.fast_step` runs a step this way.

    Args:
        step_ns: Time of one step, the sum of the parts below.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        code_ns: The generated code, measured.
        call_ns: The overhead of calling it, measured on another machine.
        kept_ns: The rest of the loop, measured: data, logging.
        compile_ns: Time to generate and compile the code.
        speedup: Time of the CPU's best unchanged step, divided by this one.
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
        """Return whether it is faster than the unchanged step by more than machine noise."""
        return self.speedup >= _LEAST_GAIN


# A generated step is shown if it is at least this many times as fast as the best unchanged step.
_LEAST_GAIN = 1.1


def generated_step(run: GeneratedRun, step_ns: float) -> GeneratedStep | None:
    """Return the report section on a run's generated code; None if there is none.

    Args:
        run: The measurements.
        step_ns: The CPU's best unchanged step.
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

"""The row and the sentences of a step as generated code."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from breakeven.report import show
from breakeven.timing import Estimate, Source
from breakeven.verdict import (
    CheckReport,
    Crossover,
    GeneratedRun,
    GeneratedStep,
    NoCrossover,
    generated_step,
)
from factories import reports as made_up
from factories import terminal
from factories.terminal import flat

shown = partial(terminal.shown, shows=partial(show, hints=()), columns=100)
US = 1_000.0


def measured(ns: float) -> Estimate:
    return Estimate(value_ns=ns, low_ns=0.9 * ns, high_ns=1.2 * ns, source=Source.MEASURED)


RUN = GeneratedRun(code=measured(30 * US), kept=measured(10 * US), compile_ns=10**9)
CROSSOVER = Crossover(
    axis="batch_size", device="RTX 4090", value=4_096, low=2_000, high=9_000, searched=(32, 16_384)
)


def report(speedup: float = 12.0, **changes: object) -> CheckReport:
    step = generated_step(RUN, speedup * 44 * US)
    return replace(made_up.cpu_wins(), generated=step, **changes)


def test_the_parts_of_a_step_add_up() -> None:
    step = generated_step(RUN, 440 * US)
    assert step == GeneratedStep(
        step_ns=44 * US,  # with the 4 µs of a call
        low_ns=(27 + 9 + 2.5) * US,
        high_ns=(36 + 12 + 8) * US,
        code_ns=30 * US,
        call_ns=4 * US,
        kept_ns=10 * US,
        compile_ns=10**9,
        speedup=10.0,
    )


def test_a_run_without_code_is_no_step() -> None:
    assert generated_step(GeneratedRun(because="aten.sort has no generated code"), 1.0) is None


def test_the_row_stands_among_the_devices_by_its_time() -> None:
    lines = shown(report()).splitlines()
    rows = [line for line in lines if line.startswith(("●", "○"))]
    assert rows[0].startswith("● this CPU, generated step")
    assert "44 µs (38–56)" in rows[0]


def test_sentences_say_what_is_gained_and_from_where_on_a_gpu_wins() -> None:
    text = flat(shown(report(generated_crossover=CROSSOVER)))
    assert "a step takes this CPU 44 µs, 10 µs of them for the rest of the loop" in text
    assert "12× as fast as now" in text
    assert (
        "Crossover: from batch size 4,096 (2,000–9,000) on, RTX 4090 is faster than generated code "
        "on this CPU (searched 32 to 16,384)." in text
    )
    assert "from batch size 640" in text  # against the script as it is


def test_no_crossover_is_said_as_it_is() -> None:
    none = NoCrossover(none_because="RTX 4090 is not faster than generated code on AMD at any.")
    assert none.none_because in flat(shown(report(generated_crossover=none)))


@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.09])
def test_what_gains_little_is_not_shown(speedup: float) -> None:
    assert shown(report(speedup)) == shown(made_up.cpu_wins())


def test_the_verdict_is_that_of_the_script_as_it_is() -> None:
    first = shown(report()).splitlines()[0]
    assert first == shown(made_up.cpu_wins()).splitlines()[0]

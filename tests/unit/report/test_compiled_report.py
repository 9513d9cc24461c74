"""The rows and the sentences of the step as ``torch.compile`` would make it."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from breakeven.report import show
from breakeven.simulate import Bound, GraphBreak
from breakeven.trace import Location
from breakeven.verdict import CheckReport, CompiledResult, CompiledSteps
from factories import reports as made_up
from factories import terminal
from factories.terminal import flat

shown = partial(terminal.shown, shows=partial(show, hints=()), columns=100)
US = 1_000.0
BREAK = GraphBreak(kind="item", location=Location(file="net.py", line=12))


def report(pays_after_steps: int | None = 12_345, **changes: object) -> CheckReport:
    result = CompiledResult(
        device="RTX 4090", step_ns=700 * US, low_ns=600 * US, high_ns=900 * US,
        bound=Bound.LAUNCH, speedup=2.0, pays_after_steps=pays_after_steps,
    )  # fmt: skip
    steps = CompiledSteps(
        mode="default", is_asked_for_by_script=False, num_graphs=2, num_kernels=9, breaks=(),
        compile_ns=8.6e9, results=(result,),
    )  # fmt: skip
    return replace(made_up.cpu_wins(), compiled=replace(steps, **changes))


def test_a_row_beside_the_step_as_it_is_written() -> None:
    lines = shown(report()).splitlines()
    rows = [line for line in lines if line.startswith("○ RTX 4090")]

    assert rows[0].startswith("○ RTX 4090, compiled")
    assert "700 µs (600–900)" in rows[0]
    assert rows[1].startswith("○ RTX 4090 ")


def test_what_it_gains_and_what_it_costs() -> None:
    text = flat(shown(report()))

    assert (
        "Compiled by torch.compile, a step on RTX 4090 is predicted to take 700 µs: 2× as fast as "
        "written. Compiling takes about 9 s, paid for after 12k steps." in text
    )
    assert "graph breaks" not in text


def test_a_script_that_compiles_is_not_said_to_be_eager_as_written() -> None:
    text = flat(shown(report(is_asked_for_by_script=True)))

    assert "700 µs: 2× as fast as without it, as the verdict takes it. Compiling" in text


def test_what_is_never_paid_for_says_so() -> None:
    assert "Compiling takes about 9 s, which it never makes up for." in flat(
        shown(report(pays_after_steps=None))
    )


def test_the_mode_and_the_lines_that_break_the_graph() -> None:
    text = flat(shown(report(mode="reduce-overhead", breaks=(BREAK,))))

    assert 'Compiled by torch.compile in mode "reduce-overhead", a step' in text
    assert "breaks where the model waits for a value, 1 time per call: net.py:12." in text


def test_the_verdict_does_not_count_it() -> None:
    assert report().verdict == made_up.cpu_wins().verdict

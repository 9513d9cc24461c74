"""The row and the sentences of a step as one CUDA graph."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from breakeven.report import chart_document, show, to_json
from breakeven.simulate import Bound
from breakeven.verdict import CapturedStep, CheckReport
from factories import reports as made_up
from factories import terminal
from factories.reports import US, gpu
from factories.terminal import flat

shown = partial(terminal.shown, shows=partial(show, hints=()), columns=100)
READS = "the host reads from the GPU in the middle of it (4× per step)"


def captured(ns: float = 38 * US, low: float = 30 * US, high: float = 50 * US, because: str = ""):
    result = gpu("RTX 4090", ns, low, high, Bound.LATENCY, setting="CUDA graph")
    return CapturedStep(result=result, because=because)


def report(step: CapturedStep, *, has_generated: bool = True) -> CheckReport:
    made = made_up.at_their_best()
    return replace(made, captured=step, generated=made.generated if has_generated else None)


def test_both_sides_at_their_best_have_a_row_and_are_compared() -> None:
    text = shown(report(captured()))
    rows = [line for line in text.splitlines() if line.startswith(("●", "○"))]
    assert rows[0].startswith("● this CPU, generated step")
    assert rows[1].startswith("○ RTX 4090, CUDA graph")
    assert "38 µs (30–50)" in rows[1]
    assert (
        "At their best: a generated step takes this CPU 21 µs, RTX 4090 with a CUDA graph 38 µs "
        "(30–50), predicted: the CPU is 1.8×" in flat(text)
    )


def test_the_faster_one_is_named_and_what_is_open_is_said() -> None:
    assert "the GPU is 2.1×" in flat(shown(report(captured(10 * US, 9 * US, 11 * US))))
    assert "as fast (too close to call)." in flat(
        shown(report(captured(22 * US, 15 * US, 30 * US)))
    )


def test_without_generated_code_the_graph_stands_alone() -> None:
    text = flat(shown(report(captured(), has_generated=False)))
    assert "RTX 4090 with a CUDA graph is predicted to take 38 µs (30–50) for a step." in text
    assert "At their best" not in text


def test_what_cannot_be_captured_has_a_reason_and_no_row() -> None:
    text = shown(report(CapturedStep(because=READS)))
    assert f"One CUDA graph cannot replay this step: {READS}." in flat(text)
    assert "CUDA graph" not in "".join(line for line in text.splitlines() if line[:1] in "●○")


def test_a_model_that_compiles_without_one_graph_says_both() -> None:
    text = flat(shown(report(captured(because=READS))))
    assert f"{READS}. At their best:" in text
    assert 'RTX 4090 with torch.compile(mode="reduce-overhead") 38 µs' in text


def test_the_page_and_the_document_have_it() -> None:
    made = report(captured())
    assert "RTX 4090, CUDA graph" in chart_document(made, ".html").decode()
    assert b'"captured":{' in to_json(made).replace(b" ", b"")


def test_the_verdict_does_not_count_it() -> None:
    assert report(captured()).verdict == made_up.cpu_wins().verdict

"""The rows and the sentences of CPUs that are not here."""

from __future__ import annotations

import json
from functools import partial

from msgspec.structs import replace

from breakeven.errors import Caveat
from breakeven.report import chart_document, show, to_json
from breakeven.timing import Source
from breakeven.verdict import (
    CheckReport,
    DeviceKind,
    DeviceResult,
    ProgramSummary,
    TrainingTime,
    compare_reports,
)
from factories import reports as made_up
from factories import terminal
from factories.terminal import flat

shown = partial(terminal.shown, shows=partial(show, hints=()), columns=100)
US = 1_000.0
CAVEAT = Caveat(code="absent-cpu", message="carried over from this CPU")
NAME = "Core i9-10940X (14 cores)"


def report(step_ns: float = 100 * US) -> CheckReport:
    absent = DeviceResult(
        device=NAME, kind=DeviceKind.CPU, source=Source.PREDICTED, precision="fp32",
        step_ns=step_ns, low_ns=0.6 * step_ns, high_ns=1.6 * step_ns, bound=None,
        peak_memory_bytes=None, fits=None, caveats=(CAVEAT,),
    )  # fmt: skip
    return replace(made_up.cpu_wins(), absent_cpus=(absent,))


def test_a_row_that_says_it_is_predicted() -> None:
    (row,) = (line for line in shown(report()).splitlines() if NAME in line and "(60" in line)

    assert row.startswith(f"○ {NAME}")
    assert "100 µs (60–160)" in row


def test_what_it_takes_against_this_cpu_and_the_fastest_gpu() -> None:
    cpu = next(one for one in report().results if one.kind is DeviceKind.CPU)
    text = flat(shown(report(step_ns=cpu.step_ns / 2)))

    assert f"On {NAME}, a step is predicted to take" in text
    assert "as fast as this CPU and" in text
    assert "The verdict compares GPUs with this CPU alone, which was measured." in text


def test_its_caveat_names_it() -> None:
    assert f"carried over from this CPU ({NAME})" in flat(shown(report())) or (
        f"{NAME}: carried over from this CPU" in flat(shown(report()))
    )


def test_the_whole_training_there_is_among_the_others() -> None:
    plain = report()
    names = [one.device for one in (*plain.results, *plain.absent_cpus)]
    times = tuple(
        TrainingTime(device=name, total_ns=3e9 + i, low_ns=2e9, high_ns=4e9)
        for i, name in enumerate(names)
    )
    program = ProgramSummary(
        startup_ns=1e9, data_ns=0.0, other_ns=0.0, other_low_ns=0.0, other_high_ns=0.0,
        step_fraction=1.0, parts=(), unevenness=1.0, speedup=1.0, low=1.0, high=1.0,
        num_steps=1_000, times=times,
    )  # fmt: skip
    text = shown(replace(plain, program=program))

    rows = [line for line in text.splitlines() if "3 s (2 s–4 s)" in line]
    assert len(rows) == len(names)
    assert sum(NAME in row for row in rows) == 1


def test_nothing_is_said_where_none_is_named() -> None:
    text = flat(shown(made_up.cpu_wins()))

    assert "The verdict compares" not in text


def test_the_page_has_it() -> None:
    page = chart_document(report(), ".html").decode()

    assert NAME in page


def test_json_has_it_beside_the_results() -> None:
    document = json.loads(to_json(report()))

    assert [one["device"] for one in document["absent_cpus"]] == [NAME]
    assert NAME not in [one["device"] for one in document["results"]]


def test_runs_are_compared_by_it_too() -> None:
    change = compare_reports(report(), report(step_ns=1_000 * US))

    assert NAME in [one.device for one in change.devices]

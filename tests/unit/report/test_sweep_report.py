"""What a sweep looks like at a terminal and as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jsonschema
import msgspec
import pytest
from rich.cells import cell_len

from breakeven.errors import Caveat
from breakeven.report import show, to_json
from breakeven.timing import BUSY_MACHINE
from breakeven.verdict import DeviceKind, NoCrossover, SweepCrossover, SweepReport
from factories import sweeps as made_up
from factories import terminal
from factories.terminal import flat

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "schema" / "sweep.schema.json"


shown = partial(
    terminal.shown,
    shows=partial(show, hints=("Every number as JSON: --json, or -o sweep.json",)),
    height=25,
)


def with_outcomes(*outcomes: NoCrossover) -> SweepReport:
    found = tuple(
        SweepCrossover(device=f"GPU {i}", cpu=made_up.CPU.name, held={}, outcome=outcome)
        for i, outcome in enumerate(outcomes)
    )
    return msgspec.structs.replace(made_up.batch_sizes(), crossovers=found)


def none(faster: DeviceKind | None) -> NoCrossover:
    return NoCrossover(none_because="GPU 0 is so.", faster=faster, searched=(16, 65_536))


def test_golden_at_80_columns(check_golden: Callable[[str, str], None]) -> None:
    text = shown(made_up.batch_sizes()) + "\n" + shown(made_up.widths())
    check_golden("terminal_sweep.txt", text)


@pytest.mark.parametrize("name", made_up.ALL)
@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal(name: str, columns: int) -> None:
    text = shown(made_up.ALL[name](), columns=columns)
    assert max(map(cell_len, text.splitlines())) <= columns
    assert not set("\x1b\u202e\udcff") & set(text)


@pytest.mark.parametrize("name", made_up.ALL)
def test_an_ascii_terminal_gets_ascii(name: str) -> None:
    # Dashes and signs in words may be replaced by "?"; charts and tables may not.
    text = shown(made_up.ALL[name](), encoding="ascii")
    assert text.isascii()
    assert not any("????" in line for line in text.splitlines())


def test_many_sizes_are_thinned_and_many_devices_take_several_tables() -> None:
    text = shown(made_up.large())
    assert "20 of 100 sizes; all by --json" in text
    assert text.count("ms  ○") > 100
    assert re.search(r"batch size +CPU +GPU 0 ", text)
    assert re.search(r"batch size +GPU 6 +GPU 7 +GPU 8", text)


def test_the_sizes_around_the_crossover_are_kept() -> None:
    text = shown(made_up.large())
    assert "\n       250  " in text
    assert "\n       260  " in text
    assert "\n     1,000  " in text


@pytest.mark.parametrize(
    ("report", "first_line"),
    [
        (made_up.batch_sizes(), "A GPU pays off from batch size 413 on (294–586): RTX 4090."),
        (made_up.cpu_wins(), "No GPU pays off at any batch size searched, 16 to 128."),
        (made_up.words(), "The CPU has the shortest step at 2 of 2 points."),
        (made_up.nothing(), "No point of the grid gave an answer."),
        (
            with_outcomes(none(DeviceKind.GPU), none(DeviceKind.CPU)),
            "A GPU pays off at every batch size searched, 16 to 65,536: GPU 0.",
        ),
        (
            with_outcomes(none(None)),
            "From no batch size searched on does a GPU pay off for good, 16 to 65,536.",
        ),
        (
            made_up.grid(),
            "A GPU pays off in 2 of 2 settings, at the earliest from batch size 417 on (294–578) "
            "(RTX 4090).",
        ),
    ],
)
def test_the_answer_comes_first(report: SweepReport, first_line: str) -> None:
    assert flat(shown(report)).startswith(first_line)


def test_crossovers_are_in_words_by_axis_the_earliest_first() -> None:
    text = flat(shown(made_up.widths()))
    along_width = text.index("RTX 4090 from width 130 on (104–151) T4 from width 168 on")
    assert along_width < text.index("RTX 4090 from 17,098 parameters on (11,669–24,008)")
    # The name before the sentence is not said twice.
    text = flat(shown(made_up.cpu_wins()))
    assert "T4 is not faster than AMD EPYC 7B13 at any batch size from 16 to 128" in text
    assert "T4 T4" not in text


def test_several_settings_are_a_table_with_a_block_each_up_to_a_cap() -> None:
    text = shown(made_up.grid(depths=(2, 4, 6, 8)))
    assert "threads 2, depth 8  187 (138–249)   105 (74–146)\n" in text
    assert text.count("Step time along the batch size, depth ") == 3
    assert "and 1 more setting, listed by --json" in text
    # Predictions of a GPU do not depend on the CPU's threads: one column for both.
    assert "CPU, threads 1  CPU, threads 2        T4  RTX 4090\n" in text


def test_the_cpu_is_named_by_its_threads_where_its_name_holds_them() -> None:
    report = made_up.grid()
    threads = {1: " (1 thread)", 2: " (2 threads)"}
    points = tuple(
        msgspec.structs.replace(
            point,
            device=point.device + threads[point.settings["threads"]],
            processor=point.device,
        )
        if point.kind is DeviceKind.CPU
        else point
        for point in report.points
    )
    text = shown(msgspec.structs.replace(report, points=points))
    assert "\nbatch size  CPU (1 thread)  CPU (2 threads)        T4  RTX 4090\n" in text
    assert "  a CPU (1 thread)   b CPU (2 threads)   c T4   d RTX 4090" in text
    # It is that of the host, which is named already.
    assert "\nCPU: " not in text


def test_another_cpu_than_the_host_is_named() -> None:
    report = made_up.batch_sizes()
    host = msgspec.structs.replace(report.host, name="reference server")
    text = shown(msgspec.structs.replace(report, host=host))
    assert "\nhost: reference server · " in text
    assert "\nCPU: AMD EPYC 7B13\n" in text


def test_a_narrow_table_of_crossovers_never_cuts_a_figure() -> None:
    text = shown(made_up.grid(depths=(2, 4)), columns=30)
    figures = re.findall(r"\d+ \(\d+–\d+\)", text.partition("Step time")[0])
    assert len(figures) == 8
    assert "…" not in text.partition("Step time")[0]


def test_failures_are_grouped_by_reason() -> None:
    report = made_up.nothing()
    same = tuple(msgspec.structs.replace(one, message="out of memory") for one in report.failures)
    text = flat(shown(msgspec.structs.replace(report, failures=same)))
    assert "7 points failed width 16; width 32; width 64; width 128; and 3 more out of" in text
    assert text.count("out of memory") == 1


def test_a_step_that_does_not_fit_has_no_time() -> None:
    text = shown(made_up.words())
    assert text.count("too big") == 2
    assert "○ 2.1 ms" not in text


def test_caveats_say_where_they_hold() -> None:
    report = made_up.batch_sizes()
    caveat = Caveat(code="few-steps", message="three steps only.")
    busy = Caveat(code=BUSY_MACHINE, message="other programs kept half of the CPU busy")
    first, second, *rest = report.points
    points = (
        msgspec.structs.replace(first, caveats=(caveat, busy)),
        *(msgspec.structs.replace(second, caveats=(caveat,)), *rest),
    )
    text = flat(shown(msgspec.structs.replace(report, points=points)))
    assert "few-steps three steps only. (AMD EPYC 7B13, T4; 2 of 26 times)" in text
    assert "short-run the step was measured over 43 steps only. few-steps" in text
    careful = text.index("Careful: other programs kept half of the CPU busy. Run it again")
    assert careful < text.index("examples/disc_mlp.py")
    assert text.count("kept half of the CPU busy") == 1
    assert "(so in " not in text


@pytest.mark.parametrize("name", made_up.ALL)
def test_document_validates_against_the_schema_file_and_is_read_back(name: str) -> None:
    report = made_up.ALL[name]()
    document = to_json(report)
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    decoded = json.loads(document)
    validator.validate(decoded)
    decoded["schema_version"] = 9
    assert not validator.is_valid(decoded)
    if name != "hostile":  # whose lone surrogate JSON cannot hold
        assert msgspec.json.decode(document, type=SweepReport) == report


def test_schema_file_is_the_generated_schema() -> None:
    command = [sys.executable, "-m", "breakeven.report.schema", "sweep"]
    generated = subprocess.run(command, capture_output=True, check=True).stdout
    assert SCHEMA_FILE.read_bytes() == generated, "run the command in breakeven/report/schema.py"


def test_a_report_that_breaks_its_schema_is_refused() -> None:
    report = made_up.batch_sizes()
    broken = msgspec.structs.replace(report.points[0], step_ns=-1.0)
    with pytest.raises(msgspec.ValidationError, match="step_ns"):
        to_json(msgspec.structs.replace(report, points=(broken,)))

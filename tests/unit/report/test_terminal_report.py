"""What a report looks like at a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from breakeven.errors import Caveat
from breakeven.report import printable, show
from breakeven.report.answer_text import sort_results
from breakeven.report.check import log_axis
from breakeven.report.document import Interval
from breakeven.report.terminal import interval_plot
from breakeven.report.text import (
    duration_with_interval,
    listed,
    ratio_alone,
    ratio_with_interval,
    shorten,
)
from breakeven.timing import BUSY_MACHINE
from breakeven.verdict import Bound, CheckReport, Crossover, NoCrossover, decide
from factories import reports as made_up
from factories import terminal
from factories.terminal import flat

shown = partial(
    terminal.shown, shows=partial(show, hints=("Every number as JSON: --json, or -o report.json",))
)


@pytest.mark.parametrize("name", made_up.ALL)
def test_golden_at_80_columns(name: str, check_golden: Callable[[str, str], None]) -> None:
    check_golden(f"terminal_{name}.txt", shown(made_up.ALL[name]()))


@pytest.mark.parametrize("name", made_up.ALL)
@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal(name: str, columns: int) -> None:
    lines = shown(made_up.ALL[name](), columns=columns).splitlines()
    assert max(cell_len(line) for line in lines) <= columns


def test_narrow_terminal_keeps_the_essential_columns() -> None:
    text = shown(made_up.gpu_wins(), columns=56)
    header = next(line for line in text.splitlines() if "step time" in line)
    assert header.split() == ["device", "step", "time", "vs", "CPU", "bound"]
    assert "520 ms (400–670)" in text


def test_wide_terminal_shows_all_columns() -> None:
    text = shown(made_up.gpu_wins(), columns=120)
    header = next(line for line in text.splitlines() if "step time" in line)
    for name in ("device", "step time", "faster", "samples/s", "vs CPU", "bound", "memory"):
        assert name in header


def test_the_verdict_comes_first() -> None:
    assert shown(made_up.cpu_wins()).splitlines()[0] == (
        "Train this on your CPU: 2.3× (1.8–2.9×) faster than the best GPU, RTX 4090."
    )
    assert shown(made_up.gpu_wins()).startswith("A GPU pays off: H100 SXM5 80GB, 160× (130–200×)")
    assert shown(made_up.too_close()).startswith("Too close to call: T4 at 1.1× (0.8–1.5×)")


def test_devices_are_sorted_by_step_time_with_those_too_small_last() -> None:
    order = [result.device for result in sort_results(made_up.gpu_wins().results)]
    assert order == ["H100 SXM5 80GB", "RTX 4090", "T4", made_up.CPU_NAME, "GTX 1050 Ti"]


def test_a_device_that_is_too_small_has_no_ratio() -> None:
    text = shown(made_up.gpu_wins())
    row = next(line for line in text.splitlines() if "GTX 1050 Ti" in line)
    assert "too big" in row
    assert "×" not in row
    assert "The step does not fit GTX 1050 Ti: it needs 6.2 GB." in text


def test_throughput_is_batch_size_over_step_time() -> None:
    # 100 samples in 1.9 ms are 52.6 thousand per second.
    row = next(line for line in shown(made_up.cpu_wins()).splitlines() if "RTX 3060" in line)
    assert " 53k " in row


def test_no_throughput_without_a_batch_size() -> None:
    assert "samples/s" not in shown(made_up.too_close(), columns=120)


def test_measured_and_predicted_have_different_marks() -> None:
    lines = shown(made_up.cpu_wins()).splitlines()
    assert any(line.startswith("● this CPU") for line in lines)
    assert any(line.startswith("○ RTX 4090") for line in lines)
    assert any(line.startswith("● measured (43 steps)   ○ predicted") for line in lines)


def test_crossover_sentences() -> None:
    report = made_up.cpu_wins()
    assert "from batch size 640 (410–1,300) on, RTX 4090 is faster" in flat(shown(report))
    found = report.crossover
    assert isinstance(found, Crossover)
    open_ended = msgspec.structs.replace(found, high=None)
    text = flat(shown(msgspec.structs.replace(report, crossover=open_ended)))
    assert "from batch size 640 (410 or more) on" in text
    none = NoCrossover(none_because="the CPU wins at every size up to 4,096.", searched=(1, 4_096))
    text = flat(shown(msgspec.structs.replace(report, crossover=none)))
    assert "No crossover: the CPU wins at every size up to 4,096." in text
    unknown = NoCrossover(none_because="the script feeds its batches by hand.")
    text = flat(shown(msgspec.structs.replace(report, crossover=unknown)))
    assert "No crossover" not in text
    assert "Crossover not known: the script feeds its batches by hand." in text


def test_a_busy_machine_is_told_beside_the_verdict_and_only_there() -> None:
    report = made_up.cpu_wins()
    busy = Caveat(code=BUSY_MACHINE, message="other processes used 50 % of this machine")
    cpu = next(result for result in report.results if result.device == made_up.CPU_NAME)
    results = tuple(
        msgspec.structs.replace(result, caveats=(busy,)) if result is cpu else result
        for result in report.results
    )
    lines = shown(
        msgspec.structs.replace(report, results=results, caveats=(*report.caveats, busy))
    ).splitlines()
    (position,) = (index for index, line in enumerate(lines) if busy.message in line)
    assert lines[position].startswith(f"Careful: {busy.message}.")
    assert position < lines.index("")


def test_ratios_over_the_sizes_searched() -> None:
    lines = shown(made_up.cpu_wins()).splitlines()
    header = next(line for line in lines if line.startswith("batch size "))
    row = lines[lines.index(header) + 1]
    sizes = header.split()[2:]
    assert (sizes[0], sizes[-1]) == ("1", "16,384")
    # (0.4 + 0.0016) / (1.4 + 0.00001) and (0.4 + 26.2) / (1.4 + 0.16).
    assert row.split()[:5] == ["RTX", "4090", "vs", "CPU", "0.29×"]
    assert row.split()[-1] == "17×"


def test_no_sizes_searched_no_ratios() -> None:
    assert "\nbatch size " not in shown(made_up.gpu_wins())


def undecided() -> CheckReport:
    """Return a check in which other work kept every step on the CPU from running."""
    report = made_up.cpu_wins()
    results = [
        made_up.gpu("T4", 5e6, 4e6, 6e6, Bound.LAUNCH),
        made_up.gpu("RTX 4090", 1.4e6, 1.2e6, 1.6e6, Bound.LAUNCH),
        msgspec.structs.replace(made_up.cpu(9.8e8, 7e5, 9.8e8), is_disturbed=True),
    ]
    return msgspec.structs.replace(
        report,
        results=tuple(results),
        verdict=decide(results),
        crossover=NoCrossover(none_because="nobody knows."),
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_an_undecided_check_shows_how_wide_the_ratios_are_and_claims_none(columns: int) -> None:
    text = shown(undecided(), columns=columns)
    assert text.startswith("Undecided: this CPU cannot be timed well enough")
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("○")}
    # 980 / 1.2 and 0.7 / 1.4; 980 / 4 and 0.7 / 5, with the ends of the GPU in squares.
    assert re.search(r" 0\.5–820× +launch", rows["RTX"])
    assert re.search(r" 0\.14–240× +launch", rows["T4"])
    assert "700×" not in text
    assert "RTX 4090 vs CPU" not in text


def test_an_undecided_check_keeps_the_ratios_around_a_crossover() -> None:
    report = msgspec.structs.replace(undecided(), crossover=made_up.cpu_wins().crossover)
    assert "RTX 4090 vs CPU" in shown(report)


def test_a_caveat_is_shown_once_with_its_devices() -> None:
    text = flat(shown(made_up.gpu_wins()))
    assert text.count("copies from pageable memory") == 1
    assert "vary by host. (T4, GTX 1050 Ti)" in text


def test_a_caveat_of_the_report_and_of_a_device_is_shown_once_without_devices() -> None:
    report = made_up.gpu_wins()
    caveat = report.results[3].caveats[0]
    text = flat(shown(msgspec.structs.replace(report, caveats=(caveat,))))
    assert text.count("copies from pageable memory") == 1
    assert "(T4, GTX 1050 Ti)" not in text


def test_finding_names_line_share_gain_and_fix() -> None:
    text = flat(shown(made_up.cpu_wins()))
    assert "SYNC001 loss.item() makes the host wait" in text
    assert "examples/rnn_stream.py:61 · 26 % of the step · the fix saves 24 %" in text
    assert "fix: torch.optim.Adam(..., fused=True)" in text


def test_a_fix_that_several_lines_share_is_told_with_the_first() -> None:
    report = made_up.cpu_wins()
    first, other = report.findings
    again = msgspec.structs.replace(first, line=63)
    of_step = msgspec.structs.replace(first, file=None, line=None, fix="the same for the step")
    findings = (first, other, again, of_step, of_step)
    text = flat(shown(msgspec.structs.replace(report, findings=findings)))
    assert text.count("add the losses up on the GPU") == 1
    assert text.count("fix: as for examples/rnn_stream.py:61") == 1
    assert text.count("fix: as above") == 1


def test_a_fix_that_is_shorter_than_its_place_is_repeated() -> None:
    report = made_up.cpu_wins()
    finding = msgspec.structs.replace(report.findings[0], fix="model.train()")
    text = flat(shown(msgspec.structs.replace(report, findings=(finding,) * 2)))
    assert text.count("fix: model.train()") == 2


def test_finding_that_raises_claims_no_gain() -> None:
    report = made_up.cpu_wins()
    finding = msgspec.structs.replace(
        report.findings[0], share_fraction=0.0, gain_fraction=0.0, code="DEV001"
    )
    text = shown(msgspec.structs.replace(report, findings=(finding,)))
    assert "%" not in text.split("DEV001")[1].split("Caveats")[0]


def test_many_findings_are_counted_not_listed() -> None:
    report = made_up.cpu_wins()
    text = shown(msgspec.structs.replace(report, findings=report.findings * 6))
    assert "and 4 more findings, listed by --json" in text


def test_findings_that_gain_too_little_to_list_are_said_to_do_so() -> None:
    report = made_up.cpu_wins()
    little = msgspec.structs.replace(report.findings[0], gain_fraction=0.0)
    text = flat(shown(msgspec.structs.replace(report, findings=(little,) * 6)))
    assert "no fix is known to save much; 6 findings listed by --json" in text
    assert "more finding" not in text


def test_strings_of_the_user_cannot_steer_the_terminal() -> None:
    report = made_up.cpu_wins()
    evil = "\x1b[31m[bold red]evil\x07\u202e[/].py"
    report = msgspec.structs.replace(
        report,
        target=evil,
        host=msgspec.structs.replace(report.host, name=evil),
        verdict=msgspec.structs.replace(report.verdict, because=evil),
        findings=(msgspec.structs.replace(report.findings[0], file=evil, title=evil, fix=evil),),
        caveats=(Caveat(code=evil, message=evil),),
    )
    text = shown(report)
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "\\x1b[31m[bold red]evil\\x07\\u202e[/].py" in text


def test_a_name_of_10_kb_is_shortened_and_its_line_number_kept() -> None:
    report = made_up.cpu_wins()
    finding = msgspec.structs.replace(report.findings[0], file="/" + "x" * 10_000 + "/train.py")
    report = msgspec.structs.replace(report, target="y" * 10_000, findings=(finding,))
    text = shown(report)
    assert "/train.py:61" in text
    assert len(text) < 5_000


def test_undecodable_bytes_of_a_name_are_shown_as_escapes() -> None:
    report = msgspec.structs.replace(made_up.cpu_wins(), target="caf\udce9.py")
    assert "caf\\udce9.py" in shown(report)


def test_ascii_terminals_get_ascii_marks() -> None:
    text = shown(made_up.cpu_wins(), encoding="ascii")
    assert "* this CPU" in text
    assert "--o--" in text


def test_colours_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;36m" in shown(made_up.cpu_wins(), force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;36m" not in shown(made_up.cpu_wins(), force_terminal=True)


def test_columns_of_the_environment_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file = io.StringIO()
    show(made_up.cpu_wins(), Console(file=file))
    assert 50 < max(cell_len(line) for line in file.getvalue().splitlines()) <= 60


def test_report_without_a_cpu_has_no_ratio_column() -> None:
    report = made_up.cpu_wins()
    gpus = tuple(result for result in report.results if result.device != made_up.CPU_NAME)
    lines = shown(msgspec.structs.replace(report, results=gpus)).splitlines()
    (header,) = (line for line in lines if line.startswith("  device"))
    assert "vs CPU" not in header


@pytest.mark.parametrize(
    ("value_ns", "low_ns", "high_ns", "expected"),
    [
        (2.84e6, 2.2e6, 3.4e6, "2.8 ms (2.2–3.4)"),
        (2.84e6, 2.83e6, 2.85e6, "2.84 ms (2.83–2.85)"),
        (9.84e9, 9.5e9, 10.2e9, "9.8 s (9.5–10.2)"),
        (612e3, 590e3, 641e3, "610 µs (590–640)"),
        (960e3, 700e3, 1.35e6, "960 µs (700 µs–1.35 ms)"),
        (5e6, 5e6, 5e6, "5 ms"),
        (5.96e6, 3.04e6, 9.41e6, "6.0 ms (3.0–9.4)"),
        (233e6, 20e6, 3_740e6, "230 ms (20 ms–3.74 s)"),
    ],
)
def test_digits_follow_the_interval(
    value_ns: float, low_ns: float, high_ns: float, expected: str
) -> None:
    assert duration_with_interval(value_ns, low_ns, high_ns) == expected


def test_ratios_as_text() -> None:
    assert ratio_with_interval(14.2, 11.0, 17.3) == "14× (11–17×)"
    assert ratio_with_interval(1.04, 1.02, 1.06) == "1.04× (1.02–1.06×)"
    assert ratio_with_interval(3.0, 3.0, 3.0) == "3×"
    assert ratio_with_interval(1.5, 1.04, 2.1) == "1.5× (1.0–2.1×)"
    assert ratio_with_interval(69.1, 5.2, 1_136.0) == "69× (5–1,140×)"
    assert ratio_alone(1.0) == "1×"
    assert ratio_alone(1.042) == "1.04×"
    assert ratio_alone(0.432) == "0.43×"


def test_printable_and_shorten() -> None:
    assert printable("a\nb\tc") == "a b c"
    assert printable("a\x1b]0;t\x07") == "a\\x1b]0;t\\x07"
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abc", 3) == "abc"
    assert len(printable("z" * 10_000)) == 300


def test_a_list_names_so_many_and_counts_the_rest() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_interval_plot_on_a_log_axis() -> None:
    # Two decades in 21 characters: 10 characters a decade; 1 at 0, 10 at 10, 100 at 20.
    interval = Interval(10.0, 31.6, 100.0, (1.0, 100.0, 1.0), "o", "")
    plot = interval_plot(interval, 21)
    assert plot == "┊         ─────o─────"


def test_axis_is_at_least_a_decade() -> None:
    low, high = log_axis(
        [made_up.gpu("T4", 2e6, 2e6, 2e6, Bound.LAUNCH), made_up.cpu(2e6, 2e6, 2e6)]
    )
    assert high / low == pytest.approx(10.0)
    assert low * high == pytest.approx(4e12)

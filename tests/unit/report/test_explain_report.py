"""What an explanation looks like at a terminal and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from breakeven.report import json_schema, show, to_json
from breakeven.report.explain import gain_text
from breakeven.report.explain_shares import line_shares
from breakeven.report.shown import encode_document
from breakeven.report.timeline import CauseGroup, Strip
from breakeven.simulate import Severity, StepCause
from breakeven.trace import SourceText
from breakeven.verdict import ExplainReport, RecordedStep
from factories import explanations as made_up
from factories import terminal
from factories.terminal import HOSTILE, flat

show_hinted = partial(show, hints=("What a finding means: breakeven rules SYNC001",))
shown = partial(terminal.shown, shows=show_hinted)


@pytest.mark.parametrize("name", made_up.ALL)
def test_golden_at_80_columns(name: str, check_golden: Callable[[str, str], None]) -> None:
    check_golden(f"terminal_explain_{name}.txt", shown(made_up.ALL[name]()))


@pytest.mark.parametrize("name", made_up.ALL)
@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal(name: str, columns: int) -> None:
    lines = shown(made_up.ALL[name](), columns=columns).splitlines()
    assert max(map(cell_len, lines)) <= columns


@pytest.mark.parametrize("columns", [40, 60, 80, 130])
def test_figures_are_whole_at_any_width(columns: int) -> None:
    text = shown(made_up.launch_bound(), columns=columns)
    assert "…  " not in text
    for figure in ("30 %", "420 µs", "rnn_stream.py:57", "1.41 ms", "780 µs", "GPU 1.4×"):
        assert figure in text


def test_the_head_says_step_interval_bound_device_and_that_it_is_predicted() -> None:
    lines = shown(made_up.launch_bound()).splitlines()
    assert lines[0] == "examples/rnn_stream.py on RTX 4090: 1.4 ms (1.1–1.8) a step, predicted."
    # 0.26 of 1.41 ms, and 1.31 of 1.41 ms.
    assert lines[1] == (
        "Limited by kernel launches; the GPU is busy 18 % of the step, the host 93 %."
    )
    assert lines[2].startswith("Train this on your CPU: 1.2×")


def test_short_causes_are_summed_up_in_one_bar() -> None:
    report = made_up.launch_bound()
    text = shown(report)
    # 24 + 18 + 12 + 9 of 1,410 µs.
    assert re.search(r"4 more causes +█+[▏▎▍▌▋▊▉]? +4\.5 % +63 µs", text)


def test_a_strip_shows_what_takes_the_most_of_each_slice() -> None:
    spans = (
        made_up.span("host", "a", "dispatcher", "forward", 1, 0, 60),
        made_up.span("host", "b", "sync", "forward", 1, 60, 100),
        made_up.span("device", "c", "device-convolution", "forward", 1, 55, 100),
        made_up.span("elsewhere", "d", "python", "forward", 1, 0, 90),
    )
    strip = Strip(spans, 2)
    assert strip.end_ns == 100 * made_up.US
    host, device = strip.tracks["host"], strip.tracks["device"]
    assert [group for group, _ in host] == [CauseGroup.ISSUING, CauseGroup.WAITING]
    assert [group for group, _ in device] == [None, CauseGroup.ARITHMETIC]
    assert [busy_fraction for _, busy_fraction in device] == pytest.approx([0.0, 0.9])
    # Of the second half the host has 50 µs that count, the device 45.
    assert strip.critical == ["host", "host"]


def test_letters_tell_the_causes_apart() -> None:
    lines = shown(made_up.launch_bound()).splitlines()
    host = next(line for line in lines if line.startswith("host "))
    assert re.fullmatch(r"host +H+C+I+W+", host)
    device = next(line for line in lines if line.startswith("device "))
    # Kernels of 2.5 µs that come every 12.5 µs leave the device idle for most of each slice.
    assert re.fullmatch(r"device +\.+Cc?[mk]+\.+", device)
    legend = flat("\n".join(lines))
    for word in ("I issuing operators", "W waiting", "M matrix kernels", "lower case: less"):
        assert word in legend


def test_letters_have_the_colours_of_their_causes() -> None:
    text = shown(made_up.launch_bound(), force_terminal=True, color_system="truecolor")
    device = next(line for line in text.splitlines() if "device  " in line)
    assert re.search("\x1b\\[[0-9;]*36m[kK]", device)


def test_a_terminal_without_unicode_gets_bars_of_its_own() -> None:
    text = shown(made_up.launch_bound(), encoding="ascii")
    assert re.search(r"launching kernels +#{20,}", text)
    assert re.search(r"^critical \^+$", text, re.MULTILINE)
    assert re.search(r"StreamNet +#{10,}", text)


def test_findings_stay_in_their_order_with_place_gain_and_fix() -> None:
    text = shown(made_up.launch_bound())
    assert "high    SYNC001  saves 24 % (18–27 %)\n        examples/rnn_stream.py:61 · " in text
    assert "medium  CPU001  saves 12 % (9–14 %) of the CPU's step" in text
    positions = [text.index(f"  {finding.code}  ") for finding in made_up.FINDINGS]
    assert positions == sorted(positions)
    assert "fix: add the losses up on the GPU" in text
    assert "seen:" not in text
    assert "seen: aten._local_scalar_dense on a tensor" in shown(
        made_up.launch_bound(), shows=partial(show_hinted, shows_evidence=True)
    )


def test_a_fix_that_several_lines_share_is_told_with_the_first() -> None:
    first, *others = made_up.FINDINGS
    again = replace(first, line=63)
    text = shown(replace(made_up.launch_bound(), findings=(first, *others, again)))
    assert text.count("fix: add the losses up on the GPU") == 1
    assert text.count("fix: as for examples/rnn_stream.py:61") == 1


def test_findings_of_little_gain_take_one_line() -> None:
    text = shown(made_up.launch_bound(), columns=120)
    after = text[text.index("Also seen") :].splitlines()
    assert after[1].strip() == (
        "OPT002  Adam runs as 12 kernels; it can run as one  examples/rnn_stream.py:38"
    )


def test_a_line_that_raises_promises_no_gain() -> None:
    error = replace(made_up.FINDINGS[0], severity=Severity.ERROR, gain_fraction=0.0)
    assert gain_text(error) == ""
    text = shown(replace(made_up.launch_bound(), findings=(error,)))
    assert "error   SYNC001\n        examples/rnn_stream.py:61 · " in text
    assert "saves" not in text


def test_a_gain_that_nothing_tells_is_replaced_by_the_share() -> None:
    finding = replace(made_up.FINDINGS[0], gain_fraction=0.0)
    assert gain_text(finding) == "26 % of the step"
    exact = replace(made_up.FINDINGS[0], gain_low_fraction=0.238, gain_high_fraction=0.238)
    assert gain_text(exact) == "saves 24 %"


def test_many_findings_are_capped_and_it_is_said() -> None:
    many = tuple(
        replace(made_up.FINDINGS[0], line=line, severity=severity)
        for severity in (Severity.HIGH, Severity.INFO)
        for line in range(1, 31)
    )
    text = shown(replace(made_up.launch_bound(), findings=many, num_suppressed=3))
    assert text.count("high    SYNC001") == 10
    assert "and 44 more in --json" in text
    assert "3 of other rules left out by --rule" in text


def test_no_finding_is_said() -> None:
    assert "No finding of any rule." in shown(made_up.healthy())
    some = replace(made_up.healthy(), num_suppressed=2)
    assert "No finding of the rules asked for." in shown(some)


def _recording(source: SourceText) -> RecordedStep:
    return RecordedStep(
        version=1,
        trace=msgspec.UNSET,  # type: ignore[arg-type]
        other_size=None,
        host=msgspec.UNSET,  # type: ignore[arg-type]
        sources=(source,),
        cpu=None,
        sha256="",
    )


def test_a_line_shows_its_text_where_the_file_is_known() -> None:
    lines = ["" for _ in range(60)] + ["    running += loss.item()\x1b[2J"]
    source = SourceText(path="examples/rnn_stream.py", text="\n".join(lines))
    text = shown(replace(made_up.launch_bound(), recording=_recording(source)))
    assert r"12 %  rnn_stream.py:61  running += loss.item()\x1b[2J" in text


def test_a_line_of_nobody_is_named_as_such() -> None:
    parts = (
        made_up.part("python", "forward", "", 3, 600),
        made_up.part("autograd", "backward", "", None, 400),
    )
    text = shown(replace(made_up.launch_bound(), attribution=made_up.attribution(*parts)))
    assert re.search(r"40 %  outside your code +autograd", text)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("columns", [40, 80, 160])
def test_hostile_names_cannot_steer_a_terminal(name: str, columns: int) -> None:
    report = made_up.with_names(made_up.launch_bound(), name)
    text = shown(report, columns=columns, shows=partial(show_hinted, shows_evidence=True))
    assert text.replace("\n", "").isprintable()
    assert max(map(cell_len, text.splitlines())) <= columns
    assert len(text) < 40_000
    # What is not the user's is as it was, the number of a line too.
    assert ":61" in text
    assert "SYNC001" in text
    assert "30 %" in text


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("columns", [20, 40, 80])
def test_hostile_names_of_functions_cannot_either(name: str, columns: int) -> None:
    text = shown(made_up.with_names(made_up.trainer(), name), columns=columns)
    assert text.replace("\n", "").isprintable()
    assert max(map(cell_len, text.splitlines())) <= columns
    assert ":46" in text


def test_what_a_framework_does_below_a_line_follows_it() -> None:
    shares = line_shares(made_up.trainer().attribution, None)
    trainer = shares[0]
    assert (trainer.line, trainer.time_ns) == (46, 1_165_000)
    assert [(part.name, part.cause, part.time_ns) for part in trainer.frames] == [
        ("training_step → backward", "autograd", 410_000),
        ("training_step", "dispatching operators", 390_000),
        ("get_batch_samples", "loading data", 180_000),
        ("step", "issuing the optimizer", 120_000),
        ("get_batch_samples → send_to_device", "copies, pinned memory", 60_000),
        # Below 1 % of the step, and in JSON alone.
        ("train", "waits, fixed cost", 5_000),
    ]
    assert sum(part.time_ns for part in trainer.frames) == trainer.time_ns
    assert all(share.frames == () for share in shares[1:])


def test_a_line_with_one_part_alone_is_not_repeated() -> None:
    below = ("accelerate.accelerator:Accelerator.backward",)
    one = made_up.attribution(
        made_up.part(StepCause.AUTOGRAD, "backward", "", 7, 30, frames=below),
        made_up.part(StepCause.LAUNCH, "backward", "", 7, 20, frames=below),
    )
    (line,) = line_shares(one, None)
    assert line.frames == ()


def test_functions_of_a_framework_are_whole_at_any_width() -> None:
    assert "→ training_step → backward" in shown(made_up.trainer())
    narrow = shown(made_up.trainer(), columns=50)
    assert all(word in narrow for word in ("→ training_step →", " backward ", "send_to_device"))
    assert "-> training_step -> backward" in shown(made_up.trainer(), encoding="ascii")


def test_markup_of_a_name_is_shown_as_it_is() -> None:
    report = made_up.with_names(made_up.launch_bound(), "[bold]x[/bold].py")
    text = shown(report, force_terminal=True, color_system="truecolor")
    assert "[bold]x[/bold].py on RTX 4090" in text


def test_a_timeline_of_one_long_span_and_one_of_many_short_ones_are_drawn() -> None:
    spans = tuple(
        made_up.span("host", "a", "python", "forward", 1, start, start + 0.5)
        for start in range(20_000)
    )
    text = shown(replace(made_up.launch_bound(), timeline=spans))
    assert re.search(r"^host +[Ii]+$", text, re.MULTILINE)
    assert "One step" not in shown(replace(made_up.launch_bound(), timeline=()))


@pytest.mark.parametrize("name", made_up.ALL)
def test_json_reads_back_as_the_same_report(name: str) -> None:
    report = made_up.ALL[name]()
    assert msgspec.json.decode(to_json(report), type=ExplainReport) == report


@pytest.mark.parametrize("name", made_up.ALL)
def test_json_fits_its_schema(name: str) -> None:
    document = json.loads(to_json(made_up.ALL[name]()))
    schema = json_schema("explain")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    assert (
        document["schema_version"]
        == schema["$defs"]["ExplainReport"]["properties"]["schema_version"]["const"]
    )


def test_the_schema_describes_every_key_and_leaves_the_recording_open() -> None:
    definitions = json_schema("explain")["$defs"]
    for name, definition in definitions.items():
        for key, value in definition.get("properties", {}).items():
            assert "const" in value or value.get("description") or "$ref" in value, f"{name}.{key}"
    assert "StepTrace" not in definitions
    recording = definitions["ExplainReport"]["properties"]["recording"]
    assert recording["anyOf"] == [{"type": "object"}, {"type": "null"}]


def test_the_schema_in_the_docs_is_up_to_date(pytestconfig: pytest.Config) -> None:
    path = pytestconfig.rootpath / "docs" / "schema" / "explain.schema.json"
    assert path.read_bytes() == encode_document(json_schema("explain")), (
        "run: python -m breakeven.report.schema explain > docs/schema/explain.schema.json"
    )


def test_json_of_a_name_that_is_not_utf_8_can_be_read() -> None:
    report = made_up.with_names(made_up.launch_bound(), "caf\udce9.py")
    document = json.loads(to_json(report))
    assert document["target"] == "caf�.py"
    assert document["findings"][0]["file"] == "caf�.py"


def test_a_report_that_breaks_its_schema_is_not_written() -> None:
    broken = replace(
        made_up.launch_bound(), findings=(replace(made_up.FINDINGS[0], gain_fraction=1.5),)
    )
    with pytest.raises(msgspec.ValidationError):
        to_json(broken)


def test_a_long_line_of_code_leaves_its_figures_whole() -> None:
    report = made_up.with_names(made_up.launch_bound(), "/home/someone/projects/train.py")
    source = SourceText(path=report.target, text="\n".join(["x = " + "y + " * 200] * 70))
    for columns in (60, 80, 120):
        text = shown(replace(report, recording=_recording(source)), columns=columns)
        row = next(line for line in text.splitlines() if "train.py:57" in line)
        assert row.strip().startswith("30 %  train.py:57  x = y + y")
        assert max(map(cell_len, text.splitlines())) <= columns

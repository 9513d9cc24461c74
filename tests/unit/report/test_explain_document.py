"""The document of an explanation, and the time of a step summed up."""

from __future__ import annotations

import re
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from breakeven.report import PlanStep, RecordedStep, chart_document, explain_shares, show
from breakeven.report.explain import gain_text, plan_sentence
from breakeven.report.explain_shares import (
    NO_MODULE,
    cause_shares,
    frames_text,
    line_shares,
    phase_shares,
    short_names,
)
from breakeven.report.timeline import CauseGroup, Strip, group_and_words
from breakeven.simulate import Severity, StepCause
from breakeven.trace import SourceText
from breakeven.verdict import DeviceKind
from factories import explanations as made_up
from factories import terminal
from factories.pages import Reader
from factories.terminal import flat

show_hinted = partial(show, hints=("What a finding means: breakeven rules SYNC001",))

shown = partial(terminal.shown, shows=show_hinted)


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


def test_a_timeline_of_one_long_span_and_one_of_many_short_ones_are_drawn() -> None:
    spans = tuple(
        made_up.span("host", "a", "python", "forward", 1, start, start + 0.5)
        for start in range(20_000)
    )
    text = shown(replace(made_up.launch_bound(), timeline=spans))
    assert re.search(r"^host +[Ii]+$", text, re.MULTILINE)
    assert "One step" not in shown(replace(made_up.launch_bound(), timeline=()))


def test_a_long_line_of_code_leaves_its_figures_whole() -> None:
    report = made_up.with_names(made_up.launch_bound(), "/home/someone/projects/train.py")
    source = SourceText(path=report.target, text="\n".join(["x = " + "y + " * 200] * 70))
    for columns in (60, 80, 120):
        text = shown(replace(report, recording=_recording(source)), columns=columns)
        row = next(line for line in text.splitlines() if "train.py:57" in line)
        assert row.strip().startswith("30 %  train.py:57  x = y + y")
        assert max(map(cell_len, text.splitlines())) <= columns


def test_the_plan_shows_the_step_after_each_fix_and_where_the_verdict_turns() -> None:
    lines = shown(made_up.launch_bound(), columns=110).splitlines()
    rows = [line for line in lines if "rnn_stream.py:" in line and "○" in line]
    assert rows[0].split()[:6] == ["1", "SYNC001", "rnn_stream.py:61", "○", "1.07", "ms"]
    # 1,410 / 1,070 µs on the GPU; the CPU's step is the measured one still.
    assert rows[0].split()[6:10] == ["1.3×", "●", "1.21", "ms"]
    assert rows[0].endswith("too close (turns)")
    # The data is loaded elsewhere, so the CPU's step is shorter too, and no longer a measured one.
    assert rows[1].split()[6:11] == ["1.8×", "○", "1.12", "ms", "1.08×"]
    assert rows[1].rstrip().endswith("GPU 1.4× (turns)")
    assert "After the first 2 fixes the verdict turns. A GPU pays off: RTX 4090" in flat(
        "\n".join(lines)
    )


def test_a_plan_that_turns_nothing_says_so() -> None:
    first, *others = made_up.launch_bound().plan
    same = (first, *(replace(step, verdict=first.verdict) for step in others))
    assert plan_sentence(same).startswith(
        "Both fixes together do not turn the verdict. Train this on your CPU"
    )
    assert plan_sentence((*same, same[-1])).startswith("All 3 fixes together do not turn")
    assert plan_sentence(same[:2]).startswith("The fix does not turn the verdict.")


def test_a_plan_turns_with_the_fix_from_which_on_the_verdict_stays() -> None:
    first, close, gpu = made_up.launch_bound().plan
    back = replace(close, verdict=first.verdict)
    assert plan_sentence((first, gpu, back, gpu)).startswith("After the first 3 fixes")
    assert plan_sentence((first, gpu, gpu)).startswith("After the first fix the verdict turns.")
    assert plan_sentence((gpu, first)).endswith("faster than the best GPU, RTX 4090.")


def with_two_cpus(step: PlanStep) -> PlanStep:
    """Return a step of a plan with its CPU on one thread and on eight."""
    (cpu,) = (result for result in step.results if result.kind is DeviceKind.CPU)
    cpus = tuple(
        replace(cpu, device=f"{cpu.device} ({text})", setting=text)
        for text in ("1 thread", "8 threads")
    )
    return replace(step, results=(*cpus, *(one for one in step.results if one is not cpu)))


def test_the_cpu_on_several_numbers_of_threads_has_a_column_for_each() -> None:
    report = made_up.launch_bound()
    page = Reader(
        chart_document(replace(report, plan=tuple(map(with_two_cpus, report.plan))), ".html")
    )
    assert [name for name in page.text("th") if name.startswith("AMD EPYC 7B13 (")] == [
        "AMD EPYC 7B13 (1 thread)",
        "AMD EPYC 7B13 (8 threads)",
    ]


def test_a_device_that_is_too_small_has_no_time_in_the_plan() -> None:
    report = made_up.launch_bound()
    results = tuple(
        replace(result, fits=False) if result.device == "T4" else result
        for result in report.plan[0].results
    )
    plan = (replace(report.plan[0], results=results), *report.plan[1:])
    page = Reader(chart_document(replace(report, plan=plan), ".html"))
    assert "too big for its memory" in page.text("td")


module_shares = partial(explain_shares.module_shares, max_depth=12)


def test_shares_add_up_to_the_step() -> None:
    attribution = made_up.launch_bound_attribution()
    lines = line_shares(attribution, None)
    for times, fractions in (
        zip(*((time_ns, share) for _, time_ns, share, _ in cause_shares(attribution)), strict=True),
        zip(*((line.time_ns, line.fraction) for line in lines), strict=True),
    ):
        assert sum(times) == attribution.step_ns
        assert sum(fractions) == pytest.approx(1.0)
        assert list(times) == sorted(times, reverse=True)
    assert sum(fraction for _, fraction in phase_shares(attribution)) == pytest.approx(1.0)
    top = [share for share in module_shares(attribution, least_fraction=0.0) if share.depth == 0]
    assert sum(share.fraction for share in top) == pytest.approx(1.0)


def test_phases_come_in_the_order_of_a_step() -> None:
    names = [name for name, _ in phase_shares(made_up.launch_bound_attribution())]
    assert names == ["data", "forward", "backward", "optimizer", "the rest"]


def test_modules_nest_below_their_parents() -> None:
    rows = module_shares(made_up.launch_bound_attribution(), least_fraction=0.0)
    assert [(row.depth, row.name) for row in rows] == [
        (0, "StreamNet"),
        (1, "encoder.cells"),
        (2, "0"),
        (2, "1"),
        (1, "head"),
        (0, NO_MODULE),
    ]
    whole, cells, first, second, head, outside = rows
    # 952, 726, 620, 106 and 166 of 1,410 µs.
    assert [round(row.fraction * 1_410) for row in rows[:5]] == [952, 726, 620, 106, 166]
    assert second.start_fraction == pytest.approx(first.start_fraction + first.fraction)
    assert head.start_fraction == pytest.approx(cells.start_fraction + cells.fraction)
    assert outside.start_fraction == pytest.approx(whole.fraction)
    assert cells.fraction == pytest.approx(first.fraction + second.fraction)
    for row in rows[:5]:
        assert row.forward_fraction + row.backward_fraction == pytest.approx(row.fraction)


def test_small_modules_are_left_out_and_deep_ones_cut() -> None:
    attribution = made_up.attribution(
        made_up.part("python", "forward", "a.b.c.d", 1, 900),
        made_up.part("python", "forward", "a.b.e", 1, 90),
        made_up.part("python", "forward", "tiny", 1, 10),
    )
    names = [row.name for row in module_shares(attribution, least_fraction=0.02)]
    assert names == ["a.b", "c.d", "e"]
    cut = module_shares(attribution, least_fraction=0.02, max_depth=2)
    assert [(row.name, round(row.fraction, 2)) for row in cut] == [("a.b", 0.99)]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ((), ""),
        (("a.b:Trainer.fit",), "fit"),
        (("a.b:Trainer.fit", "a.c:Loop.backward"), "backward"),
        (("a.b:Trainer.fit", "a.c:Loop.step", "t:move"), "step → move"),
        # The class tells what a function of Python's own name does.
        (("a.b:Trainer.fit", "a.c:CombinedLoader.__next__"), "CombinedLoader.__next__"),
    ],
)
def test_functions_are_named_without_their_modules(frames: tuple[str, ...], text: str) -> None:
    assert frames_text(frames) == text


def test_files_are_named_below_the_folder_that_they_share() -> None:
    assert short_names(["/home/me/run/train.py", "/home/me/run/models/net.py", None]) == {
        "/home/me/run/train.py": "train.py",
        "/home/me/run/models/net.py": "models/net.py",
    }
    assert short_names(["/a/train.py"]) == {"/a/train.py": "train.py"}
    assert short_names(["train.py", "/a/net.py"]) == {
        "train.py": "train.py",
        "/a/net.py": "/a/net.py",
    }
    assert short_names([]) == {}


def test_every_cause_has_words_and_a_colour() -> None:
    words = [group_and_words(cause)[1] for cause in StepCause]
    assert len(set(words)) == len(words)
    assert not set(words) & {cause.value for cause in StepCause} - {"autograd"}
    assert group_and_words("device-gemm")[0] is CauseGroup.ARITHMETIC
    assert group_and_words("device-sort")[0] is CauseGroup.KERNELS
    assert group_and_words("device-idle")[0] is CauseGroup.WAITING
    assert group_and_words("device-batched_gemm")[1] == "GPU: batched gemm"
    assert group_and_words("of a later version\x1b")[1] == r"of a later version\x1b"
    letters = [group.letter for group in CauseGroup]
    assert len(set(letters)) == len(letters)


@pytest.mark.parametrize("columns", [40, 60, 80, 130])
def test_figures_are_whole_at_any_width(columns: int) -> None:
    text = shown(made_up.launch_bound(), columns=columns)
    assert "…  " not in text
    for figure in ("30 %", "420 µs", "rnn_stream.py:57", "1.41 ms", "780 µs", "GPU 1.4×"):
        assert figure in text

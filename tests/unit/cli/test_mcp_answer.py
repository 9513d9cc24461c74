"""What an agent reads: the facts of a report, never more than it pays for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven.cli.mcp_answer import MAX_CHARACTERS, answer_of
from breakeven.report import to_json
from breakeven.studies import CostRequest, TrainingLength, cost_run
from factories import explanations, normals, reports

URI = "breakeven://reports/check-00000000"


def answered(report: Any) -> tuple[str, dict[str, Any]]:
    return answer_of(report, uri=URI, path="/cache/run.json")


def num_tokens(text: str) -> int:
    """Return about as many tokens as a language model reads: short words, digits, signs."""
    return len(re.findall(r"[A-Za-z]{1,6}|[0-9]{1,3}|[^\w\s]", text))


def test_a_check_is_its_verdict_devices_findings_and_caveats() -> None:
    text, values = answered(reports.cpu_wins())
    lines = text.splitlines()
    assert lines[0].startswith("Train this on your CPU: 2.3× (1.8–2.9×) faster than the best GPU")
    assert "- RTX 4090: 1.4 ms (1.1–1.8) a step, predicted, limited by launch" in lines
    assert "- this CPU: 610 µs (590–640) a step, measured, limited by compute" in lines
    finding = next(line for line in lines if "SYNC001" in line)
    assert finding.startswith("- SYNC001 examples/rnn_stream.py:61 saves 24 %: loss.item() makes")
    assert "Fix: add the losses up on the GPU" in finding
    assert lines[-1] == f"Whole report: {URI} (/cache/run.json). Intervals cover 90 %."
    assert values["devices"][0]["device"] == reports.CPU_NAME
    assert values["devices"][0]["step_ns"] == 612_000
    assert values["findings"][0]["gain_fraction"] == 0.24
    assert values["report_uri"] == URI


def test_a_small_step_has_the_rows_of_its_other_forms() -> None:
    text, values = answered(reports.at_their_best())
    devices = text.partition("Devices:\n")[2].partition("Caveats:")[0].splitlines()
    assert devices[0].startswith("- this CPU, generated step: 21 µs")
    assert devices[1].startswith("- this CPU: 610 µs")
    assert devices[2].startswith("- RTX 4090, CUDA graph: 38 µs (30–50) a step, predicted")
    assert [one.get("setting") for one in values["devices"]][:3] == [
        "generated step", None, "CUDA graph",
    ]  # fmt: skip
    assert len(devices) == len(values["devices"]) == len(reports.at_their_best().results) + 2


def test_an_explanation_says_after_which_fixes_the_verdict_turns() -> None:
    text, values = answered(explanations.launch_bound())
    assert "After the first 2 fixes the verdict turns. A GPU pays off" in text
    assert "- SYNC001 examples/rnn_stream.py:61 saves 24 % (18 % to 27 %)" in text
    assert "saves 12 % (9 % to 14 %) of the CPU's step" in text
    assert [one["code"] for one in values["findings"]] == [
        "SYNC001",
        "LOAD001",
        "CPU001",
        "OPT002",
    ]


def test_a_judged_speed_has_its_causes() -> None:
    text, values = answered(normals.all_paces())
    assert "Too slow: T4 should take 12 ms (9–15) a step" in text
    assert "T4, device: 24 ms, 28 % likely; look at: nvidia-smi" in text
    assert [one["pace"] for one in values["devices"] if "pace" in one] == [
        "slow",
        "normal",
        "fast",
        "slow",
    ]


def test_a_cost_has_this_machine_and_those_that_none_beats(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(to_json(normals.stored_run(normals.large_step()), with_recording=True))
    report = cost_run(path, CostRequest(length=TrainingLength(num_steps=1_000_000)))
    text, values = answered(report)
    assert text.startswith(report.answer)
    assert "Findings:" not in text  # a cost has none
    machines = [one["machine"] for one in values["devices"]]
    assert machines[0] == "this machine"
    front = [row.machine for row in report.rows if row.is_on_front]
    assert {*front[:1], *front[-1:]} <= {*machines}
    assert re.search(r"\$[0-9.]+ \(\$[0-9.]+–\$[0-9.]+\)", text)


@pytest.mark.parametrize(
    "report",
    [reports.gpu_wins(), reports.at_their_best(), explanations.trainer(), normals.all_paces()],
)
def test_answers_cost_at_most_1_000_tokens(report: Any) -> None:
    text, values = answered(report)
    assert num_tokens(text) <= 1_000
    assert num_tokens(msgspec.json.encode(values).decode()) <= 1_000


@given(copies=st.integers(1, 60), length=st.integers(1, 5_000))
def test_no_report_makes_a_longer_answer(copies: int, length: int) -> None:
    report = reports.cpu_wins()
    long = [replace(one, title="x" * length) for one in report.findings]
    gpus = [replace(one, device=one.device + "y" * length) for one in report.results]
    report = replace(
        report, findings=tuple(long * copies), results=(*report.results, *(gpus * copies))
    )
    text, values = answered(report)
    assert len(text) <= MAX_CHARACTERS
    assert len(msgspec.json.encode(values)) <= MAX_CHARACTERS
    assert "Train this on your CPU" in text
    assert "Whole report: " in text

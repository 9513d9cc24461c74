"""`breakeven.ask`: which study answers, with which options; and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import breakeven
from breakeven.adapters import question as module
from breakeven.errors import BreakevenError, UsageError
from breakeven.report import CheckReport, ExplainReport, to_json
from breakeven.studies import CostRequest, TrainingLength
from breakeven.verdict import AxisRole
from factories import normals, reports, sweeps, tuned
from unit.studies.test_cost import stored

Calls = dict[str, tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Replace every study that runs something; return how it was called."""
    called: Calls = {}

    def stand_in(name: str) -> Any:
        def study(*args: Any, **options: Any) -> CheckReport:
            called[name] = args, options
            return normals.stored_run(normals.small_step())

        return study

    for name in (
        "check_step", "check_target", "explain_target", "normal_target", "cost_target",
        "sweep_target",
    ):  # fmt: skip
        monkeypatch.setattr(module, name, stand_in(name))
    return called


def step() -> None:
    """Stands in for a training step."""


def test_script_is_checked(calls: Calls, tmp_path: Path) -> None:
    report = breakeven.ask(
        tmp_path / "train.py", devices=["T4"], host="desktop", arguments=["--lr", "1"], num_steps=9
    )
    assert isinstance(report, breakeven.Report)
    assert calls["check_target"] == (
        (str(tmp_path / "train.py"),),
        {
            "devices": ("T4",), "host": "desktop", "arguments": ["--lr", "1"],
            "length": TrainingLength(num_steps=9),
        },
    )  # fmt: skip


def test_each_question_has_its_study(calls: Calls) -> None:
    breakeven.ask("train.py", question="explain", rules=["SYNC001"], is_module=True)
    breakeven.ask("train.py", question="normal", measured=["T4: 3 ms"])
    breakeven.ask("train.py:step", question="cost", num_epochs=3, budget_usd=20.0, host="here")
    breakeven.ask("train.py", batch_sizes=[16, 64], is_fresh=True)
    assert calls["explain_target"][1] == {"rules": ["SYNC001"], "is_module": True}
    assert calls["normal_target"][1] == {"measured": ["T4: 3 ms"]}
    request = CostRequest(length=TrainingLength(num_epochs=3), budget_usd=20.0)
    assert calls["cost_target"] == (("train.py:step",), {"host": "here", "request": request})
    (axis,) = calls["sweep_target"][1]["axes"]
    assert (axis.role, axis.values) == (AxisRole.BATCH_SIZE, (16, 64))


def test_function_is_checked_in_this_process_and_the_rest_follows(calls: Calls) -> None:
    assert isinstance(breakeven.ask(step, budget_s=0.1).value, CheckReport)
    assert calls["check_step"] == ((step,), {"budget_s": 0.1, "knows_other_cpus": True})
    explained = breakeven.ask(step, question="explain", devices=["L4"]).value
    assert isinstance(explained, ExplainReport)
    assert explained.device == "L4"
    judged = breakeven.ask(step, question="normal", measured=["T4: 41 ms"]).value
    assert [one.said for one in judged.speeds] == ["T4: 41 ms"]


def test_stored_run_and_its_report_answer_alike(tmp_path: Path, calls: Calls) -> None:
    run = stored(tmp_path)
    read = breakeven.ask(run)
    asked = {"question": "cost", "num_steps": 1000, "machines": ("g4dn.xlarge",)}
    assert breakeven.ask(run, **asked).value == breakeven.ask(read, **asked).value
    assert breakeven.ask(read.value, question="explain", devices=["T4"]).value.device == "T4"
    assert not calls


def test_numbers_of_numpy_and_ranges_are_options(calls: Calls) -> None:
    breakeven.ask("train.py", batch_sizes=range(16, 64, 16))
    breakeven.ask("train.py", num_steps=np.int64(9), time_limit_s=np.float32(8))
    assert calls["sweep_target"][1]["axes"][0].values == (16, 32, 48)
    assert calls["check_target"][1]["length"].num_steps == 9


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("train.py", {"question": "why"}, "'why' is no question"),
        ("train.py", {"question": "cost", "batch_sizes": [2]}, "batch_sizes is for a check of a"),
        ("train.py", {"devices": "T4"}, "devices cannot be 'T4'"),
        (step, {"devices": [3]}, r"devices cannot be \[3\]"),
        (step, {"devices": iter(["T4"])}, "devices cannot be <list_iterator"),
        (step, {"host": None}, "host cannot be None"),
        ("train.py", {"batch_sizes": [0]}, r"batch_sizes cannot be \[0\]"),
        (step, {"budget_s": "1"}, "budget_s cannot be '1'"),
        (step, {"question": "normal", "measured": "T4: 3 ms"}, "measured cannot be 'T4: 3 ms'"),
        (step, {"question": "explain", "rules": [None]}, r"rules cannot be \[None\]"),
        (step, {"question": "cost", "num_steps": 1.5}, "num_steps cannot be 1.5"),
        (step, {"question": "cost", "deadline_s": "8h" * 80}, "deadline_s cannot be '8h8h.*…"),
        (step, {"batch_sizes": [2]}, "batch_sizes is for a check of a script"),
        ("run.json", {}, "cannot read run.json"),
        (3, {}, "an object of type int is no training"),
        (torch.ones(1), {}, "type Tensor is no training"),
        ((step, step), {}, "type tuple is no training"),
    ],
)
def test_what_is_wrong_is_named(
    what: Any, options: dict[str, Any], message: str, calls: Calls
) -> None:
    with pytest.raises(BreakevenError, match=message) as caught:
        breakeven.ask(what, **options)
    assert caught.value.hint or "cannot read" in caught.value.message
    assert not calls


@pytest.mark.parametrize(
    ("what", "options"),
    [
        (breakeven.Report(reports.cpu_wins()), {"devices": ["T4"]}),
        (breakeven.Report(reports.cpu_wins()), {"question": "explain", "time_limit_s": 3}),
        (breakeven.Report(reports.cpu_wins()), {"question": "cost", "rules": ["SYNC001"]}),
        (__file__, {"rules": ["SYNC001"]}),
        (__file__, {"question": "cost", "devices": ["T4"], "num_steps": 1}),
    ],
)
def test_an_option_of_another_study_is_a_type_error(what: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"devices|time_limit_s|rules"):
        breakeven.ask(what, **options)


def test_a_report_without_a_step_cannot_be_asked_again(tmp_path: Path) -> None:
    for value in (sweeps.batch_sizes(), tuned.report()):
        (tmp_path / "run.json").write_bytes(to_json(value))
        with pytest.raises(BreakevenError, match="records no step"):
            breakeven.ask(tmp_path / "run.json", question="explain")
    with pytest.raises(BreakevenError, match="holds no recorded step"):
        breakeven.ask(breakeven.Report(reports.cpu_wins()), question="explain")


def test_step_with_arguments_is_refused_before_it_is_called() -> None:
    def needs(x: object, y: object, *rest: object, scale: float = 1.0) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=r"the step needs arguments \(missing .* 'x'\)") as caught:
        breakeven.ask(needs)
    assert caught.value.hint
    assert "functools.partial(step, ...)" in caught.value.hint


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(UsageError, match="needs arguments"):
        breakeven.ask(torch.nn.Linear(2, 2))
    weight = torch.ones(2, requires_grad=True)
    for inference in (lambda: 1, lambda: weight.sum()):
        with pytest.raises(BreakevenError, match="<lambda> is no training step: it ran without"):
            breakeven.ask(inference)

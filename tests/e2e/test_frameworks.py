"""Scripts whose step runs within a framework: its parts are told apart, and its arguments named."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_process import SCRIPTS, line_of
from msgspec.structs import replace

from breakeven.advise import Diagnosis, RuleInput, diagnose
from breakeven.capture import Launcher
from breakeven.report import ExplainReport
from breakeven.simulate import Finding, WhatIf
from breakeven.studies import explain_target, explanation
from breakeven.trace import HostWork

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find what is found where no other work on this machine lengthens a script's own time.

    What is found beside much of that is tested of made-up steps.
    """

    def diagnose_quiet(
        case: RuleInput, _: object = None, what_if: WhatIf | None = None
    ) -> tuple[Diagnosis, ...]:
        events = tuple(
            replace(event, duration_ns=0)
            if isinstance(event, HostWork) and event.kind == "script"
            else event
            for event in case.trace.events
        )
        trace = replace(case.trace, events=events)
        quiet = RuleInput.of(trace, case.device, case.host, sources=case.sources, cpu=case.cpu)
        return diagnose(quiet)

    monkeypatch.setattr(explanation, "diagnose", diagnose_quiet)


def explained(launcher: Launcher, script: Path) -> ExplainReport:
    return explain_target(str(script), devices=("T4",), host="reference", launcher=launcher)


def parts_at(report: ExplainReport, line: int) -> set[str]:
    """Return the names of the functions that the time of a line is spent in; "" is itself."""
    return {
        part.frames[-1].rpartition(":")[2].rpartition(".")[2] if part.frames else ""
        for part in report.attribution.parts
        if part.line == line
    }


def entries_at(report: ExplainReport, line: int) -> set[str]:
    """Return what a line calls, module and function."""
    return {part.frames[0] for part in report.attribution.parts if part.line == line}


def finding(report: ExplainReport, code: str) -> Finding:
    (found,) = [one for one in report.findings if one.code == code]
    return found


def test_lightning(launcher: Launcher) -> None:
    script = SCRIPTS / "lightning_loop.py"
    report = explained(launcher, script)
    fit = line_of(script, "trainer.fit(")
    assert entries_at(report, fit) == {"lightning.pytorch.trainer.trainer:Trainer.fit"}
    assert {"batch_to_device", "backward", "optimizer_step"} <= parts_at(report, fit)
    # The module's own step is the user's, with its backward pass.
    assert parts_at(report, line_of(script, "cross_entropy(")) == {""}
    copied = finding(report, "COPY001")
    assert (copied.file, copied.line) == (str(script), fit)
    assert copied.frames[-1].endswith(":Strategy.batch_to_device")
    assert copied.fix == "DataLoader(..., pin_memory=True): Lightning copies without waiting then"
    assert "trainer.fit(torch.compile(model" in finding(report, "LAUNCH001").fix


def test_trainer_of_transformers(launcher: Launcher) -> None:
    script = SCRIPTS / "hf_trainer_loop.py"
    report = explained(launcher, script)
    train = line_of(script, "trainer.train()")
    assert entries_at(report, train) == {"transformers.trainer:Trainer.train"}
    parts = {"compute_loss", "backward", "step", "clip_grad_norm_", "send_to_device"}
    assert parts <= parts_at(report, train)
    assert "TrainingArguments(torch_compile=True" in finding(report, "LAUNCH001").fix


@pytest.mark.full
def test_what_a_trainer_was_told_is_fixed_by_telling_it_otherwise(
    launcher: Launcher, tmp_path: Path
) -> None:
    text = (SCRIPTS / "hf_trainer_loop.py").read_text()
    script = tmp_path / "finetune.py"
    told = 'disable_tqdm=True,\n            optim="adamw_torch", dataloader_pin_memory=False,'
    script.write_text(text.replace("disable_tqdm=True,", told))
    report = explained(launcher, script)
    unfused = finding(report, "OPT002")
    assert unfused.fix == 'TrainingArguments(optim="adamw_torch_fused")'
    assert unfused.line == line_of(script, "trainer.train()")
    copied = finding(report, "COPY001")
    assert copied.fix.startswith("TrainingArguments(dataloader_pin_memory=True, ")
    assert copied.frames[-1] == "accelerate.utils.operations:send_to_device"


def test_accelerate_in_a_loop_of_ones_own(launcher: Launcher) -> None:
    script = SCRIPTS / "accelerate_loop.py"
    report = explained(launcher, script)
    assert parts_at(report, line_of(script, "cross_entropy(")) == {""}
    assert parts_at(report, line_of(script, "accelerator.backward")) == {"backward"}
    assert parts_at(report, line_of(script, "for x, y in loader")) == {"__iter__", "send_to_device"}
    assert "Accelerator(dataloader_config=" in finding(report, "COPY001").fix


# What warns at its import says nothing about breakeven.
@pytest.mark.filterwarnings("ignore")
def test_stable_baselines(launcher: Launcher) -> None:
    pytest.importorskip("stable_baselines3")
    script = SCRIPTS / "sb3_ppo.py"
    report = explained(launcher, script)
    learn = line_of(script, "model.learn(")
    assert entries_at(report, learn) == {"stable_baselines3.ppo.ppo:PPO.learn"}
    parts = {"evaluate_actions", "backward", "clip_grad_norm_", "step", "train"}
    assert parts <= parts_at(report, learn)
    unfused = finding(report, "OPT002")
    assert unfused.line == line_of(script, "model = PPO(")
    assert unfused.fix == (
        "PPO(..., policy_kwargs=dict(optimizer_kwargs=dict(fused=True, eps=1e-5)))"
    )
    read = finding(report, "SYNC001")
    assert read.line == learn
    assert read.frames[-1] == "stable_baselines3.ppo.ppo:PPO.train"
    assert read.fix.startswith("inside stable_baselines3: not an argument; PPO(..., batch_size=")

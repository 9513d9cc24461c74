"""What a training framework does below the user's line, as it is recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from breakeven.capture.record.origins import FrameworkFrame, parts_of_step
from breakeven.capture.record.recorder import StepRecorder
from breakeven.cost import reference_host
from breakeven.report import RecordedStep, record
from breakeven.trace import Event, HostWork, StepTrace
from factories.fake_steps import next_line, pretending

TRAINER = """
import torch

class Trainer:
    def fit(self, model, optimizer, x):
        return self._run(model, optimizer, x)

    def _run(self, model, optimizer, x):
        x = self.batch_to_device(x)
        loss = self.training_step(model, x)
        self._scale(loss)
        self.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return self.optimizer_step(optimizer)

    def batch_to_device(self, x):
        return x.to("cuda")

    def training_step(self, model, x):
        return model(x).sum()

    def _scale(self, loss):
        return loss / 2

    def backward(self, loss):
        self._loss_backward(loss)

    def _loss_backward(self, loss):
        loss.backward()

    def optimizer_step(self, optimizer):
        return optimizer.step()
"""


def library(source: str, name: str) -> SimpleNamespace:
    """Return a module that looks installed: neither it nor what it calls is the user's."""
    file = f"/opt/lib/python3/site-packages/{name.replace('.', '/')}.py"
    module: dict[str, Any] = {"__name__": name}
    exec(compile(source, file, "exec"), module)
    return SimpleNamespace(**module)


def frames_at(recorder: StepRecorder, line: int) -> dict[tuple[str, ...], set[str]]:
    """Return the operators, copies and waits of a line, by what the framework does there."""
    found: dict[tuple[str, ...], set[str]] = {}
    for event in recorder.events:
        # A busy machine may make a pause of what comes between two operators.
        is_here = event.location is not None and event.location.line == line
        if not is_here or isinstance(event, HostWork):
            continue
        frames = recorder.origins.frames[event.stack]
        named = tuple(frame.rpartition(":")[2] for frame in frames)
        found.setdefault(named, set()).add(_name(event))
    return found


def _name(event: Event) -> str:
    return getattr(event, "name", type(event).__name__).removeprefix("aten.").partition(".")[0]


def test_parts_of_a_step_are_told_apart_below_the_line_that_starts_it() -> None:
    trainer = library(TRAINER, "lightning.pytorch.trainer.trainer").Trainer()
    with pretending() as recorder:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 3)
        line = next_line()
        trainer.fit(model, optimizer, x)
    found = frames_at(recorder, line)
    assert found["Trainer.fit", "Trainer.batch_to_device"] == {"Copy"}
    # Of a model nothing but its call is told: its modules are.
    assert {"addmm", "tanh", "sum"} <= found["Trainer.fit", "Trainer.training_step"]
    assert {"tanh_backward", "mm"} <= found["Trainer.fit", "Trainer.backward"]
    assert "tanh_backward" not in found["Trainer.fit", "Trainer.training_step"]
    assert found["Trainer.fit", "Trainer._scale"] == {"div"}
    assert "_foreach_norm" in found["Trainer.fit", "clip_grad_norm_"]
    assert "_foreach_add_" in found["Trainer.fit", "Trainer.optimizer_step"]
    modules = {frame.partition(":")[0] for frames in recorder.origins.frames for frame in frames}
    assert modules == {"lightning.pytorch.trainer.trainer", "torch.nn.utils.clip_grad"}


def test_a_line_of_the_users_own_module_stays_that_line() -> None:
    trainer = library(TRAINER, "lightning.pytorch.trainer.trainer").Trainer()

    def model(x: torch.Tensor) -> torch.Tensor:
        nonlocal line
        line = next_line()
        return weight * x.exp()

    line = 0
    model.parameters = lambda: [weight]  # type: ignore[attr-defined]
    with pretending() as recorder:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        trainer.fit(model, torch.optim.SGD([weight], lr=0.1), torch.ones(3))
    # The backward pass of the line as well.
    assert frames_at(recorder, line) == {(): {"exp", "mul"}}
    assert any(recorder.origins.frames)


def test_a_loop_of_ones_own_has_no_frames() -> None:
    with pretending() as recorder:
        model = torch.nn.Linear(3, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert recorder.origins.frames
    assert not any(recorder.origins.frames)


def test_other_libraries_are_no_frameworks() -> None:
    trainer = library(TRAINER, "my_trainers.trainer").Trainer()
    with pretending() as recorder:
        model = torch.nn.Linear(3, 4).cuda()
        trainer.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 3))
    assert not any(recorder.origins.frames)


def named(*frames: str) -> tuple[str, ...]:
    """Return the parts of a step of frames ``package:Class.function`` or ``... part``."""
    known: list[FrameworkFrame] = []
    for frame in frames:
        name, _, part = frame.partition(" ")
        known.append(
            FrameworkFrame(name=name, part=part, is_framework=not name.startswith("torch"))
        )
    return parts_of_step(known)


@pytest.mark.parametrize(
    ("frames", "parts"),
    [
        ((), ()),
        (("torch.optim:SGD.step step",), ()),
        (("a:T.fit",), ("a:T.fit",)),
        # What no name tells is the innermost function.
        (("a:T.fit", "a:T._run", "a:T._inner"), ("a:T.fit", "a:T._inner")),
        # The outermost of those that do the same.
        (
            ("a:T.fit", "a:M.optimizer_step step", "a:O.step step", "torch.optim:SGD.step step"),
            ("a:T.fit", "a:M.optimizer_step"),
        ),
        # A closure, in which the backward pass runs within the optimizer's step.
        (
            ("a:T.fit", "a:M.optimizer_step step", "torch.optim:SGD.step step", "a:S.b backward"),
            ("a:T.fit", "a:M.optimizer_step", "a:S.b"),
        ),
        (
            ("a:P.learn", "a:P.train", "torch._tensor:Tensor.backward backward"),
            ("a:P.learn", "torch._tensor:Tensor.backward"),
        ),
        # Called from a loop of the user's own: torch wraps the step in another.
        (("torch.optim:LR.wrapper", "a:O.step step", "a:O._inner"), ("a:O.step",)),
    ],
)
def test_functions_that_say_what_a_framework_does(
    frames: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    assert named(*frames) == parts


def test_runs_stored_without_frames_keep_their_digest() -> None:
    recording = record(StepTrace(events=()), reference_host())
    document = msgspec.json.encode(recording)
    assert b'"frames"' not in document
    assert msgspec.json.decode(document, type=RecordedStep).is_whole


def test_frames_are_read_back() -> None:
    trace = StepTrace(events=(), stacks=((),), frames=(("a:T.fit", "a:T.backward"),))
    stored = msgspec.json.encode(record(trace, reference_host()))
    read = msgspec.json.decode(stored, type=RecordedStep)
    assert read.is_whole
    assert read.trace.frames == (("a:T.fit", "a:T.backward"),)

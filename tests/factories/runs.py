"""Made-up answers of runs for the tests of a check, and a launcher that returns them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from breakeven.capture import (
    FailureKind,
    LoaderUse,
    PlainRun,
    RunFailure,
    RunRequest,
    Target,
    TargetKind,
    TracedRun,
)
from breakeven.timing import Measurement
from breakeven.trace import Event, FileWrites, Op, StepTrace, TensorSpec

SCRIPT = Target(
    kind=TargetKind.SCRIPT,
    raw_path=b"/home/me/train.py",
    label="train.py",
    raw_arguments=(b"--lr", b"0.1"),
)
FUNCTION = Target(
    kind=TargetKind.FUNCTION, raw_path=b"/home/me/train.py", label="train.py:step", function="step"
)


def loader_use(batch_size: int = 32, wait_ns: float = 0.0, num_workers: int = 0) -> LoaderUse:
    return LoaderUse(
        batch_size=batch_size,
        batches_per_step=1,
        num_samples=10_000,
        num_workers=num_workers,
        wait_ns=wait_ns,
    )


def plain_run(step_ns: int = 1_000_000, loader: LoaderUse | None = None) -> PlainRun:
    """Return a run of steps of equal time."""
    return PlainRun(
        measurement=Measurement(samples_ns=(step_ns,) * 9),
        processor="Made-up CPU",
        precision="fp32",
        num_threads=2,
        peak_memory_bytes=1_000_000,
        loader=loader,
    )


def device_op(batch_size: int = 32, device: str = "cuda:0") -> Op:
    """Return an operator on a batch with 1,000 numbers per sample."""
    spec = TensorSpec(shape=(batch_size, 1_000), dtype="float32", device=device)
    return Op(name="aten.relu.default", inputs=(spec,), outputs=(spec,), device=device)


def traced_run(
    *events: Event, batch_size: int | None = 32, loader: LoaderUse | None = None
) -> TracedRun:
    events = events or (device_op(batch_size or 1),)
    return TracedRun(trace=StepTrace(events=events, batch_size=batch_size), loader=loader)


def failure(kind: FailureKind = FailureKind.EXCEPTION, message: str = "no GPU") -> RunFailure:
    return RunFailure(kind=kind, message=message, exception="RuntimeError")


Answer = PlainRun | TracedRun | RunFailure


class ScriptedLauncher:
    """Returns scripted answers in order, and records the requests."""

    def __init__(self, answers: Sequence[Answer], num_steps: Sequence[int] = ()) -> None:
        self.requests: list[RunRequest] = []
        self.output = "what the script printed"
        self.writes: FileWrites | None = None
        self._answers = list(answers)
        self._num_steps = num_steps

    def run(self, request: RunRequest, tell: Callable[[str], None] = lambda _: None) -> Answer:
        self.requests.append(request)
        for number in self._num_steps:
            tell(f"step {number}")
        return self._answers.pop(0)

    def run_in_turns(self, request: RunRequest) -> Generator[None, None, Answer]:
        yield
        return self.run(request, lambda _: None)


class ProgressLog:
    """Records stages and details of progress."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.expected_s: list[float | None] = []
        self.details: list[str] = []
        self.has_ended = False

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        self.stages.append(stage)
        self.expected_s.append(expected_s)

    def detail(self, text: str) -> None:
        self.details.append(text)

    def end(self) -> None:
        self.has_ended = True

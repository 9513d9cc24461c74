"""Rules about how the script runs its steps: checks, wrappers, checkpoints, the build of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import ClassVar, final

from breakeven.doctor.rule import Case, KnownGain, Occurrence, Rule
from breakeven.doctor.run_anomaly import AnomalyChecked
from breakeven.doctor.run_evaluation import EvaluatedOften
from breakeven.doctor.run_graph import GraphRetained
from breakeven.doctor.run_settings import trainer_setting
from breakeven.doctor.source import is_constant, keyword
from breakeven.doctor.source_lines import recorded_calls
from breakeven.simulate import Edit
from breakeven.trace import Call, HostWork, Location
from breakeven.units import format_duration

# Below this part of the step saving is not worth a change.
_MIN_SAVE_FRACTION = 0.05
# One save may be that of every thousandth step, the first of which is step 0.
_MIN_SAVES = 2
# torch.compile specialises on the first shape and makes the second general; a third that differs
# shows that more will come.
_MIN_SHAPES = 3


@final
class DataParallelUsed:
    """RUN002: ``nn.DataParallel`` splits each step over GPUs from one process.

    What it does:
        Finds models wrapped in ``torch.nn.DataParallel``.

    Why it costs time:
        Each step copies the batch and all parameters from the first GPU to the others and brings
        outputs and gradients back, and the threads of one Python take turns in issuing work.

    Evidence:
        49 s on one A100 and 82 s on four in public reports; 80 to 300 ms per step on another.

    Fix:
        One GPU for small models, ``DistributedDataParallel`` with a process per GPU for others.

        ```python
        model = nn.DataParallel(model).to("cuda")
        ```

        ```python
        model = model.to("cuda")
        ```

    Known limits:
        No gain is shown: it depends on how many GPUs there are and on how they are connected. On
        a single GPU the wrapper hardly costs anything.
    """

    code: ClassVar[str] = "RUN002"
    cause: ClassVar[str] = "DATAPARALLEL"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that wraps a model."""
        called = [call.location for call in recorded_calls(case, "DataParallel")]
        written = [
            source.location(call)
            for source in case.sources
            for call in source.calls("DataParallel")
            # Behind a condition only a call that was seen counts.
            if not any(isinstance(above, (ast.If, ast.IfExp)) for above in source.parents(call))
        ]
        return tuple(
            Occurrence(
                title="nn.DataParallel copies the model to every GPU in every step",
                fix="one GPU for a small model; DistributedDataParallel for a large one",
                evidence="the model is wrapped in torch.nn.DataParallel",
                location=location,
            )
            for location in _distinct([*called, *written])
        )


@final
class SavedOften:
    """RUN004: checkpoints are saved in every step, or after very few.

    What it does:
        Finds ``torch.save`` in at least two of the steps that were recorded, where it takes a
        twentieth of the step or more.

    Why it costs time:
        Saving copies every parameter to the host, waits for it, and writes a file, while the GPU
        has nothing to do.

    Evidence:
        20 to 50 % of an epoch in public reports; on one small data set saving took longer than
        training.

    Fix:
        Save by time, or after many steps.

        ```python
        for step, batch in enumerate(loader):
            train(batch)
            torch.save(model.state_dict(), "last.pt")
        ```

        ```python
        for step, batch in enumerate(loader):
            train(batch)
            if step % 1000 == 999:
                torch.save(model.state_dict(), "last.pt")
        ```

    Known limits:
        The time is that of this machine's disk. The gain shown assumes that saving is so rare
        that it no longer counts.
    """

    code: ClassVar[str] = "RUN004"
    cause: ClassVar[str] = "CKPT_OFTEN"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that saves."""
        found = (
            _saving(case, call)
            for call in recorded_calls(case, "save")
            if call.step_count >= _MIN_SAVES and call.count
        )
        return tuple(one for one in found if one is not None)


@final
class CompiledForShapes:
    """RUN006: ``torch.compile`` meets changing shapes.

    What it does:
        Finds a call of ``torch.compile`` without ``dynamic=True`` whose steps had three different
        input shapes or more.

    Why it costs time:
        Compiled code is for the shapes that it was compiled for. Others are compiled anew, tens of
        seconds each, until torch gives up and runs without it.

    Evidence:
        The first hundred steps ran at 4,000 instead of 19,000 tokens per second in a public report.

    Fix:
        Say which shapes change, or pad batches to a few lengths.

        ```python
        model = torch.compile(model)
        ```

        ```python
        model = torch.compile(model, dynamic=True)
        ```

    Known limits:
        No gain is shown: compiling is not simulated. torch makes a dimension general when it first
        changes, which serves some models well enough.
    """

    code: ClassVar[str] = "RUN006"
    cause: ClassVar[str] = "COMPILE_RECOMPILE"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that compiles."""
        num_shapes = case.facts.num_shapes
        if num_shapes < _MIN_SHAPES or _marks_dynamic(case):
            return ()
        compiled = [
            call.location
            for call in recorded_calls(case, "compile")
            if not _is_dynamic(case, call.location)
        ]
        return tuple(
            Occurrence(
                title=f"torch.compile meets {num_shapes} different shapes in "
                f"{case.facts.num_steps} steps",
                fix="torch.compile(..., dynamic=True), or batches padded to a few lengths",
                evidence=f"{num_shapes} input shapes"
                + _since(case.facts.shapes_vary_at, ", the first that varies at {file}:{line}"),
                location=location,
            )
            for location in _distinct(compiled)
        )


@final
class BuiltWithoutCuda:
    """RUN007: the machine has an NVIDIA GPU, and its torch cannot use it.

    What it does:
        Finds a torch without CUDA on a machine that shows an NVIDIA device.

    Why it costs time:
        Everything runs on the CPU, whatever the script says.

    Evidence:
        Training that took days took hours with the right package in public reports.

    Fix:
        Install a build of torch with CUDA, as its site says for the driver at hand.

        ```python
        # pip install torch --index-url https://download.pytorch.org/whl/cpu
        torch.cuda.is_available()  # False
        ```

        ```python
        # pip install torch --index-url https://download.pytorch.org/whl/cu128
        torch.cuda.is_available()  # True
        ```

    Known limits:
        A driver that is too old for the build is not seen.
    """

    code: ClassVar[str] = "RUN007"
    cause: ClassVar[str] = "HW_ENV"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence where the build does not fit the machine."""
        if not case.facts.has_nvidia_device or case.facts.has_cuda_build:
            return ()
        version = f"torch {case.trace.torch_version}" if case.trace.torch_version else "torch"
        return (
            Occurrence(
                title="this machine has an NVIDIA GPU, and its torch was built without CUDA",
                fix="install a build of torch with CUDA",
                evidence=f"{version} has no CUDA; an NVIDIA device is there",
            ),
        )


def _saving(case: Case, call: Call) -> Occurrence | None:
    """Return what a line that saves in many steps costs; None where that is little."""
    own = {
        index: event.duration_ns
        for index, event in enumerate(case.trace.events)
        if isinstance(event, HostWork) and event.kind == "save" and event.location == call.location
    }
    step_ns = case.prediction.estimate.value_ns
    if own:
        saving_ns = float(sum(own.values()))
        share = saving_ns / step_ns
    else:
        # The recorded step is one of those that do not save.
        saving_ns = call.duration_ns / call.count * call.step_count / case.facts.num_steps
        share = saving_ns / (step_ns + saving_ns)
    if share < _MIN_SAVE_FRACTION:
        return None
    events = tuple(own)
    return Occurrence(
        title=f"saving takes {format_duration(saving_ns, 2)} per step",
        fix="save by time, or after many steps",
        evidence=f"torch.save in {call.step_count} of {case.facts.num_steps} recorded steps",
        location=trainer_setting(case, call.location, "save_steps", "every_n_train_steps")
        or call.location,
        events=events,
        share_fraction=share,
        edit=Edit(replaced=dict.fromkeys(events, ())) if events else None,
        gain=KnownGain(fraction=share, low_fraction=share / 2, high_fraction=share),
    )


def _is_dynamic(case: Case, location: Location | None) -> bool:
    source = case.sources.find(location)
    if source is None or location is None:
        return False
    call = source.call_at(location.line, "compile")
    return call is not None and is_constant(keyword(call, "dynamic"), True)


def _marks_dynamic(case: Case) -> bool:
    return any(
        True for source in case.sources for _ in source.calls("mark_dynamic", "maybe_mark_dynamic")
    )


def _since(location: Location | None, text: str) -> str:
    return text.format(file=location.file, line=location.line) if location else ""


def _distinct(locations: Iterable[Location | None]) -> list[Location | None]:
    """Return each line once, in the order of their first."""
    by_line = {(one.file, one.line) if one else None: one for one in reversed(list(locations))}
    return list(reversed(by_line.values()))


RUN_RULES: tuple[Rule, ...] = (
    AnomalyChecked(),
    DataParallelUsed(),
    EvaluatedOften(),
    SavedOften(),
    GraphRetained(),
    CompiledForShapes(),
    BuiltWithoutCuda(),
)

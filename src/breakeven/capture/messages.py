"""What a process that runs a script is asked for, and what it answers.

Messages are single lines of JSON on a pipe. The server says ``Ready`` once. For every request it
says ``Started``; the child says ``StepCount`` and ``Paused`` any number of times, and then
``PlainRun``, ``TracedRun``, ``NumbersRun``, ``ProbeRun`` or ``RunFailure``; and the server says
``Ended``. Measuring the machine itself, it says ``HostRun`` or ``RatesRun`` alone.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from breakeven.capture.target import Target
from breakeven.device import HostCalibration
from breakeven.errors import Caveat
from breakeven.simulate import CpuRates
from breakeven.timing import Estimate, Measurement, StepPhases, TurnKind
from breakeven.trace import Configuration, FileWrites, Location, SourceText, StepTrace
from breakeven.verdict import GeneratedRun


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of a script leave behind; by default nothing.

    Args:
        writes: Files are written where the script writes them.
        trackers: Experiment trackers log as the script sets them up.
        raw_folders: Folders in which they are in any case, as bytes.
    """

    writes: bool = False
    trackers: bool = False
    raw_folders: tuple[bytes, ...] = ()


KEEP_NOTHING = Keep()


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """One run of the target: it times plain steps if nothing else is asked for.

    Args:
        target: What to run.
        time_limit_s: When to give up.
        configuration: Settings in effect around the script; a traced run ignores all but the
            threads.
        loader_batch_size: Batch size of the DataLoaders that are to be changed; 0 to change none.
        new_batch_size: Their batch size in this run.
        is_traced: Record a step on a fake CUDA device.
        is_moved: Record a script that never uses a GPU as if model and batches were moved to one.
        records_longer: Record as many steps as come within some seconds, if a few did not show
            the typical one.
        records_after: Record what follows this number of updates, up to the next one or for a
            while, in place of a step; 0 for a step.
        num_probe_steps: Only run the script until it has taken this number of steps; 0 for no
            probe. Nothing is replaced but, with ``has_cuda``, CUDA by the CPU.
        num_recorded_steps: Record the losses and gradients of this number of steps, with all that
            is unseeded seeded alike; 0 to time them. At least two, if they take longer than
            ``budget_s``.
        raw_numbers_path: The file that they are written to.
        weight_noise_roundoffs: Move the weights by this number of unit roundoffs in such a run,
            before the first step and after each.
        weight_noise_seed: Says which go up, and which down.
        budget_s: How long to take samples of steps; a few slow ones may exceed it.
        on_gpu: Leave the GPU of this machine to the script; otherwise it is hidden.
        has_cuda: Let ``torch.cuda.is_available()`` say yes in a plain run too, for scripts that
            refuse to run without a GPU.
        keeps_compile: Let the script's own ``torch.compile`` do its work in a plain run; its CUDA
            calls are not run by the CPU then. Otherwise, or with ``has_cuda``, it is ignored.
        turns: Run a few steps at a time, and wait for a byte on the pipe of turns in between.
        backwards_per_step: End a step of a plain run after this number of backward passes; 0 if
            optimizers of torch end it.
        num_skipped_steps: Steps of a plain run that do not count.
        times_loader: Time worker processes of a DataLoader by themselves after a plain run.
        tries_threads: Time some steps with one thread, and with one for each core, after a plain
            run with more, unless the script sets their number.
        tries_generated: Time a short step of a plain run on the CPU as generated code too.
        watches_program: Wait in a plain run for what is done between some of the steps, until it is
            known how often that comes, and report it.
    """

    target: Target
    is_traced: bool
    time_limit_s: float
    is_moved: bool = False
    records_longer: bool = False
    budget_s: float = 1.0
    has_cuda: bool = False
    on_gpu: bool = False
    loader_batch_size: int = 0
    new_batch_size: int = 0
    configuration: Configuration = Configuration()
    keeps_compile: bool = False
    turns: TurnKind = TurnKind.NONE
    num_recorded_steps: int = 0
    raw_numbers_path: bytes = b""
    num_probe_steps: int = 0
    weight_noise_roundoffs: float = 0.0
    weight_noise_seed: int = 0
    backwards_per_step: int = 0
    records_after: int = 0
    num_skipped_steps: int = 0
    times_loader: bool = False
    tries_threads: bool = False
    tries_generated: bool = False
    watches_program: bool = False

    @property
    def compiles(self) -> bool:
        """Return whether the run may compile what the script or the configuration asks for."""
        wanted = self.configuration
        return self.keeps_compile or bool(wanted.compile_mode) or wanted.fast_step


class HostRequest(msgspec.Struct, frozen=True, kw_only=True, tag="measure-host"):
    """Measure what this host spends to issue an operator, instead of running a target.

    Args:
        num_rounds: Each measures everything once.
    """

    num_rounds: int


class RatesRequest(msgspec.Struct, frozen=True, kw_only=True, tag="measure-rates"):
    """Measure what a core of this CPU computes and moves, instead of running a target."""


Request = RunRequest | HostRequest | RatesRequest


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the user's own code.

    Args:
        path: Its absolute path, links resolved.
        sha256: Digest of what it held, in hexadecimal.
    """

    path: str
    sha256: str


class LoaderUse(msgspec.Struct, frozen=True, kw_only=True):
    """The DataLoader that feeds the training loop.

    Args:
        batch_size: Its batch size.
        batches_per_step: How many batches one step consumes.
        num_samples: Length of its data set; 0 for an iterable one.
        num_workers: Its worker processes.
        wait_ns: Time per step that the training loop spends in it.
        batches_per_epoch: How many batches its sampler hands out; 0 if that has no end.
        fetching_fraction: Share of the steps that take a batch: less than 1 if one batch serves
            several.
        alone_ns: Time per batch if nothing trains beside its worker processes; 0 if that was
            not measured.
        taking_ns: Processor time of the training process for a batch that workers have ready:
            unpickling, and a descriptor of shared memory for each tensor.
    """

    batch_size: int
    batches_per_step: int
    num_samples: int
    num_workers: int
    wait_ns: float
    alone_ns: float = 0.0
    taking_ns: float = 0.0
    batches_per_epoch: int = 0
    fetching_fraction: float = 1.0


class StepCount(msgspec.Struct, frozen=True, kw_only=True, tag="steps"):
    """Progress.

    Args:
        num_steps: Their number.
        location: The line at which a script without a step is.
        is_waiting: Whether other work disturbed all steps so far, and a quiet moment is waited for.
    """

    num_steps: int
    location: Location | None = None
    is_waiting: bool = False

    @property
    def text(self) -> str:
        """Return it for a person."""
        if self.location is None:
            waits = ", waiting for a quiet moment" if self.is_waiting else ""
            return f"step {self.num_steps}{waits}"
        return f"no step yet, at {Path(self.location.file).name}:{self.location.line}"


class Paused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    """The run waits for its turn."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """What lies between two steps and takes long: the script does something else there.

    Args:
        num_updates: Updates before it.
        time_ns: Typical time of those that are like it.
        other: Time per step of all that lies between steps.
    """

    num_updates: int
    time_ns: float
    other: Estimate


class ThreadTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a run that went on with fewer threads.

    Args:
        num_threads: torch's intra-op threads.
        measurement: Their durations.
        phases: Parts of the step; None if no step was whole.
        loader_wait_ns: Time that a step waits for its batches; None without a DataLoader.
        other: As in a plain run.
        other_work: As in a plain run.
        gap: As in a plain run.
    """

    num_threads: int
    measurement: Measurement
    phases: StepPhases | None = None
    loader_wait_ns: float | None = None
    other: Estimate | None = None
    other_work: tuple[OtherWork, ...] = ()
    gap: Gap | None = None


class OtherWork(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the script does between some of its steps.

    Args:
        location: The user's line, and the function that it calls there.
        share: Of the time between steps.
    """

    location: Location
    share: float


class PlainRun(msgspec.Struct, frozen=True, kw_only=True, tag="plain"):
    """Timed steps of an unchanged script.

    Args:
        measurement: Durations of the steps on the CPU, or on CUDA if the script used it.
        processor: Name of the CPU or GPU that ran them.
        precision: Arithmetic that the step used, by the dtype of its parameters.
        num_threads: torch's intra-op threads.
        peak_memory_bytes: Largest resident memory of the process so far.
        loader: The DataLoader that feeds it, if there is one.
        caveats: What to know of the measurement.
        sources: The user's own files that were run or imported until the end of the run.
        startup_ns: From the beginning of the script to the end of its first step.
        warnings: The first few different warnings of Python during the run.
        load_fraction: Share of the machine that other processes used meanwhile, 0 to 1. Those of
            the run itself, such as workers of a loader, are not counted.
        page_faults_per_step: Pages of memory that a step got from the system.
        effects: How often each setting of the configuration took hold, by its name: 2 for an
            optimizer setting that two optimizers got, 0 for one that found nothing to change.
        turns: For each sample of the measurement, the number of the turn in which it ended; empty
            where the run took no turns.
        phases: Parts of the step, as the host went through them; None if no step was whole.
        trials: The same steps on fewer threads, if that was tried.
        apart: The same steps while worker processes of the loader rest; None if there are none.
        other: Time per step of what is done between some of the steps; None if that is not
            known, or was not looked for.
        other_work: What that is, the most time first.
        gap: One that may be recorded; None if no step is much longer than the others.
        generated: What generated code takes for the step, or why there is none; None if that was
            not tried.
    """

    measurement: Measurement
    processor: str
    precision: str
    num_threads: int
    peak_memory_bytes: int
    loader: LoaderUse | None = None
    caveats: tuple[Caveat, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    startup_ns: int = 0
    warnings: tuple[str, ...] = ()
    load_fraction: float = 0.0
    page_faults_per_step: float = 0.0
    effects: dict[str, int] = {}
    turns: tuple[int, ...] = ()
    phases: StepPhases | None = None
    trials: tuple[ThreadTrial, ...] = ()
    apart: ThreadTrial | None = None
    other: Estimate | None = None
    other_work: tuple[OtherWork, ...] = ()
    gap: Gap | None = None
    generated: GeneratedRun | None = None


class TracedRun(msgspec.Struct, frozen=True, kw_only=True, tag="traced"):
    """A recorded step.

    Args:
        trace: The typical step.
        loader: The DataLoader that feeds it, if there is one.
        sources: The user's own files that were run or imported, as text.
        backwards_per_step: Backward passes of a step that no optimizer of torch ends; 0 of one
            that one does.
        num_host_steps: Steps without the GPU before the first one on it.
        recorded_fraction: Share of its events on the device that was recorded: less than 1 of a gap
            that goes on for long.
    """

    trace: StepTrace
    loader: LoaderUse | None = None
    sources: tuple[SourceText, ...] = ()
    backwards_per_step: int = 0
    num_host_steps: int = 0
    recorded_fraction: float = 1.0


class NumbersRun(msgspec.Struct, frozen=True, kw_only=True, tag="numbers"):
    """Losses and gradients are recorded, and lie in the file that the request names.

    Args:
        num_steps: How many steps; fewer than were asked for if the script ends before.
    """

    num_steps: int


class ProbeRun(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """The script took the steps of a probe without failing.

    Args:
        num_steps: How many.
    """

    num_steps: int


class OwnProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that the script started itself; those that load its batches are not counted.

    Args:
        num_started: How many.
        location: The user's line that started the last of them.
        source: Text of that line.
        function: What they run, as ``train.py:train``; empty if that is not known.
        has_steps: Whether training steps were seen in them, which only forked ones show.
    """

    num_started: int
    location: Location
    source: str = ""
    function: str = ""
    has_steps: bool = False


# Exit status of a run whose process cannot tell its answer: the script closed the way to tell it.
# Source: EX_IOERR of sysexits.h.
PIPE_CLOSED_STATUS = 74


class FailureKind(StrEnum):
    """Why a run ended without an answer."""

    EXCEPTION = "exception"
    EXIT = "exit"
    NO_STEP = "no_step"
    NO_OPERATOR = "no_operator"
    TIME_LIMIT = "time_limit"
    OTHER_PROCESS = "other_process"
    KILLED = "killed"
    PIPE_CLOSED = "pipe_closed"
    INTERNAL = "internal"


class RunFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A run that did not reach its goal.

    Args:
        kind: Why.
        message: The exception's own message, or what was missing.
        exception: Name of the exception's type.
        location: The user's line.
        source: Text of that line.
        caller: The user's outermost line that led there, if a run did not end itself and
            that is another one.
        caller_source: Text of that line.
        num_steps: Steps done until then.
        missing: Module or file that was absent, or file behind an imported module of its name.
        our_line: The line of breakeven's that raised an exception, if one did; its file is relative
            to where breakeven is installed.
        traceback: The whole traceback of an exception, or its end.
        processes: Those that the script started.
    """

    kind: FailureKind
    message: str
    exception: str = ""
    location: Location | None = None
    source: str = ""
    caller: Location | None = None
    caller_source: str = ""
    num_steps: int = 0
    missing: str = ""
    our_line: Location | None = None
    traceback: str = ""
    processes: OwnProcesses | None = None


class HostRun(msgspec.Struct, frozen=True, kw_only=True, tag="host"):
    """What this host spends per operator.

    Args:
        calibration: Its costs, and what they were computed from.
        other_load_fraction: Share of its processors that other processes used meanwhile.
    """

    calibration: HostCalibration
    other_load_fraction: float


class RatesRun(msgspec.Struct, frozen=True, kw_only=True, tag="rates"):
    """What a core of this CPU computes and moves.

    Args:
        rates: Of one core.
    """

    rates: CpuRates


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The server has made a process for the run, the leader of its own group."""

    process: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The process of the run is gone, and its group with it.

    Args:
        exit_code: Its exit code; minus the signal's number when a signal ended it.
        writes: What it wrote; None if it ran no script.
    """

    exit_code: int
    writes: FileWrites | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The server has imported torch.

    Args:
        torch_version: Its version.
        processor: Name of the CPU.
        gpu: torch's type of this machine's GPU: ``cuda``, ``xpu`` or ``mps``; empty if there is
            none that torch can use.
        can_take_long_turns: Whether runs of several threads can take turns.
        caveats: What this system cannot do.
    """

    torch_version: str
    processor: str
    gpu: str = ""
    can_take_long_turns: bool = False
    caveats: tuple[Caveat, ...] = ()

    @property
    def has_cuda(self) -> bool:
        """Return whether it is a CUDA device; those of AMD are, to torch."""
        return self.gpu == "cuda"


Answer = PlainRun | TracedRun | NumbersRun | ProbeRun | HostRun | RatesRun | RunFailure
Message = Ready | Started | StepCount | Paused | Answer | Ended

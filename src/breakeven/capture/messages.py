"""The requests to a process that runs a script, and its answers.

Messages are single lines of JSON on a pipe. The server sends ``Ready`` once. For every request it
sends ``Started``. The child sends ``StepCount`` and ``Paused`` any number of times, and then
``PlainRun``, ``TracedRun``, ``NumbersRun`` or ``RunFailure``. The server sends
``Ended``. For a measurement of the machine, it sends only ``HostRun`` or ``RatesRun``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.capture.target import Target
from breakeven.device import HostCalibration
from breakeven.errors import Caveat
from breakeven.simulate import CpuRates
from breakeven.timing import Estimate, MachinePower, Measurement, StepPhases, TurnKind
from breakeven.trace import Configuration, FileWrites, Location, SourceText, StepTrace
from breakeven.verdict import GeneratedRun


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """The side effects that runs of a script keep; by default none.

    Args:
        writes: Keep files where the script writes them.
        trackers: Let experiment trackers log as the script configures them.
        raw_folders: Folders whose files are always kept, as bytes.
    """

    writes: bool = False
    trackers: bool = False
    raw_folders: tuple[bytes, ...] = ()


KEEP_NOTHING = Keep()


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """One run of the target; without further options it times plain steps.

    Args:
        target: Target to run.
        time_limit_s: Seconds until the run is stopped.
        configuration: Settings in effect around the script; a traced run ignores all but the
            threads.
        loader_batch_size: Batch size of the DataLoaders to change; 0 to change none.
        new_batch_size: Their batch size in this run.
        is_traced: Record a step on a fake CUDA device.
        is_moved: If the script never uses a GPU, record it as if model and batches were on one.
        records_longer: Record as many steps as fit in some seconds, if the first few contain no
            typical step.
        records_after: Instead of a step, record the work after this number of updates, up to the
            next update or for a while; 0 for a step.
        is_probe: Only count the updates up to the end of the script. A probe replaces nothing but,
            with ``has_cuda``, CUDA by the CPU.
        num_recorded_steps: Record the losses and gradients of this number of steps, with the same
            seed for all unseeded generators; 0 to time steps. If they take longer than
            ``budget_s``, record at least two.
        raw_numbers_path: Path of the file for the recorded numbers, as bytes.
        weight_noise_roundoffs: Perturb the weights by this number of unit roundoffs in such a run,
            before the first step and after each.
        weight_noise_seed: Seed of the perturbation's signs.
        budget_s: Seconds to sample steps; a few slow steps may exceed it.
        on_gpu: Let the script use this machine's GPU; otherwise hide it.
        has_cuda: Make ``torch.cuda.is_available()`` return True in a plain run too, for scripts
            that refuse to run without a GPU.
        keeps_compile: Keep the script's own ``torch.compile`` in a plain run; its CUDA calls then
            do not run on the CPU. Otherwise, or with ``has_cuda``, ignore it.
        turns: Run a few steps at a time, and wait for a byte on the turn pipe in between.
        backwards_per_step: Number of backward passes that end a step of a plain run; 0 if a torch
            optimizer ends it.
        times_loader: After a plain run, time a DataLoader's worker processes alone.
        tries_threads: After a plain run on several threads, time steps on one thread and on one per
            core. If the script sets the number, do not.
        tries_generated: Time a short step of a plain run on the CPU as generated code too.
        watches_program: In a plain run, wait for work between some steps until its frequency is
            known, and report it.
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
    is_probe: bool = False
    weight_noise_roundoffs: float = 0.0
    weight_noise_seed: int = 0
    backwards_per_step: int = 0
    records_after: int = 0
    times_loader: bool = False
    tries_threads: bool = False
    tries_generated: bool = False
    watches_program: bool = False

    @property
    def compiles(self) -> bool:
        """Return whether the run may compile what the script or the configuration requests."""
        wanted = self.configuration
        return self.keeps_compile or bool(wanted.compile_mode) or wanted.fast_step


class HostRequest(msgspec.Struct, frozen=True, kw_only=True, tag="measure-host"):
    """Measures this host's cost to issue an operator, instead of running a target.

    Args:
        num_rounds: Number of rounds; each measures every cost once.
    """

    num_rounds: int


class RatesRequest(msgspec.Struct, frozen=True, kw_only=True, tag="measure-rates"):
    """Measures the compute rate and bandwidth of one CPU core, instead of running a target."""


Request = RunRequest | HostRequest | RatesRequest


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the user's own code.

    Args:
        path: Absolute path, links resolved.
        sha256: Digest of its contents, in hexadecimal.
    """

    path: str
    sha256: str


class LoaderUse(msgspec.Struct, frozen=True, kw_only=True):
    """The DataLoader that feeds the training loop.

    Args:
        batch_size: Its batch size.
        batches_per_step: Batches that one step consumes.
        num_samples: Length of its data set; 0 for an iterable one.
        num_workers: Number of its worker processes.
        wait_ns: Time per step that the training loop spends in it.
        batches_per_epoch: Batches in its sampler; 0 if the sampler is endless.
        fetching_fraction: Share of the steps that take a batch: less than 1 if one batch serves
            several steps.
        alone_ns: Time per batch of the worker processes while no training runs; 0 if not measured.
        taking_ns: Processor time of the training process to receive a ready batch from workers:
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
    """Progress of a run.

    Args:
        num_steps: Number of completed steps.
        location: The script's current line, if it has no step yet.
        is_waiting: Whether other work disturbed all steps so far, and the run waits for a quiet
            moment.
    """

    num_steps: int
    location: Location | None = None
    is_waiting: bool = False

    @property
    def text(self) -> str:
        """Return the progress as text for the user."""
        if self.location is None:
            waits = ", waiting for a quiet moment" if self.is_waiting else ""
            return f"step {self.num_steps}{waits}"
        return f"no step yet, at {self.location.text}"


class Paused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    """The run waits for its turn."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A long interval between two steps, in which the script does other work.

    Args:
        num_updates: Number of updates before it.
        time_ns: Typical time of similar gaps.
        other: Time per step of all work between steps.
    """

    num_updates: int
    time_ns: float
    other: Estimate


class ThreadTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a run that continued on fewer threads.

    Args:
        num_threads: torch's intra-op threads.
        measurement: Their durations.
        phases: Phases of the step; None without a complete step.
        loader_wait_ns: Time that a step waits for its batches; None without a DataLoader.
        other: As in a plain run.
        other_work: As in a plain run.
        gap: As in a plain run.
        power: As in a plain run.
    """

    num_threads: int
    measurement: Measurement
    phases: StepPhases | None = None
    loader_wait_ns: float | None = None
    other: Estimate | None = None
    other_work: tuple[OtherWork, ...] = ()
    gap: Gap | None = None
    power: MachinePower | None = None


class OtherWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that the script does between some of its steps.

    Args:
        location: The user's line and the function that it calls.
        share: Share of the time between steps, 0 to 1.
    """

    location: Location
    share: float


class PlainRun(msgspec.Struct, frozen=True, kw_only=True, tag="plain"):
    """Timed steps of an unchanged script.

    Args:
        measurement: Durations of the steps on the CPU, or on CUDA if the script used it.
        processor: Name of the CPU or GPU that ran them.
        precision: Arithmetic of the step, by the dtype of its parameters.
        num_threads: torch's intra-op threads.
        peak_memory_bytes: Peak resident memory of the process so far.
        loader: The DataLoader that feeds the loop; None without one.
        caveats: Cautions about the measurement.
        sources: The user's files that were run or imported before the end of the run.
        startup_ns: From the start of the script to the end of its first step.
        warnings: The first few distinct Python warnings of the run.
        load_fraction: Share of the machine that other processes used meanwhile, 0 to 1. The run's
            own processes, such as a loader's workers, do not count.
        page_faults_per_step: Page faults per step.
        effects: Number of times each setting of the configuration took effect, by name: 2 for an
            optimizer setting on two optimizers, 0 for a setting that found nothing to change.
        turns: Number of the turn in which each sample ended; empty if the run took no turns.
        phases: Phases of the step on the host; None without a complete step.
        trials: The same steps on fewer threads, if tried.
        apart: The same steps while the loader's worker processes rest; None without workers.
        other: Time per step of the work between some of the steps; None if not measured.
        other_work: That work, longest first.
        gap: A gap to record; None if no step is much longer than the others.
        generated: Time of the step as generated code, or why there is none; None if not tried.
        power: Power of this machine during the steps; None without energy counters.
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
    power: MachinePower | None = None


class TracedRun(msgspec.Struct, frozen=True, kw_only=True, tag="traced"):
    """The recording of a step.

    Args:
        trace: The typical step.
        loader: The DataLoader that feeds the loop; None without one.
        sources: The user's files that were run or imported, as text.
        backwards_per_step: Backward passes per step if no torch optimizer ends the step; else 0.
        recorded_fraction: Share of its device events that was recorded; less than 1 for a long gap.
    """

    trace: StepTrace
    loader: LoaderUse | None = None
    sources: tuple[SourceText, ...] = ()
    backwards_per_step: int = 0
    recorded_fraction: float = 1.0


class NumbersRun(msgspec.Struct, frozen=True, kw_only=True, tag="numbers"):
    """Losses and gradients are in the file that the request names.

    Args:
        num_steps: Number of recorded steps; fewer than requested if the script ends earlier.
    """

    num_steps: int


class OwnProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that the script started, except those that load its batches.

    Args:
        num_started: Number of processes.
        location: The user's line that started the last one.
        source: Text of that line.
        function: Function that they run, as ``train.py:train``; empty if unknown.
    """

    num_started: int
    location: Location
    source: str = ""
    function: str = ""


# Exit status of a run that cannot send its answer: the script closed the pipe.
# Source: EX_IOERR of sysexits.h.
PIPE_CLOSED_STATUS = 74


class FailureKind(StrEnum):
    """Why a run ended without an answer."""

    EXCEPTION = "exception"
    EXIT = "exit"
    NO_STEP = "no_step"
    NO_OPERATOR = "no_operator"
    TIME_LIMIT = "time_limit"
    OTHER_FRAMEWORK = "other_framework"
    KILLED = "killed"
    PIPE_CLOSED = "pipe_closed"
    INTERNAL = "internal"


class RunFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """A run that did not reach its goal.

    Args:
        kind: Reason.
        message: The exception's own message, the missing result, or the other framework.
        exception: Name of the exception's type.
        location: The user's line.
        source: Text of that line.
        num_steps: Number of completed steps.
        missing: Absent module or file, or the file hidden by an imported module of its name.
        our_line: breakeven's line that raised the exception, if any; its file is relative to
            breakeven's installation folder.
        traceback: The traceback of an exception, or the end of a long one.
        processes: Processes that the script started.
    """

    kind: FailureKind
    message: str
    exception: str = ""
    location: Location | None = None
    source: str = ""
    num_steps: int = 0
    missing: str = ""
    our_line: Location | None = None
    traceback: str = ""
    processes: OwnProcesses | None = None


class HostRun(msgspec.Struct, frozen=True, kw_only=True, tag="host"):
    """This host's costs per operator.

    Args:
        calibration: The costs, and the measurements behind them.
        other_load_fraction: Share of the processors that other processes used meanwhile, 0 to 1.
    """

    calibration: HostCalibration
    other_load_fraction: float


class RatesRun(msgspec.Struct, frozen=True, kw_only=True, tag="rates"):
    """The compute rate and bandwidth of one CPU core.

    Args:
        rates: Rates of one core.
    """

    rates: CpuRates


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The server has started the run's process, the leader of its own process group."""

    process: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The run's process and its process group have ended.

    Args:
        exit_code: Exit code of the process; if a signal ended it, minus the signal's number.
        writes: The script's file writes; None if the process ran no script.
    """

    exit_code: int
    writes: FileWrites | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The server has imported torch.

    Args:
        torch_version: Version of torch.
        processor: Name of the CPU.
        gpu: torch's type of this machine's GPU: ``cuda``, ``xpu`` or ``mps``; empty if torch can
            use none.
        can_take_long_turns: Whether runs on several threads can take turns.
        caveats: Limits of this system.
    """

    torch_version: str
    processor: str
    gpu: str = ""
    can_take_long_turns: bool = False
    caveats: tuple[Caveat, ...] = ()

    @property
    def has_cuda(self) -> bool:
        """Return whether torch sees a CUDA device, which includes AMD's."""
        return self.gpu == "cuda"


Answer = PlainRun | TracedRun | NumbersRun | HostRun | RatesRun | RunFailure
Message = Ready | Started | StepCount | Paused | Answer | Ended

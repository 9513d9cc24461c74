"""A recorded training step, other facts of its run, and the files of the run."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from math import prod

import msgspec

from breakeven.errors import Caveat
from breakeven.trace.events import (
    Copy,
    Event,
    GraphLaunch,
    Location,
    Op,
    Phase,
    Sync,
    TensorSpec,
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Global switches of torch that change what a device runs.

    Args:
        allow_tf32_matmul: ``torch.backends.cuda.matmul.allow_tf32`` (off by default).
        allow_tf32_convolution: ``torch.backends.cudnn.allow_tf32`` (on by default).
        cudnn_benchmark: ``torch.backends.cudnn.benchmark``.
        autocast_dtype: dtype of the autocast region; empty without one.
        is_compiled: The script used ``torch.compile``; the trace shows the eager step.
    """

    allow_tf32_matmul: bool = False
    allow_tf32_convolution: bool = True
    cudnn_benchmark: bool = False
    autocast_dtype: str = ""
    is_compiled: bool = False


class DeviceFault(msgspec.Struct, frozen=True, kw_only=True):
    """A line that would raise on a machine with a GPU.

    Args:
        message: The reason, after "this line raises:".
        location: The line.
        module: Dotted path of the outermost module that ran there with all of its parameters on the
            host, as in `Op`; empty if none did.
    """

    message: str
    location: Location | None = None
    module: str = ""


NEVER_ON_DEVICE = Caveat(
    code="never-on-device",
    message="no recorded step uses a GPU; predicted as if its model and batches were moved to one",
)


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A ``DataLoader`` that fed the recorded steps.

    Args:
        location: Line at which the script makes it, or calls the library that does; None if it was
            made before the recording.
        batch_size: Samples per batch; 0 if unknown or if a sampler yields whole batches.
        num_samples: Samples of its data set; 0 if the data set has no length.
        num_workers: Worker processes that the script asked for. The recording loads without
            workers, except for a data set that asks for its worker.
        pin_memory: Whether batches arrive in pinned memory.
        persistent_workers: Whether workers should outlive an epoch.
        num_epochs: Number of its iterations in the recorded steps.
        dataset: Name of the data set's type: ``TensorDataset``; for a subset, that of its source.
        dataset_location: The user's line that defines that type; None for a library's.
        data_bytes: Tensors and arrays that the data set holds in memory; 0 if none were found.
        is_indexed: Whether a sample is only a slice of those: ``TensorDataset``, a list of
            samples, or a data set that holds tensors, has no transform, calls only conversions
            in its ``__getitem__``, and is as fast as that.
        has_tensor_rows: Whether a sample is known to be a row of each of some tensors, so that
            whole batches could be indexed at once.
        has_batched_fetch: Whether whole batches are fetched in one call: ``__getitems__``, or a
            sampler that yields batches.
        batch_bytes: Tensors of the first batch.
        fetch_ns: Typical time of fetching one batch in the fetching process, without the first;
            0 if fetching uses the device and so is among the events of the step.
        fetch_cpu_ns: Processor time of the same.
    """

    location: Location | None
    batch_size: int
    num_samples: int
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    num_epochs: int
    dataset: str
    dataset_location: Location | None = None
    data_bytes: int = 0
    is_indexed: bool = False
    has_tensor_rows: bool = False
    has_batched_fetch: bool = False
    batch_bytes: int = 0
    fetch_ns: int = 0
    fetch_cpu_ns: int = 0


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer of the recorded steps.

    Args:
        name: Name of its type: ``AdamW``.
        location: Line at which the script makes it; if it was made before the recording, the line
            of its first update.
        num_tensors: Parameters that it updates.
        foreach: The script's setting; None for torch's own choice.
        fused: The script's setting; None for torch's own choice.
        is_from_torch: Whether ``torch.optim`` provides it.
    """

    name: str
    location: Location | None
    num_tensors: int
    foreach: bool | None = None
    fused: bool | None = None
    is_from_torch: bool = True


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a whole model within the typical step.

    Args:
        model: Name of its type.
        location: The user's line that calls it.
        stack: Position in the trace's stacks of the lines that led to it; -1 if unknown.
        is_training: Whether it is in training mode.
        has_grad: Whether autograd records the call.
        is_used_in_backward: Whether the backward pass reached any result of the call.
        first_event: Position in the trace of the first event within it.
        num_events: Events within it.
        num_samples: Leading dimension of its first tensor; 0 without a tensor.
    """

    model: str
    location: Location | None
    stack: int
    is_training: bool
    has_grad: bool
    is_used_in_backward: bool
    first_event: int
    num_events: int
    num_samples: int = 0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call of torch or Python that affects the speed of a run, by the user's line.

    Args:
        name: Dotted name: ``torch.save``, ``gc.collect``, ``torch.nn.DataParallel``,
            ``torch.autograd.set_detect_anomaly``, ``torch.set_num_threads``, ``torch.compile``,
            ``torch.set_default_dtype``, ``SummaryWriter.add_histogram``, ...
        location: The user's line.
        count: Calls in the whole run, up to the end of the recorded steps.
        step_count: Recorded steps with such a call. Calls before the first update may be
            preparation: the first step counts only for a line that later steps call too. A line
            that was called only before the first update has 0.
        duration_ns: Time of all calls together, if they save, log or collect garbage; else 0.
        argument: The last argument, if relevant, as text: ``4``, ``float64``,
            ``cuda, float16``, ``Linear, mode=max-autotune``.
    """

    name: str
    location: Location | None
    count: int
    step_count: int = 0
    duration_ns: int = 0
    argument: str = ""


class HostArray(msgspec.Struct, frozen=True, kw_only=True):
    """A NumPy array that the script holds while it trains.

    Args:
        name: Its variable, attribute or key.
        dtype: NumPy's name: ``uint8``.
        shape: Size of each dimension.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element."""
        return TensorSpec(shape=(), dtype=self.dtype, device="cpu").element_bytes

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all elements."""
        return self.numel * self.element_bytes


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the traced run.

    Args:
        num_steps: Observed steps: those recorded, and the first.
        loaders: DataLoaders that fed them, the most used first.
        optimizers: Optimizers in the order of their first update.
        model_calls: Model calls of the typical step, in order.
        calls: Calls that affect the speed, in the order of each line's first; a library's call
            is at the user's line that called the library.
        num_shapes: Number of different input shapes of the steps with equal operators, without
            the update.
        num_convolution_shapes: The same for the convolutions alone.
        shapes_vary_at: The first operator whose shapes differ between steps.
        is_anomaly_checked: Autograd's anomaly detection was on in the typical step.
        live_bytes: Tensors of the device that were alive at the end of each of these steps.
        subnormal_fraction: Fraction of subnormal values among parameters and gradients at the end
            of the last step.
        num_parameter_tensors: Parameters that the optimizers update.
        num_threads: torch's intra-op threads at the end of the last step.
        num_interop_threads: torch's inter-op threads.
        num_cores: Processors that the process may use.
        default_dtype: torch's default dtype at the end of the last step.
        has_cuda_build: Whether torch was built with CUDA.
        has_nvidia_device: Whether the machine shows an NVIDIA device.
        arrays: NumPy arrays that user code could name at the end of the first recorded step, the
            largest first; small ones are left out.
        load_fraction: Fraction of the processors that other processes used during the recording.
    """

    num_steps: int = 0
    loaders: tuple[LoaderFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    model_calls: tuple[ModelCall, ...] = ()
    calls: tuple[Call, ...] = ()
    num_shapes: int = 0
    num_convolution_shapes: int = 0
    shapes_vary_at: Location | None = None
    is_anomaly_checked: bool = False
    live_bytes: tuple[int, ...] = ()
    subnormal_fraction: float = 0.0
    num_parameter_tensors: int = 0
    num_threads: int = 0
    num_interop_threads: int = 0
    num_cores: int = 0
    default_dtype: str = "float32"
    has_cuda_build: bool = False
    has_nvidia_device: bool = False
    arrays: tuple[HostArray, ...] = ()
    load_fraction: float = 0.0


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange between the processes of a distributed script.

    Args:
        kind: ``all_reduce``, ``broadcast``, ``all_gather``, ``reduce_scatter``, or the name that
            torch's ``c10d`` has for another.
        num_bytes: Bytes of the tensors that one process puts in.
        phase: Part of the step.
        location: The user's line; in the backward pass, that of the forward operator.
        is_bucket: Whether ``DistributedDataParallel`` sums gradients, during the backward pass.
    """

    kind: str
    num_bytes: int
    phase: Phase = Phase.FORWARD
    location: Location | None = None
    is_bucket: bool = False


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a distributed script, of which one was recorded.

    Args:
        num_processes: Processes that the script asked for.
        collectives: Exchanges of one step, in order.
    """

    num_processes: int
    collectives: tuple[Collective, ...] = ()


class StepTrace(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One training step: one optimizer update, or one round of all optimizers.

    Args:
        events: Events in the order in which the host issues them.
        batch_size: Samples per step, if known.
        num_parameters: Elements of all parameters that the optimizers update.
        peak_memory_bytes: Largest sum of live device tensors within the step.
        settings: Global switches at the end of the step.
        faults: Lines that would raise on a GPU.
        caveats: Limits of the trace.
        torch_version: Version that traced it.
        stacks: The user's lines that led to events, outermost first; events refer to one by
            position.
        facts: Other facts of the run.
        frames: For each of ``stacks`` the functions of a training framework that ran below its last
            line, outermost first: ``transformers.trainer:Trainer.train``, then those that
            distinguish the parts of its step. Unset if no event has any.
        group: The processes of a distributed script. Unset if it joins no process group.
    """

    events: tuple[Event, ...]
    batch_size: int | None = None
    num_parameters: int = 0
    peak_memory_bytes: int = 0
    settings: Settings = Settings()
    faults: tuple[DeviceFault, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    torch_version: str = ""
    stacks: tuple[tuple[Location, ...], ...] = ()
    facts: RunFacts = RunFacts()
    # Leave it out of a file if unset: runs that were stored without it keep their digest.
    frames: tuple[tuple[str, ...], ...] | msgspec.UnsetType = msgspec.UNSET
    group: ProcessGroup | msgspec.UnsetType = msgspec.UNSET

    @property
    def num_processes(self) -> int:
        """Return the number of processes that share the step; it is the step of one of them."""
        return 1 if isinstance(self.group, msgspec.UnsetType) else self.group.num_processes

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Return the operators alone."""
        return tuple(event for event in self.events if isinstance(event, Op))

    @property
    def launches_graph(self) -> bool:
        """Return whether a CUDA graph runs part of it."""
        return any(isinstance(event, GraphLaunch) for event in self.events)

    @cached_property
    def syncs(self) -> tuple[Sync, ...]:
        """Return the syncs alone."""
        return tuple(event for event in self.events if isinstance(event, Sync))

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """Return the host-device copies alone."""
        return tuple(event for event in self.events if isinstance(event, Copy))

    @property
    def h2d_bytes(self) -> int:
        """Return the bytes copied from host to device."""
        return sum(copy.num_bytes for copy in self.copies if copy.is_to_device)

    @property
    def d2h_bytes(self) -> int:
        """Return the bytes copied from device to host, including those of syncs."""
        copied = sum(copy.num_bytes for copy in self.copies if not copy.is_to_device)
        return copied + sum(sync.num_bytes for sync in self.syncs)

    def stack_of(self, event: Event) -> tuple[Location, ...]:
        """Return the user's lines that led to an event, outermost first; empty if unknown."""
        return self.stacks[event.stack] if event.stack >= 0 else ()

    def frames_of(self, event: Event) -> tuple[str, ...]:
        """Return the framework's functions below the user's line, outermost first.

        It is empty for a line that does its work itself.
        """
        if event.stack < 0 or self.frames is msgspec.UNSET:
            return ()
        return self.frames[event.stack] if event.stack < len(self.frames) else ()

    @property
    def uses_device(self) -> bool:
        """Return whether any operator runs on the device."""
        return any(not op.is_on_host for op in self.ops)


class FileChange(StrEnum):
    """The change that a run makes to a file."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


class FileWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A file, or an empty folder, that a run wrote or deleted.

    Args:
        path: Its absolute path, suitable for display.
        change: The change.
        num_bytes: Its size afterwards; 0 if it was deleted.
    """

    path: str
    change: FileChange
    num_bytes: int = 0


class WriteProtection(StrEnum):
    """The destination of a run's writes."""

    # A layer over the file system, which captures all writes.
    OVERLAY = "overlay"
    # A folder to which Python's own functions are redirected.
    REDIRECTED = "redirected"
    # The files themselves.
    NONE = "none"


class FileWrites(msgspec.Struct, frozen=True, kw_only=True):
    """The writes of a run.

    Args:
        protection: Destination of the writes.
        files: The largest of the files; empty if the files themselves were written.
        num_files: Number of files.
        num_bytes: Their total size.
    """

    protection: WriteProtection
    files: tuple[FileWrite, ...] = ()
    num_files: int = 0
    num_bytes: int = 0


class SourceText(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the target ran or imported.

    Args:
        path: Its path, as the locations of a trace name it.
        text: Its content when the run ended.
    """

    path: str
    text: str


def num_micro_batches(events: Sequence[Event], calls: Sequence[ModelCall]) -> int:
    """Return the number of a step's batches that one line hands to a model, each with a backward.

    It is 1 if the calls are something else: time steps before one backward pass, parts of a GAN,
    or the evaluations of a line search, between which weights change.

    Args:
        events: Events of the step.
        calls: Calls of whole models within it, by their positions in ``events``.
    """
    trained = [call for call in calls if call.has_grad]
    if len({(call.model, call.location, call.num_samples) for call in trained}) != 1:
        return 1
    ends = [*(call.first_event for call in trained[1:]), len(events)]
    for call, end in zip(trained, ends, strict=True):
        between = {
            event.phase
            for event in events[call.first_event + call.num_events : end]
            if isinstance(event, Op)
        }
        is_last = end == len(events)
        if Phase.BACKWARD not in between or (Phase.OPTIMIZER in between and not is_last):
            return 1
    return len(trained)

"""What is known of a run besides the events of its typical step."""

from __future__ import annotations

from math import prod

import msgspec

from breakeven.trace.events import Location, TensorSpec


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A ``DataLoader`` that the recorded steps took batches from.

    Args:
        location: Where the script makes it, or calls the library that does; None for one that was
            made before the recording.
        batch_size: Samples per batch; 0 where a sampler yields whole batches or nothing says.
        num_samples: Of its data set; 0 where the data set has no length.
        num_workers: Worker processes that were asked for; the recording itself loads without,
            but for a data set that asks which worker it is in.
        pin_memory: Whether batches arrive in pinned memory.
        persistent_workers: Whether workers were to outlive an epoch.
        num_epochs: Times that it was iterated in the recorded steps.
        dataset: Name of the data set's type: ``TensorDataset``; of a subset, that of its source.
        dataset_location: The user's line that defines that type; None for a library's.
        data_bytes: Tensors and arrays that the data set holds in memory; 0 where none were found.
        is_indexed: Whether a sample is a slice of those and nothing more: ``TensorDataset``, a
            list of samples, or a data set that holds tensors, has no transform, calls nothing but
            conversions in its ``__getitem__``, and is as quick as that.
        has_tensor_rows: Whether a sample is known to be a row of each of some tensors, from which
            whole batches could be taken at once.
        has_batched_fetch: Whether whole batches are fetched in one call: ``__getitems__``, or a
            sampler that yields batches.
        batch_bytes: Tensors of the first batch.
        fetch_ns: Typical time of fetching one batch in the process that does it, the first left
            out; 0 where fetching uses the device and so is among the events of the step.
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
        location: Where the script makes it; for one that was made before the recording, the line
            of its first update.
        num_tensors: Parameters that it updates.
        foreach: As the script set it; None for torch's own choice.
        fused: As the script set it.
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
        stack: Position in the trace's stacks of the lines that led there; -1 where unknown.
        is_training: Whether it is in training mode.
        has_grad: Whether autograd records the call.
        is_used_in_backward: Whether the backward pass reached anything that the call computed.
        first_event: Position in the trace of the first event within it.
        num_events: Events within it.
        num_samples: Leading dimension of its first tensor; 0 where it is given none.
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
    """A call of torch or Python that matters to the speed of a run, by the user's line.

    Args:
        name: Dotted name: ``torch.save``, ``gc.collect``, ``torch.nn.DataParallel``,
            ``torch.autograd.set_detect_anomaly``, ``torch.set_num_threads``, ``torch.compile``,
            ``torch.set_default_dtype``, ``Optimizer.zero_grad(set_to_none=False)``,
            ``torch.utils.checkpoint.checkpoint``, ``SummaryWriter.add_histogram``, ...
        location: The user's line.
        count: Calls in the whole run, up to the end of the recorded steps.
        step_count: Recorded steps in which it was called. What precedes the first update may be
            preparation: the first step counts only for a line that later steps call too, and a
            line that was called before it alone has 0.
        duration_ns: All calls together.
        argument: What it was given last, where that matters, as text: ``4``, ``float64``,
            ``cuda, float16``, ``Linear, mode=max-autotune``.
    """

    name: str
    location: Location | None
    count: int
    step_count: int = 0
    duration_ns: int = 0
    argument: str = ""


class HostArray(msgspec.Struct, frozen=True, kw_only=True):
    """An array of NumPy that the script holds while it trains.

    Args:
        name: Variable, attribute or key that it is known by.
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
    """What is known of the traced run.

    Args:
        num_steps: Steps that were seen: those recorded, and the first.
        loaders: DataLoaders that fed them, the most used first.
        optimizers: In the order of their first update.
        model_calls: Of the typical step, in order.
        calls: Calls that matter, in the order of the first of each line; those that a library
            makes are at the user's line that called it.
        num_shapes: How many different input shapes the steps had, of those with equal operators;
            the update is left out.
        num_convolution_shapes: The same of the convolutions alone.
        shapes_vary_at: The first operator whose shapes differ between steps.
        is_anomaly_checked: Autograd's anomaly detection was on in the typical step.
        live_bytes: Tensors of the device that were alive at the end of each of these steps.
        subnormal_fraction: Part of the values of parameters and gradients, at the end of the last
            step, that are subnormal.
        num_parameter_tensors: Parameters that the optimizers update.
        num_threads: torch's intra-op threads when the last step ended.
        num_interop_threads: torch's inter-op threads.
        num_cores: Processors that the process may use.
        default_dtype: torch's default dtype when the last step ended.
        has_cuda_build: Whether torch was built with CUDA.
        has_nvidia_device: Whether the machine shows an NVIDIA device.
        arrays: NumPy's, that user code could name when the first recorded step ended, the largest
            first; small ones are left out.
        load_fraction: Part of the processors that other processes used while it was recorded.
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

"""A recorded training step."""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.trace.events import Copy, Event, Location, Op, Sync
from breakeven.trace.run_facts import RunFacts


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Global switches of torch that change what a device runs.

    Args:
        allow_tf32_matmul: ``torch.backends.cuda.matmul.allow_tf32`` (off by default).
        allow_tf32_convolution: ``torch.backends.cudnn.allow_tf32`` (on by default).
        cudnn_benchmark: ``torch.backends.cudnn.benchmark``.
        autocast_dtype: dtype of the autocast region, or empty when there is none.
        is_compiled: ``torch.compile`` was asked for; the trace shows the eager step.
    """

    allow_tf32_matmul: bool = False
    allow_tf32_convolution: bool = True
    cudnn_benchmark: bool = False
    autocast_dtype: str = ""
    is_compiled: bool = False


class DeviceFault(msgspec.Struct, frozen=True, kw_only=True):
    """A line that would raise on a machine with a GPU.

    Args:
        message: Why, after "this line raises:".
        location: The line.
        module: Dotted path of the outermost module that ran there with all of its parameters on the
            host, as in `Op`; empty where none did.
    """

    message: str
    location: Location | None = None
    module: str = ""


NEVER_ON_DEVICE = Caveat(
    code="never-on-device",
    message="the script never uses a GPU; predicted as if its model and batches were moved to one",
)


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One training step: one optimizer update, or one round of all of them.

    Args:
        events: In the order in which the host issues them.
        batch_size: Samples per step, where known.
        num_parameters: Elements of all parameters that the optimizers update.
        peak_memory_bytes: Largest sum of live device tensors within the step.
        settings: Global switches at the end of the step.
        faults: Lines that would raise on a GPU.
        caveats: What the trace could not see.
        torch_version: Version that traced it.
        stacks: The user's lines that led to events, outermost first; events name one by position.
        facts: What is known of the run besides.
        frames: For each of ``stacks`` the functions of a training framework that ran below its last
            line, outermost first: ``transformers.trainer:Trainer.train``, then those that tell
            the parts of its step apart. Unset where no event has any.
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
    # Left out of a file where unset: runs that were stored without it keep their digest.
    frames: tuple[tuple[str, ...], ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def ops(self) -> tuple[Op, ...]:
        """Return the operators alone."""
        return tuple(event for event in self.events if isinstance(event, Op))

    @property
    def syncs(self) -> tuple[Sync, ...]:
        """Return the syncs alone."""
        return tuple(event for event in self.events if isinstance(event, Sync))

    @property
    def copies(self) -> tuple[Copy, ...]:
        """Return the host-device copies alone."""
        return tuple(event for event in self.events if isinstance(event, Copy))

    @property
    def h2d_bytes(self) -> int:
        """Return the bytes copied from host to device."""
        return sum(copy.num_bytes for copy in self.copies if copy.is_to_device)

    @property
    def d2h_bytes(self) -> int:
        """Return the bytes copied from device to host, those of syncs included."""
        copied = sum(copy.num_bytes for copy in self.copies if not copy.is_to_device)
        return copied + sum(sync.num_bytes for sync in self.syncs)

    def stack_of(self, event: Event) -> tuple[Location, ...]:
        """Return the user's lines that led to an event, outermost first; empty where unknown."""
        return self.stacks[event.stack] if event.stack >= 0 else ()

    def frames_of(self, event: Event) -> tuple[str, ...]:
        """Return the framework's functions below the user's line, outermost first.

        A line that does its work itself has none.
        """
        if event.stack < 0 or self.frames is msgspec.UNSET:
            return ()
        return self.frames[event.stack] if event.stack < len(self.frames) else ()

    @property
    def uses_device(self) -> bool:
        """Return whether anything at all happens on the device."""
        return any(not op.is_on_host for op in self.ops)

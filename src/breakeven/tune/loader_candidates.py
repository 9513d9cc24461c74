"""How batches reach the step: whole, ahead of time, pinned, or larger."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.trace import Configuration
from breakeven.tune.step_facts import StepFacts
from breakeven.units import format_bytes, format_percent
from breakeven.verdict import Numerics

_NO_LOADER = "no DataLoader feeds the step"
_NOT_ON_CUDA = "the step runs on the CPU"

# Starting a worker forks the process and imports nothing; this is what the first batch waits.
_WORKER_START_S = 0.3
# Fetching must take at least this part of the step to be worth another process.
_LEAST_FETCH_FRACTION = 0.05
# A data set that is kept on the device may take this part of its memory; the step needs the rest.
_RESIDENT_BYTES = 1 << 30


@dataclass(frozen=True)
class GatherBatches:
    """Whole batches out of a data set of tensors, instead of single samples put together."""

    name = "gather-batches"
    title = "batches taken whole from the tensors of the data set"
    numerics = Numerics.EXACT
    family = "gather-batches"
    undo = "the data set and its DataLoader are as the script made them"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        loader = facts.loader
        if loader is None:
            return _NO_LOADER
        if not loader.has_tensor_rows:
            return f"samples of the data set ({loader.dataset}) are not just rows of tensors"
        if loader.has_batched_fetch:
            return "batches are fetched whole already"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, gathers_batches=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: nearly all of the fetching."""
        return 0.9 * facts.fetch_fraction

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


@dataclass(frozen=True)
class Workers:
    """Other processes that load batches ahead.

    Args:
        num_workers: How many; they stay from one epoch to the next.
    """

    num_workers: int

    numerics = Numerics.EXACT
    family = "workers"
    undo = "the processes end with the loader"

    @property
    def name(self) -> str:
        """Return ``workers=2``."""
        return f"workers={self.num_workers}"

    @property
    def title(self) -> str:
        """Return what it changes."""
        if self.num_workers == 1:
            return "1 process that loads batches"
        return f"{self.num_workers} processes that load batches"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        loader = facts.loader
        if loader is None:
            return _NO_LOADER
        if current.gathers_batches:
            return "batches are taken whole, faster than a process could send them"
        if loader.num_workers == self.num_workers:
            return "that is what the script uses already"
        if facts.fetch_fraction < _LEAST_FETCH_FRACTION:
            return f"fetching takes {format_percent(facts.fetch_fraction)} of the step"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, num_workers=self.num_workers)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves, with cores that may be busy themselves."""
        return 0.8 * _spare_fraction(facts) * facts.fetch_fraction

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return _WORKER_START_S * self.num_workers


@dataclass(frozen=True)
class ReadAhead:
    """More batches that each loading process holds ready, for those that take longer.

    Args:
        num_batches: For each process; torch's own choice is 2.
    """

    num_batches: int = 4

    numerics = Numerics.EXACT
    family = "prefetch"
    undo = "the DataLoader is as the script made it"

    @property
    def name(self) -> str:
        """Return ``prefetch=4``."""
        return f"prefetch={self.num_batches}"

    @property
    def title(self) -> str:
        """Return what it changes."""
        return f"{self.num_batches} batches loaded ahead by each process"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if facts.loader is None:
            return _NO_LOADER
        if max(current.num_workers, facts.loader.num_workers) < 1:
            return "no processes load batches"
        if facts.fetch_fraction < _LEAST_FETCH_FRACTION:
            return f"fetching takes {format_percent(facts.fetch_fraction)} of the step"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, prefetch_factor=self.num_batches)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: what is left of waiting for processes."""
        return 0.08 * _spare_fraction(facts) * facts.fetch_fraction

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0


def _spare_fraction(facts: StepFacts) -> float:
    """Return which part of the processor the training loop leaves to others, at least."""
    return 1.0 - 1.0 / max(1, facts.num_cores)


@dataclass(frozen=True)
class PinMemory:
    """Batches in pinned memory, copied to the GPU while it computes."""

    name = "pin-memory"
    title = "pinned batches, copied without waiting"
    numerics = Numerics.EXACT
    family = "pin-memory"
    undo = "loaders and copies are as the script has them"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if not facts.is_on_cuda:
            return _NOT_ON_CUDA
        if facts.loader is None:
            return _NO_LOADER
        if facts.loader.pin_memory:
            return "the script pins its batches already"
        if current.keeps_data_on_device:
            return "the data set is on the GPU"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, pins_memory=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves."""
        return 0.05

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.1


@dataclass(frozen=True)
class KeepDataOnDevice:
    """A data set of tensors copied to the GPU once, and its batches taken there."""

    name = "data-on-device"
    title = "the data set kept on the GPU"
    numerics = Numerics.EXACT
    family = "data-on-device"
    undo = "the script's own tensors stay where they are"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if not facts.is_on_cuda:
            return _NOT_ON_CUDA
        loader = facts.loader
        if loader is None:
            return _NO_LOADER
        if loader.dataset != "TensorDataset":
            return f"the data set is a {loader.dataset}, not a TensorDataset"
        if loader.data_bytes > _RESIDENT_BYTES:
            return f"the data set has {format_bytes(loader.data_bytes)}"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(current, gathers_batches=True, keeps_data_on_device=True)

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of the step it saves: fetching, and the copy as well."""
        return 0.95 * facts.fetch_fraction + 0.05

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.5


@dataclass(frozen=True)
class LargerBatch:
    """A larger batch: more samples a second, and another training.

    Args:
        batch_size: Of the DataLoader now; 0 where there is none that could be changed.
        factor: By how much larger.
    """

    batch_size: int
    factor: int

    numerics = Numerics.TRAINING
    family = "batch"
    undo = "the DataLoader is as the script made it"

    @property
    def name(self) -> str:
        """Return ``batch=128``."""
        return f"batch={self.batch_size * self.factor}" if self.batch_size else "larger-batch"

    @property
    def title(self) -> str:
        """Return what it changes."""
        if not self.batch_size:
            return "a larger batch size"
        return f"batch size {self.batch_size * self.factor} instead of {self.batch_size}"

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return why it cannot help; None where it may."""
        if facts.loader is None or not self.batch_size:
            return "no DataLoader has a batch size that could be changed"
        if facts.loader.num_samples < 2 * self.batch_size * self.factor:
            return f"the data set has {facts.loader.num_samples} samples"
        return None

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it."""
        return replace(
            current,
            loader_batch_size=self.batch_size,
            new_batch_size=self.batch_size * self.factor,
        )

    def expected_gain(self, facts: StepFacts) -> float:
        """Return about which part of a sample's time it saves: launches spread over more."""
        return facts.launch_fraction * (1.0 - 1.0 / self.factor)

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it makes a run start later."""
        return 0.0

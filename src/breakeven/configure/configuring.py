"""A whole configuration put into effect around code that does not know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from breakeven.configure.cuda_settings import allowed_tf32, benchmarked_cudnn, data_on_device
from breakeven.configure.distribution_checks import skipped_distribution_checks
from breakeven.configure.kept_memory import keep_freed_memory
from breakeven.configure.loader_settings import loader_workers, other_batch_size, pinned_batches
from breakeven.configure.model_calls import changed_model_calls
from breakeven.configure.optimizer_choice import chosen_optimizers
from breakeven.configure.patching import Patches
from breakeven.configure.processor_settings import (
    flushed_denormals,
    inter_op_threads,
    intra_op_threads,
)
from breakeven.configure.profiler_ranges import skipped_profiler_ranges
from breakeven.configure.weight_layout import channels_last_weights
from breakeven.configure.whole_batches import whole_batches
from breakeven.trace import Configuration


class configured(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, code runs under a configuration; leaving undoes it.

    What the code sets by itself wins. Three things stay when the context is left: weights that
    have got another memory layout keep it; the number of inter-op threads, which torch takes only
    once in a process; and that the process keeps memory which is freed.

    Args:
        configuration: The settings.
        device: Where the code computes. Settings for CUDA have no effect on ``cpu``.

    Raises:
        BreakevenError: Inter-op threads can no longer be set; raised where the code makes its
            first optimizer.
    """

    def __init__(
        self, configuration: Configuration, *, device: Literal["cpu", "cuda"] = "cpu"
    ) -> None:
        super().__init__()
        self._configuration = configuration
        self._device = device
        self._counts: dict[str, Callable[[], int]] = {}

    def __enter__(self) -> configured:
        super().__enter__()
        self._set_processor()
        self._change_loaders()
        self._change_models()
        if self._device == "cuda":
            self._set_cuda()
        return self

    def effects(self) -> dict[str, int]:
        """Return how often each setting has taken hold so far, by its name.

        It is the number of optimizers, models, loaders or weights that a setting changed, and 1
        for one of torch as a whole; 0 says that there was nothing to change, or that the script
        has set it by itself.
        """
        counts = {name: count() for name, count in self._counts.items()}
        return {name: counts.get(name, 0) for name in self._configuration.changes}

    def _set_processor(self) -> None:
        wanted = self._configuration
        if wanted.num_threads:
            self._add("num_threads", intra_op_threads(wanted.num_threads))
        if wanted.num_interop_threads:
            self._add("num_interop_threads", inter_op_threads(wanted.num_interop_threads))
        if wanted.flushes_denormals:
            self._add("flushes_denormals", flushed_denormals())
        if wanted.keeps_freed_memory:
            is_kept = keep_freed_memory()
            self._add_count("keeps_freed_memory", lambda: int(is_kept))
        if wanted.skips_profiler_ranges:
            self._add("skips_profiler_ranges", skipped_profiler_ranges())
        if wanted.skips_distribution_checks:
            self._add("skips_distribution_checks", skipped_distribution_checks())

    def _change_loaders(self) -> None:
        wanted = self._configuration
        if wanted.loader_batch_size and wanted.new_batch_size:
            change = other_batch_size(wanted.loader_batch_size, wanted.new_batch_size)
            self._add("loader_batch_size", change)
            self._add_count("new_batch_size", lambda: change.num_applied)
        if wanted.num_workers >= 0 or wanted.prefetch_factor:
            workers = loader_workers(wanted.num_workers, wanted.prefetch_factor)
            self._add("num_workers", workers)
            self._add_count("prefetch_factor", lambda: workers.num_reading_ahead)
        if wanted.gathers_batches or (wanted.keeps_data_on_device and self._device == "cuda"):
            # Samples on the device are never taken one by one: each would be a launch.
            self._add("gathers_batches", whole_batches())

    def _change_models(self) -> None:
        wanted = self._configuration
        if wanted.channels_last:
            self._add("channels_last", channels_last_weights())
        if wanted.optimizer:
            self._add("optimizer", chosen_optimizers(wanted.optimizer))
        if not (wanted.compile_mode or wanted.autocast or wanted.cpp_wrapper):
            return
        calls = changed_model_calls(
            compile_mode=wanted.compile_mode, autocast=wanted.autocast, device=self._device
        )
        self.enter_context(calls)
        self._add_count("compile_mode", lambda: calls.num_compiled)
        self._add_count("autocast", lambda: calls.num_autocast)
        if wanted.cpp_wrapper:
            import torch._inductor.config as inductor  # slow, and only of use for compiled code

            self.enter_context(inductor.patch(cpp_wrapper=True))
            self._add_count("cpp_wrapper", lambda: calls.num_compiled + calls.compiles_itself)

    def _set_cuda(self) -> None:
        wanted = self._configuration
        if wanted.pins_memory:
            self._add("pins_memory", pinned_batches())
        if wanted.keeps_data_on_device:
            self._add("keeps_data_on_device", data_on_device())
        if wanted.allows_tf32:
            self._add("allows_tf32", allowed_tf32())
        if wanted.benchmarks_cudnn:
            self._add("benchmarks_cudnn", benchmarked_cudnn())

    def _add(self, name: str, setting: Any) -> None:
        self.enter_context(setting)
        self._add_count(name, lambda: setting.num_applied)

    def _add_count(self, name: str, count: Callable[[], int]) -> None:
        self._counts[name] = count

"""A generated call that does one or several training steps on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from faststep.batch import Batch, num_steps_of
from faststep.codegen.generated import Gathered, Generated, Plan
from faststep.compiling import explained, unchanged_state
from faststep.hooks import step_hook_guards
from faststep.quick_call import QuickCall, has_quick_calls
from faststep.recipe import Recipe
from faststep.results import stack_results
from faststep.situation import Situation
from faststep.step_function import make_step
from faststep.tensors import BoundTensors, clone_all
from faststep.update_numbers import UpdateNumbers

_C_NAMES = {torch.float32: "float", torch.float64: "double"}


class GeneratedStep:
    """A generated call that does one step, or any number of them.

    Args:
        recipe: What a step computes.
        bound: The tensors that it is made for.
        single: A batch of the shapes that it is made for.

    Raises:
        UnsupportedError: The step holds something that no code is generated for.
        CompilerError: There is no C compiler, or it failed.
    """

    engine = "generated C"

    def __init__(self, recipe: Recipe, bound: BoundTensors, single: Batch) -> None:
        start_ns = time.perf_counter_ns()
        function = make_step(recipe, bound.tensors, bound.packs, single, 1)
        numbers = bound.numbers(1)
        examples = (*bound.arguments, numbers, *single.tensors)
        first_late = len(bound.tensors.trained) + len(bound.tensors.fixed)
        late = range(first_late, len(bound.arguments) + 1)
        of_batch = range(late.stop, len(examples))
        with unchanged_state(), explained():
            self._numbers = bound.update_numbers()
            source = self._numbers.source(_C_NAMES[bound.dtype])
            self._generated = Generated(function, examples, late, source, of_batch)
        self._single = single
        self._lock = threading.Lock()
        self._in_use = ctypes.c_int64(0)  # as the lock, for quick calls
        # What was last called, so that only what differs is set anew.
        self._bound: BoundTensors | None = None
        self.compile_ns = time.perf_counter_ns() - start_ns

    def __call__(
        self, bound: BoundTensors, batch: Batch, indices: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Do the steps; return their losses, and what comes beside them.

        Raises:
            IndexError: A class or another index in a batch is out of range; nothing was changed by
                that step.
        """
        with self._locked():
            if bound is not self._bound:
                self._call = _Call(
                    self._generated, bound, bound.arguments, self._numbers, self._single
                )
                self._bound = bound
            results = self._do(self._call, bound, batch, indices)
        self._mark(bound, num_steps_of(indices))
        return results

    def do_one(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Do a step for the tensors that were last called with; return its results."""
        bound = self._bound
        assert bound is not None
        with self._locked():
            self._call.begin(bound)
            results = self._call.do_one((inputs, targets))
        self._mark(bound, 1)
        return results

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other thread do a step meanwhile."""
        with self._lock:
            self._in_use.value = 1
            try:
                yield
            finally:
                self._in_use.value = 0

    def quick_call(
        self,
        situation: Situation,
        bound: BoundTensors,
        optimizer: Optimizer,
        batch: Batch,
        indices: Tensor | None,
    ) -> QuickCall | None:
        """Return it as a quick call for the tensors last called with, if it can be one."""
        call = self._call
        if not (self._is_plain(batch, indices) and call.counts and has_quick_calls()):
            return None
        if any(tensor.is_inference() for tensor in bound.owned):  # which has no count of writes
            return None
        given = batch.tensors
        if indices is not None:
            if indices.dtype != torch.int64 or not indices.is_contiguous():
                return None
            given = (*given, indices)
        guards = [
            *step_hook_guards(optimizer),
            *situation.guards(call.option_places()),
            *bound.guards(),
        ]
        at, places, kept = call.addresses(None if indices is None else len(indices))
        return QuickCall(
            guards,
            list(zip(given, places, strict=True)),
            num_steps=num_steps_of(indices),
            loss_slot=call.loss_slot,
            at=at,
            run=self._generated.address,
            marked=bound.owned,
            is_in_use=self._in_use,
            kept=kept,
        )

    def _is_plain(self, batch: Batch, indices: Tensor | None) -> bool:
        """Return whether C alone can do it: it draws nothing, and moves on one result each step."""
        return (
            not self._generated.draws
            and len(self._generated.results) == 1
            and (indices is None or all(t.is_contiguous() for t in batch.tensors))
        )

    def make_losses(self, num_steps: int | None) -> Tensor:
        """Return memory for losses to come, of single steps or of several: a row for each call."""
        return self._call.make_losses(num_steps)

    def _mark(self, bound: BoundTensors, num_steps: int) -> None:
        bound.mark_written()
        if not self._call.counts:
            bound.count(num_steps)

    def on_copies(
        self, bound: BoundTensors, batch: Batch, indices: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Do the steps on copies of the tensors.

        Returns:
            The losses with what comes beside them, and the copies in the order of
            ``bound.arguments``.
        """
        copies = clone_all(bound.arguments)
        with self._locked():
            call = _Call(self._generated, bound, copies, self._numbers, self._single, counts=False)
            return self._do(call, bound, batch, indices), copies

    def _do(
        self, call: _Call, bound: BoundTensors, batch: Batch, indices: Tensor | None
    ) -> tuple[Tensor, ...]:
        call.begin(bound)
        if indices is None:
            return call.do_one(batch.tensors)
        indices = _as_rows(batch, indices)
        if self._is_plain(batch, indices):
            return (call.do_many(batch.tensors, indices),)
        return stack_results(
            [call.do_one(batch.rows(chosen).contiguous().tensors) for chosen in indices]
        )


def _as_rows(batch: Batch, indices: Tensor) -> Tensor:
    """Return indices as numbers of rows, which the C code does not check."""
    num_samples = min(len(tensor) for tensor in batch.tensors)
    lowest, highest = (int(one) for one in torch.aminmax(indices))
    if lowest < -num_samples or highest >= num_samples:
        raise IndexError(f"indices from {lowest} to {highest} are outside of {num_samples} samples")
    indices = indices.long().contiguous()
    if lowest < 0:
        indices = torch.where(indices < 0, indices + num_samples, indices)
    return indices


class _Call:
    """The addresses of a call: all but those of the batch stay from step to step."""

    def __init__(
        self,
        generated: Generated,
        bound: BoundTensors,
        written: Sequence[Tensor],
        numbers: UpdateNumbers,
        batch: Batch,
        *,
        counts: bool = True,
    ) -> None:
        self._generated = generated
        self._written = written  # kept alive
        self._update = numbers
        self._options = (ctypes.c_double * max(1, len(numbers.options)))()
        self._numbers = (ctypes.c_double * max(1, numbers.width))()  # as floats, half of it
        self.loss_slot = generated.num_arguments + len(generated.draws)
        self._batch_slot = len(written) + 1
        addresses = [tensor.data_ptr() for tensor in written]
        num_slots = self.loss_slot + len(generated.results)
        self._addresses = (ctypes.c_void_p * num_slots)(*addresses, ctypes.addressof(self._numbers))
        self._loss_shape, self._loss_dtype = generated.results[0].shape, generated.results[0].dtype
        self._losses: list[Tensor] = []
        self._beside = [(tuple(one.shape), one.dtype) for one in generated.results[1:]]
        # Where the batches of several steps are put together, and what else these need.
        self._batches = [torch.empty_like(tensor) for tensor in batch.tensors]
        self._several: tuple[Plan, Any, Any] | None = None
        counters = bound.tensors.counters
        # The C code counts in float32, as optimizers do unless torch's default was changed.
        self.counts = counts and all(t.dtype == torch.float32 and t.is_cpu for t in counters)
        # Of each pack where it does not count the optimizer's own.
        self._own_counts = (ctypes.c_float * len(bound.packs))()
        own = [ctypes.addressof(self._own_counts) + 4 * i for i in range(len(bound.packs))]
        counted = [t.data_ptr() for t in counters] if self.counts else own
        firsts = [pack.members[0].counter for pack in bound.packs]
        read = [
            first.data_ptr() if self.counts and first is not None else place
            for first, place in zip(firsts, own, strict=True)
        ]
        self._counters = (ctypes.c_void_p * max(1, len(counted)))(*counted)
        self._num_counters = len(counted)
        self._read_counts = (ctypes.c_void_p * len(read))(*read)
        self._plan = self._make_plan()
        self._plan.num_steps = 1
        self.at = (
            ctypes.addressof(self._addresses),
            generated.workspace,
            ctypes.addressof(self._plan),
        )

    def _make_plan(self) -> Plan:
        return Plan(
            numbers=self._batch_slot - 1,
            options=ctypes.addressof(self._options),
            counts=ctypes.addressof(self._read_counts),
            loss=self.loss_slot,
            num_counters=self._num_counters,
            counters=ctypes.addressof(self._counters),
            **self._generated.team,
        )

    def addresses(self, num_steps: int | None) -> tuple[tuple[int, int, int], list[int], Any]:
        """Return the addresses of a call, where those of its data are read from, and what to keep.

        Args:
            num_steps: As many as ``do_many`` has done last; none for a single step.
        """
        if num_steps is None:
            first = ctypes.addressof(self._addresses)
            size = ctypes.sizeof(ctypes.c_void_p)
            return self.at, [first + size * (self._batch_slot + i) for i in range(2)], self
        assert self._several is not None
        plan, gathered, addresses = self._several
        assert plan.num_steps == num_steps
        places = [ctypes.addressof(one) + Gathered.rows.offset for one in gathered]
        at = ctypes.addressof(addresses), self._generated.workspace, ctypes.addressof(plan)
        places.append(ctypes.addressof(plan) + Plan.indices.offset)
        return at, places, (self, self._several)

    def option_places(self) -> dict[tuple[int, str], int]:
        """Return where numbers of the optimizer's groups are read from."""
        first = ctypes.addressof(self._options)
        return {
            (group, name): first + ctypes.sizeof(ctypes.c_double) * number
            for number, (group, name, index) in enumerate(self._update.options)
            if index is None
        }

    def begin(self, bound: BoundTensors) -> None:
        """Read what changes from call to call: options, and counts that are not the optimizer's."""
        self._options[:] = self._update.values(bound.groups) or [0.0]
        if not self.counts:
            self._own_counts[:] = bound.counts()

    def do_one(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Do a step; return its loss, and what comes beside it."""
        addresses, slot = self._addresses, self._batch_slot
        for tensor in batch:
            addresses[slot] = tensor.data_ptr()
            slot += 1
        drawn = [draw() for draw in self._generated.draws]
        for tensor in drawn:
            addresses[slot] = tensor.data_ptr()
            slot += 1
        if not self._losses:
            self._losses = list(self.make_losses().unbind())
        loss = self._losses.pop()
        addresses[slot] = loss.data_ptr()
        beside = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in self._beside]
        for tensor in beside:
            slot += 1
            addresses[slot] = tensor.data_ptr()
        if self._generated.run(*self.at) != 1:
            raise IndexError(_OUT_OF_RANGE)
        return (loss, *beside)

    def make_losses(self, num_steps: int | None = None) -> Tensor:
        """Return memory for losses to come, a row for each call: cheaper when made together.

        Args:
            num_steps: Of several steps each; none for a single one's.
        """
        if num_steps is None:
            return self._empty_losses(_LOSSES_AT_ONCE)
        count = max(1, min(_LOSSES_AT_ONCE, _MOST_LOSSES // num_steps))
        return self._empty_losses(count, num_steps)

    def _empty_losses(self, *counts: int) -> Tensor:
        return torch.empty((*counts, *self._loss_shape), dtype=self._loss_dtype, device="cpu")

    def do_many(self, data: Sequence[Tensor], indices: Tensor) -> Tensor:
        """Do a step for each row of indices; return the losses."""
        count = len(indices)
        if self._several is None or self._several[0].num_steps != count:
            self._several = self._prepare_several(count, indices.shape[1])
        plan, gathered, addresses = self._several
        losses = self._empty_losses(count)
        addresses[self.loss_slot] = losses.data_ptr()
        for number, tensor in enumerate(data):
            gathered[number].rows = tensor.data_ptr()
        plan.indices = indices.data_ptr()
        at = ctypes.addressof(addresses), self._generated.workspace, ctypes.addressof(plan)
        done = self._generated.run(*at)
        if done != count:
            raise IndexError(f"{_OUT_OF_RANGE} (step {done} of {count})")
        return losses

    def _prepare_several(self, count: int, batch_size: int) -> tuple[Plan, Any, Any]:
        gathered = (Gathered * len(self._batches))()
        addresses = type(self._addresses)(*self._addresses)
        for number, batch in enumerate(self._batches):
            addresses[self._batch_slot + number] = batch.data_ptr()
            gathered[number].row_bytes = batch.numel() * batch.itemsize // max(1, len(batch))
            gathered[number].batch = batch.data_ptr()
        plan = self._make_plan()
        plan.num_steps = count
        plan.loss_bytes = self._loss_dtype.itemsize * math.prod(self._loss_shape)
        plan.num_gathered, plan.batch_size = len(self._batches), batch_size
        plan.gathered = ctypes.addressof(gathered)
        return plan, gathered, addresses


_LOSSES_AT_ONCE = 256
_MOST_LOSSES = 8192  # whoever keeps one of them keeps all
_OUT_OF_RANGE = "a class or another index in the batch is out of range"

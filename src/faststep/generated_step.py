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

from faststep.batch import Batch, num_steps_of
from faststep.codegen.generated import Gathered, Generated, Plan
from faststep.fast_path import FastCall, has_fast_path
from faststep.guards import Guards
from faststep.inductor import explained, unchanged_state
from faststep.params import Params, clone_all
from faststep.recipe import Recipe, stack_results
from faststep.step_function import make_step
from faststep.updates import UpdateNumbers

_LOSSES_AT_ONCE = 256
_MOST_LOSSES = 8192  # keeping one loss keeps the memory of all
_OUT_OF_RANGE = "a class or another index in the batch is out of range"


class GeneratedStep:
    """A generated call that does one step, or any number of them.

    Args:
        recipe: The computation of a step.
        params: The tensors that the code is generated for.
        single: A batch of the shapes that the code is generated for.

    Raises:
        UnsupportedError: The step contains an operator, dtype or layout without generated code.
        CompilerError: There is no C compiler, or it failed.
    """

    engine = "generated C"

    def __init__(self, recipe: Recipe, params: Params, single: Batch) -> None:
        start_ns = time.perf_counter_ns()
        function = make_step(recipe, params, single, 1)
        examples = (*params.arguments, params.numbers(1), *single.tensors)
        first_late = len(params.owned)
        late = range(first_late, len(params.arguments) + 1)
        c_type = "double" if params.dtype == torch.float64 else "float"
        with unchanged_state(), explained():
            packs = [pack.group for pack in params.packs]
            self._numbers = UpdateNumbers(recipe.rule, params.groups, packs)
            source = self._numbers.source(c_type)
            of_batch = range(late.stop, len(examples))
            self._generated = Generated(function, examples, late, source, of_batch)
        self._single = single
        self._lock = threading.Lock()
        self._in_use = ctypes.c_int64(0)  # the lock's state, for the fast path
        # The tensors of the last call: other tensors need new addresses.
        self._params: Params | None = None
        self.compile_ns = time.perf_counter_ns() - start_ns

    def __call__(self, params: Params, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do the steps; return their losses and auxiliary tensors.

        Raises:
            IndexError: A class or another index in a batch is out of range; that step changed
                nothing.
        """
        with self._locked():
            if params is not self._params:
                self._call = _Call(
                    self._generated, params, params.arguments, self._numbers, self._single
                )
                self._params = params
            results = self._do(self._call, params, batch, indices)
        params.mark_written()
        if not self._call.counts:
            params.count(num_steps_of(indices))
        return results

    def on_copies(
        self, params: Params, batch: Batch, indices: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Do the steps on copies of the tensors.

        Returns:
            The losses and auxiliary tensors, and the copies in the order of
            ``params.arguments``.
        """
        copies = clone_all(params.arguments)
        with self._locked():
            call = _Call(self._generated, params, copies, self._numbers, self._single, counts=False)
            return self._do(call, params, batch, indices), copies

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads from a step inside the context."""
        with self._lock:
            self._in_use.value = 1
            try:
                yield
            finally:
                self._in_use.value = 0

    def _do(
        self, call: _Call, params: Params, batch: Batch, indices: Tensor | None
    ) -> tuple[Tensor, ...]:
        call.begin(params)
        if indices is None:
            return call.do_one(batch.tensors)
        # Check the row numbers here: the C code does not.
        num_samples = min(len(tensor) for tensor in batch.tensors)
        lowest, highest = (int(one) for one in torch.aminmax(indices))
        if lowest < -num_samples or highest >= num_samples:
            raise IndexError(
                f"indices from {lowest} to {highest} are outside of {num_samples} samples"
            )
        indices = indices.long().contiguous()
        if lowest < 0:
            indices = torch.where(indices < 0, indices + num_samples, indices)
        if self._is_plain(batch, indices):
            return (call.do_many(batch.tensors, indices),)
        return stack_results(
            [call.do_one(batch.rows(chosen).contiguous().tensors) for chosen in indices]
        )

    def _is_plain(self, batch: Batch, indices: Tensor | None) -> bool:
        """Whether C code alone can do the call: no random draws, and only a loss as result."""
        return (
            not self._generated.draws
            and len(self._generated.results) == 1
            and (indices is None or all(t.is_contiguous() for t in batch.tensors))
        )

    def fast_call(
        self, guards: Guards, params: Params, batch: Batch, indices: Tensor | None
    ) -> FastCall | None:
        """Return a fast call for tensors like the last ones; None if there can be none."""
        call = self._call
        if not (self._is_plain(batch, indices) and call.counts and has_fast_path()):
            return None
        if any(tensor.is_inference() for tensor in params.owned):  # these have no version counter
            return None
        given = batch.tensors
        if indices is not None:
            if indices.dtype != torch.int64 or not indices.is_contiguous():
                return None
            given = (*given, indices)
        at, places, kept = call.addresses(None if indices is None else len(indices))
        return FastCall(
            [*guards.guards(call.option_places()), *params.guards()],
            list(zip(given, places, strict=True)),
            num_steps=num_steps_of(indices),
            loss_slot=call.loss_slot,
            at=at,
            run=self._generated.address,
            marked=params.owned,
            is_in_use=self._in_use,
            kept=kept,
        )

    def make_losses(self, num_steps: int | None) -> Tensor:
        """Return memory for future losses: a row for each call, of one step or of several."""
        return self._call.make_losses(num_steps)


class _Call:
    """The addresses of a call; only those of the batch change from step to step."""

    def __init__(
        self,
        generated: Generated,
        params: Params,
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
        self._numbers = (ctypes.c_double * max(1, numbers.width))()  # float32 uses half of it
        self.loss_slot = generated.num_arguments + len(generated.draws)
        self._batch_slot = len(written) + 1
        addresses = [tensor.data_ptr() for tensor in written]
        num_slots = self.loss_slot + len(generated.results)
        self._addresses = (ctypes.c_void_p * num_slots)(*addresses, ctypes.addressof(self._numbers))
        self._loss_shape, self._loss_dtype = generated.results[0].shape, generated.results[0].dtype
        self._losses: list[Tensor] = []
        self._beside = [(tuple(one.shape), one.dtype) for one in generated.results[1:]]
        # Memory that collects each batch of several steps, and the plan of those steps.
        self._batches = [torch.empty_like(tensor) for tensor in batch.tensors]
        self._several: tuple[Plan, Any, Any] | None = None
        # The C code counts in float32, as optimizers do unless torch's default dtype changed.
        counters = params.counters
        self.counts = counts and all(t.dtype == torch.float32 and t.is_cpu for t in counters)
        # A count for each pack, for calls that do not update the optimizer's own counts.
        self._own_counts = (ctypes.c_float * len(params.packs))()
        own = [ctypes.addressof(self._own_counts) + 4 * i for i in range(len(params.packs))]
        counted = [t.data_ptr() for t in counters] if self.counts else own
        firsts = [pack.members[0].counter for pack in params.packs]
        read = [
            first.data_ptr() if self.counts and first is not None else place
            for first, place in zip(firsts, own, strict=True)
        ]
        self._counters = (ctypes.c_void_p * max(1, len(counted)))(*counted)
        self._num_counters = len(counted)
        self._read_counts = (ctypes.c_void_p * len(read))(*read)
        self._plan = self._make_plan(1)
        self._at = self._at_of(self._addresses, self._plan)

    def _make_plan(self, num_steps: int) -> Plan:
        return Plan(
            num_steps=num_steps,
            numbers=self._batch_slot - 1,
            options=ctypes.addressof(self._options),
            counts=ctypes.addressof(self._read_counts),
            loss=self.loss_slot,
            num_counters=self._num_counters,
            counters=ctypes.addressof(self._counters),
            **self._generated.team,
        )

    def _at_of(self, addresses: Any, plan: Plan) -> tuple[int, int, int]:
        return ctypes.addressof(addresses), self._generated.workspace, ctypes.addressof(plan)

    def addresses(self, num_steps: int | None) -> tuple[tuple[int, int, int], list[int], Any]:
        """Return the addresses of a call, the places of its data's addresses, and their owners.

        Args:
            num_steps: The number of steps of the last ``do_many``; None for a single step.
        """
        if num_steps is None:
            first = ctypes.addressof(self._addresses)
            size = ctypes.sizeof(ctypes.c_void_p)
            return self._at, [first + size * (self._batch_slot + i) for i in range(2)], self
        assert self._several is not None
        plan, gathered, addresses = self._several
        assert plan.num_steps == num_steps
        places = [ctypes.addressof(one) + Gathered.rows.offset for one in gathered]
        places.append(ctypes.addressof(plan) + Plan.indices.offset)
        return self._at_of(addresses, plan), places, (self, self._several)

    def option_places(self) -> dict[tuple[int, str], int]:
        """Return the addresses from which the C code reads options, by group number and name."""
        first = ctypes.addressof(self._options)
        return {
            (group, name): first + ctypes.sizeof(ctypes.c_double) * number
            for number, (group, name, index) in enumerate(self._update.options)
            if index is None
        }

    def begin(self, params: Params) -> None:
        """Read the options; and the step counts, if the call does not use the optimizer's."""
        self._options[:] = self._update.values(params.groups) or [0.0]
        if not self.counts:
            self._own_counts[:] = params.counts()

    def do_one(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Do a step; return its loss and auxiliary tensors."""
        if not self._losses:
            self._losses = list(self.make_losses(None).unbind())
        loss = self._losses.pop()
        drawn = [draw() for draw in self._generated.draws]
        beside = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in self._beside]
        for slot, tensor in enumerate((*batch, *drawn, loss, *beside), self._batch_slot):
            self._addresses[slot] = tensor.data_ptr()
        if self._generated.run(*self._at) != 1:
            raise IndexError(_OUT_OF_RANGE)
        return (loss, *beside)

    def make_losses(self, num_steps: int | None) -> Tensor:
        """Return memory for future losses, a row for each call; one allocation is cheaper.

        Args:
            num_steps: Number of steps of each call; None for a single step.
        """
        shape = (_LOSSES_AT_ONCE,)
        if num_steps is not None:
            shape = (max(1, min(_LOSSES_AT_ONCE, _MOST_LOSSES // num_steps)), num_steps)
        return torch.empty((*shape, *self._loss_shape), dtype=self._loss_dtype, device="cpu")

    def do_many(self, data: Sequence[Tensor], indices: Tensor) -> Tensor:
        """Do a step for each row of indices; return the losses."""
        count, batch_size = indices.shape
        if self._several is None or self._several[0].num_steps != count:
            gathered = (Gathered * len(self._batches))()
            addresses = type(self._addresses)(*self._addresses)
            for number, batch in enumerate(self._batches):
                addresses[self._batch_slot + number] = batch.data_ptr()
                gathered[number].row_bytes = batch.numel() * batch.itemsize // max(1, len(batch))
                gathered[number].batch = batch.data_ptr()
            plan = self._make_plan(count)
            plan.loss_bytes = self._loss_dtype.itemsize * math.prod(self._loss_shape)
            plan.num_gathered, plan.batch_size = len(self._batches), batch_size
            plan.gathered = ctypes.addressof(gathered)
            self._several = plan, gathered, addresses
        plan, gathered, addresses = self._several
        losses = torch.empty((count, *self._loss_shape), dtype=self._loss_dtype, device="cpu")
        addresses[self.loss_slot] = losses.data_ptr()
        for number, tensor in enumerate(data):
            gathered[number].rows = tensor.data_ptr()
        plan.indices = indices.data_ptr()
        done = self._generated.run(*self._at_of(addresses, plan))
        if done != count:
            raise IndexError(f"{_OUT_OF_RANGE} (step {done} of {count})")
        return losses

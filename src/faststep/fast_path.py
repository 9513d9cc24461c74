"""Calls of generated steps from Python that run only C code, including the checks before a step.

Checks for changes in Python take longer than a small step. A list of ``Guard``s therefore holds
them, and the C code of ``fast_path.h`` evaluates the list.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from faststep.codegen.toolchain import CompilerError, load


class Check(IntEnum):
    """The kind of a guard; mirrors ``fast_path.h``.

    ``SIZE``: is this the dict's length? ``ITEM``: is this in the dict under the key?
    ``ATTRIBUTE``: is this the holder's attribute? ``ELEMENTS``: are these the list's elements?
    ``ADDRESS``: is this the address of the tensor's data? ``NUMBER``: write the dict's number to
    this place. ``VALUES``: are these the dict's values?
    """

    SIZE = 0
    ITEM = 1
    ATTRIBUTE = 2
    ELEMENTS = 3
    ADDRESS = 4
    NUMBER = 5
    VALUES = 6


# Check, holder, key and expected value.
Guard = tuple[Check, Any, Any, Any]


class _Guard(ctypes.Structure):
    _fields_ = (
        ("check", ctypes.c_int64),
        ("holder", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("wanted", ctypes.c_uint64),
    )


class _Tensor(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Input(ctypes.Structure):
    _fields_ = (("type", ctypes.c_void_p), ("like", _Tensor), ("place", ctypes.c_void_p))


class _Call(ctypes.Structure):
    _fields_ = (
        ("num_guards", ctypes.c_int64),
        ("guards", ctypes.c_void_p),
        ("num_inputs", ctypes.c_int64),
        ("inputs", _Input * 3),
        ("num_indices", ctypes.c_int64),
        ("num_samples", ctypes.c_int64),
        ("describe", ctypes.c_void_p),
        ("mark", ctypes.c_void_p),
        ("num_marked", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("marked", "none", "losses")),
        *((name, ctypes.c_int64) for name in ("first_loss", "loss_bytes", "num_losses")),
        ("is_in_use", ctypes.c_void_p),
        ("addresses", ctypes.c_void_p),
        ("loss_slot", ctypes.c_int64),
        ("num_steps", ctypes.c_int64),
        ("run", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("plan", ctypes.c_void_p),
    )


class _Method(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80


class FastCall:
    """A call of one or several steps for tensors like those of the last call.

    ``function(inputs, targets)`` returns the loss; ``function(inputs, targets, indices)`` returns
    the losses of several steps. If the tensors do not match or a guard fails, then it returns None
    and does no step.

    Args:
        guards: Conditions that must hold.
        inputs: Example tensors, each with the place that gets the address of the actual tensor.
        num_steps: Number of steps of a call.
        loss_slot: Number of the argument that is the loss.
        at: Addresses of the arguments, the workspace and the plan.
        run: Address of ``run`` of ``driver.h``.
        marked: Tensors that the step writes to.
        is_in_use: Nonzero while another thread does a step of it.
        kept: Objects that own the memory at these addresses.
    """

    def __init__(
        self,
        guards: Sequence[Guard],
        inputs: Sequence[tuple[Tensor, int]],
        *,
        num_steps: int,
        loss_slot: int,
        at: tuple[int, int, int],
        run: int,
        marked: list[Tensor],
        is_in_use: ctypes.c_int64,
        kept: Any,
    ) -> None:
        found = _functions()
        assert found is not None
        method, describe, mark = found
        self._kept: list[Any] = [method, is_in_use, kept]
        self._refilling = threading.Lock()
        self._call = call = _Call()
        array = (_Guard * len(guards))()
        for one, (check, holder, key, wanted) in zip(array, guards, strict=True):
            is_number = check in (Check.SIZE, Check.ADDRESS, Check.NUMBER)
            one.check, one.holder, one.key = check, self._keep(holder), self._keep(key)
            one.wanted = wanted if is_number else self._keep(wanted)
        call.num_guards, call.guards = len(guards), ctypes.addressof(array)
        self._kept.append(array)
        call.num_inputs = len(inputs)
        for number, (tensor, place) in enumerate(inputs):
            one = call.inputs[number]
            one.type, one.place = self._keep(Tensor), place
            describe(tensor, ctypes.byref(one.like))
            # Copy the sizes: the tensor may get another shape later.
            for field, values in (("shape", tensor.shape), ("strides", tensor.stride())):
                sizes = (ctypes.c_int64 * len(values))(*values)
                setattr(one.like, field, ctypes.addressof(sizes))
                self._kept.append(sizes)
        if len(inputs) == 3:  # each call checks the indices
            call.num_indices = inputs[2][0].numel()
            call.num_samples = min(len(tensor) for tensor, _ in inputs[:2])
        call.describe, call.mark = (
            ctypes.cast(one, ctypes.c_void_p).value for one in (describe, mark)
        )
        # Use own tensor objects, which stay in place; they share the version counters of the model.
        owned = [tensor.detach() for tensor in marked]
        array = (ctypes.c_void_p * len(owned))(*(tensor._cdata for tensor in owned))
        self._kept += [owned, array]
        call.num_marked, call.marked = len(owned), ctypes.addressof(array)
        call.none = self._keep(None)
        call.is_in_use = ctypes.addressof(is_in_use)
        call.num_steps, call.loss_slot = num_steps, loss_slot
        call.addresses, call.workspace, call.plan = at
        call.run = run
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        self.function: Callable[..., Tensor | None] = new(
            ctypes.addressof(method), ctypes.addressof(call), None
        )

    def _keep(self, value: Any) -> int:
        """Keep an object alive as long as the call; return its address."""
        self._kept.append(value)
        return id(value)

    @property
    def is_empty(self) -> bool:
        """Whether no tensors for future losses are left."""
        return self._call.num_losses == 0

    def refill(self, losses: Tensor) -> None:
        """Add tensors for future losses: one for each row."""
        with self._refilling:
            # Set the count last: another thread may call between two of these lines.
            self._call.num_losses = 0
            self._losses = list(losses.unbind())
            self._call.losses = id(self._losses)
            self._call.first_loss = losses.data_ptr()
            self._call.loss_bytes = losses.stride(0) * losses.itemsize
            self._call.num_losses = len(losses)


def has_fast_path() -> bool:
    """Whether the fast path works: this Python and torch support it, and it compiles."""
    return _functions() is not None


# torch::autograd::impl::bump_version(at::Tensor const&); an at::Tensor is one pointer.
_MARK = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"
# Byte offset of dltensor_from_py_object_no_sync in DLPack's table of functions.
_DESCRIBE_OFFSET = 40


@functools.cache
def _functions() -> tuple[_Method, Any, Any] | None:
    """Return the C function, and torch's functions that describe a tensor and mark it as written.

    Return None if this Python or torch lacks them, or if there is no C compiler.
    """
    is_locked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    mark = getattr(ctypes.CDLL(torch._C.__file__), _MARK, None)
    if sys.implementation.name != "cpython" or not is_locked() or capsule is None or mark is None:
        return None
    open_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    open_capsule.restype = ctypes.c_void_p
    open_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = open_capsule(capsule, b"dlpack_exchange_api")
    if ctypes.c_uint32.from_address(table).value != 1:  # the major version
        return None
    describe = ctypes.c_void_p.from_address(table + _DESCRIBE_OFFSET).value
    if not describe:
        return None
    try:
        library = load('#include "fast_path.h"\n', ctypes.PyDLL)
    except (CompilerError, OSError):
        return None
    function = ctypes.cast(library.fast_path, ctypes.c_void_p)
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
    return _Method(b"fast_path", function.value, _METH_FASTCALL, None), kind(describe), mark

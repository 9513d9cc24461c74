"""A generated step called from Python in C alone, with all that is asked before it.

Asking whether anything has changed, in Python, takes longer than a small step itself. So the
questions are written down once, as ``Guard``s, and asked by the C code of ``quick_call.h``.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from breakeven.codegen import CompilerError, load


class Check(IntEnum):
    """What a guard asks; as ``quick_call.h`` has it.

    ``SIZE``: is this the holder's length? ``ITEM``: is this in the dict under the key?
    ``ATTRIBUTE``: is this the holder's attribute? ``EQUAL``: are the two equal? ``ADDRESS``: is
    this the address of the tensor's data? ``NUMBER``: what the dict has is written there.
    ``VALUES``: are these the dict's values?
    """

    SIZE = 0
    ITEM = 1
    ATTRIBUTE = 2
    EQUAL = 3
    ADDRESS = 4
    NUMBER = 5
    VALUES = 6


# Check, holder, key and what is wanted.
Guard = tuple[Check, Any, Any, Any]


class _Guard(ctypes.Structure):
    _fields_ = (
        ("check", ctypes.c_int64),
        ("holder", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("wanted", ctypes.c_uint64),
    )


class _Input(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("type", "shape", "strides", "dtype"))


class _Call(ctypes.Structure):
    _fields_ = (
        ("num_guards", ctypes.c_int64),
        ("guards", ctypes.c_void_p),
        ("inputs", _Input * 2),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("data_ptr", "stride", "shape_name", "dtype_name", "is_cpu_name", "is_true"),
                *("none", "mark", "marked", "losses", "loss_addresses"),
            )
        ),
        ("num_losses", ctypes.c_int64),
        ("is_in_use", ctypes.c_void_p),
        ("addresses", ctypes.c_void_p),
        ("batch_slot", ctypes.c_int64),
        ("loss_slot", ctypes.c_int64),
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


class QuickCall:
    """A step called for tensors like two that it was called with.

    ``function(inputs, targets)`` returns the loss; None where the step is not for them or something
    has changed: nothing was done then.

    Args:
        guards: What must hold.
        inputs: Tensors like those that it is for.
        slots: Numbers of the arguments that are the batch, and the loss.
        at: Addresses of the arguments, the workspace and the plan of a single step.
        run: Address of ``run`` of ``driver.h``.
        marked: Tensors that the step writes to.
        is_in_use: Whether another call does a step of it.
    """

    def __init__(
        self,
        guards: Iterable[Guard],
        inputs: tuple[Tensor, Tensor],
        *,
        slots: tuple[int, int],
        at: tuple[int, int, int],
        run: int,
        marked: list[Tensor],
        is_in_use: ctypes.c_int64,
    ) -> None:
        method = _method()
        assert method is not None
        self._kept: list[Any] = [method, is_in_use]
        self._call = call = _Call()
        rows = list(guards)
        array = (_Guard * len(rows))()
        for one, (check, holder, key, wanted) in zip(array, rows, strict=True):
            is_number = check in (Check.SIZE, Check.ADDRESS, Check.NUMBER)
            one.check, one.holder, one.key = check, self._keep(holder), self._keep(key)
            one.wanted = wanted if is_number else self._keep(wanted)
        call.num_guards, call.guards = len(rows), ctypes.addressof(array)
        self._kept.append(array)
        for place, tensor in zip(call.inputs, inputs, strict=True):
            place.type, place.dtype = self._keep(Tensor), self._keep(tensor.dtype)
            place.shape, place.strides = self._keep(tensor.shape), self._keep(tensor.stride())
        call.data_ptr, call.stride = self._keep(Tensor.data_ptr), self._keep(Tensor.stride)
        call.shape_name, call.dtype_name = self._keep("shape"), self._keep("dtype")
        call.is_cpu_name, call.is_true = self._keep("is_cpu"), self._keep(True)
        call.none = self._keep(None)
        call.mark = self._keep(torch.autograd.graph.increment_version)
        call.marked = self._keep(marked)
        call.is_in_use = ctypes.addressof(is_in_use)
        call.batch_slot, call.loss_slot = slots
        call.addresses, call.workspace, call.plan = at
        call.run = run
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p],
        )
        self.function: Callable[[Any, Any], Tensor | None] = new(
            ctypes.addressof(method), ctypes.addressof(call), None
        )

    def _keep(self, value: Any) -> int:
        """Return an object's address; it is kept as long as the call."""
        self._kept.append(value)
        return id(value)

    @property
    def is_empty(self) -> bool:
        """Return whether it has no more tensors for losses to come."""
        return self._call.num_losses == 0

    def refill(self, losses: list[tuple[Tensor, int]]) -> None:
        """Give it tensors for losses to come, with the addresses of their data."""
        tensors, addresses = zip(*losses, strict=True)
        self._losses = list(tensors)
        self._addresses = (ctypes.c_uint64 * len(losses))(*addresses)
        self._call.losses = id(self._losses)
        self._call.loss_addresses = ctypes.addressof(self._addresses)
        self._call.num_losses = len(losses)


def has_quick_calls() -> bool:
    """Return whether this Python can have them, and a C compiler has made their code."""
    return _method() is not None


@functools.cache
def _method() -> _Method | None:
    is_locked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not is_locked():
        return None
    try:
        library = load('#include "quick_call.h"\n', ctypes.PyDLL)
    except (CompilerError, OSError):
        return None
    function = ctypes.cast(library.quick_call, ctypes.c_void_p)
    return _Method(b"quick_call", function.value, _METH_FASTCALL, None)

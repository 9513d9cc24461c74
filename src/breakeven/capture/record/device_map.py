"""Fake CUDA devices: their names in scripts, and the tensors on them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports]

from breakeven.capture.record.modes import without_modes
from breakeven.errors import Caveat
from breakeven.trace import Collective, Location
from breakeven.units import format_bytes

HOST = "cpu"
DEVICE = "cuda:0"

# The CUDA caching allocator allocates multiples of this.
# Source: c10/cuda/CUDACachingAllocator.h, kMinBlockSize.
_BLOCK_BYTES = 512


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

_Memory = torch.Tensor | torch.UntypedStorage


@dataclass(slots=True)
class _Block:
    """One storage; the weak reference keeps the entry alive until the storage dies."""

    reference: weakref.ref[Any]
    number: int
    device: str
    num_bytes: int
    is_pinned: bool = False


class _Here(threading.local):
    is_loading = False


class DeviceMap:
    """The device of every storage.

    A tensor's device is that of its storage, so views, ``detach`` and ``.data`` share it and
    in-place operators keep it. The key is the storage's Python object, which lives as long as the
    memory. Entries vanish with it, so the map also counts live memory.

    Args:
        default: Device of a storage that was never placed: the host; or the GPU, for a script that
            never uses one and is recorded as if moved to it.
    """

    def __init__(self, default: str = HOST) -> None:
        self._default = default
        self._here = _Here()
        self._blocks: dict[int, _Block] = {}
        self._next_number = 0
        self.device_bytes = 0
        self.peak_device_bytes = 0

    @property
    def default(self) -> str:
        """Return the device, in this thread, of a storage that was never placed."""
        return HOST if self._here.is_loading else self._default

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Place tensors created in this thread on the host inside."""
        before, self._here.is_loading = self._here.is_loading, True
        try:
            yield
        finally:
            self._here.is_loading = before

    def device_of(self, tensor: _Memory) -> str:
        """Return ``cpu`` or ``cuda:0``; with more devices, also ``cuda:1`` and so on."""
        block = self._find(tensor)
        return self.default if block is None else block.device

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is on a fake device."""
        return self.device_of(tensor) != HOST

    def first_device(self, arguments: Iterable[Any]) -> str | None:
        """Return the device of the first tensor on one, in ``arguments`` or in a list there."""
        return next(
            (
                self.device_of(item)
                for argument in arguments
                for item in (argument if isinstance(argument, (list, tuple)) else (argument,))
                if isinstance(item, torch.Tensor) and self.is_on_device(item)
            ),
            None,
        )

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether the storage has an entry."""
        return self._find(tensor) is not None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether the storage was pinned."""
        block = self._find(tensor)
        return block is not None and block.is_pinned

    def number_of(self, tensor: torch.Tensor) -> int:
        """Return the number of the tensor's storage; a new storage gets one."""
        return self.place_of(tensor)[1]

    def place_of(self, tensor: torch.Tensor) -> tuple[str, int]:
        """Return the device and the number of the tensor's storage in one look-up."""
        block = self._find(tensor) or self._add(tensor, self.default)
        return (self.default, -1) if block is None else (block.device, block.number)

    def place(self, tensor: _Memory, device: str) -> None:
        """Put the tensor's storage on ``device``."""
        block = self._find(tensor)
        if block is None:
            self._add(tensor, device)
        elif block.device != device:
            self._count(block, -1)
            block.device = device
            self._count(block, 1)

    def pin(self, tensor: torch.Tensor) -> None:
        """Note that the tensor's storage is page-locked host memory."""
        self.number_of(tensor)
        block = self._find(tensor)
        if block is not None:
            block.is_pinned = True

    def start_peak(self) -> None:
        """Restart the peak at the present memory."""
        self.peak_device_bytes = self.device_bytes

    def reserve(self, num_bytes: int) -> None:
        """Count memory that the device's allocator reserves for the pool of a CUDA graph."""
        self.device_bytes += num_bytes
        self.peak_device_bytes = max(self.peak_device_bytes, self.device_bytes)

    def _find(self, tensor: _Memory) -> _Block | None:
        storage = _storage_of(tensor)
        return None if storage is None else self._blocks.get(id(storage))

    def _add(self, tensor: _Memory, device: str) -> _Block | None:
        storage = _storage_of(tensor)
        if storage is None:
            return None
        key = id(storage)

        # The storage must not keep the map alive, nor the reverse.
        own_reference = weakref.ref(self)

        def forget(_: object) -> None:
            owner = own_reference()
            if owner is not None:
                block = owner._blocks.pop(key, None)
                if block is not None:
                    owner._count(block, -1)

        block = _Block(
            reference=weakref.ref(storage, forget),
            number=self._next_number,
            device=device,
            num_bytes=-(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES,
        )
        self._next_number += 1
        self._blocks[key] = block
        self._count(block, 1)
        return block

    def _count(self, block: _Block, sign: int) -> None:
        if block.device != HOST:
            self.device_bytes += sign * block.num_bytes
            self.peak_device_bytes = max(self.peak_device_bytes, self.device_bytes)


def sparse_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the stored values of a sparse tensor; None for a dense one."""
    if tensor.layout is torch.strided:  # the usual case, checked several times per tensor
        return None
    is_compressed = tensor.layout in _COMPRESSED
    if not is_compressed and tensor.layout is not torch.sparse_coo:
        return None
    with without_modes():
        return tensor.detach().values() if is_compressed else tensor._values()


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; for a sparse one, of its values and indices."""
    values = sparse_values(tensor)
    if values is None:
        return tensor.numel() * tensor.element_size()
    num_stored = values.shape[0] if values.dim() else 1
    return values.numel() * values.element_size() + 8 * tensor.sparse_dim() * num_stored


def _storage_of(tensor: _Memory) -> torch.UntypedStorage | None:
    """Return the storage of a tensor; for a sparse one, that of its values."""
    if isinstance(tensor, torch.UntypedStorage):
        return tensor
    values = sparse_values(tensor)
    try:
        return (tensor if values is None else values).untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):
        # Within `torch.func`, a tensor may wrap a whole batch or another level of transforms.
        if is_functorch_wrapped_tensor(tensor):
            return _storage_of(get_unwrapped(tensor))
        # Wrapper subclasses have no storage, nor do uninitialized parameters of lazy modules.
        return None


# Apple's and Intel's GPUs stand for a CUDA device, in a script that names no other.
_GPUS = frozenset(("cuda", "mps", "xpu"))
# Use the original: its stand-in checks in slow Python, at each call that names a device.
_Device = torch.device


def is_cuda(device: Any) -> bool:
    """Return whether ``device`` (a string, ``torch.device`` or index) names a GPU."""
    if isinstance(device, _Device):
        return device.type in _GPUS
    if isinstance(device, str):
        return device.split(":", 1)[0] in _GPUS
    return isinstance(device, int) and not isinstance(device, bool)


class CudaDevices:
    """The CUDA devices that torch sees, and the current one.

    Args:
        num_devices: Number of devices.
        on_other: Called with the index of a device beyond those; the first device then replaces it.
            Without it, such an index is an error.
    """

    def __init__(self, num_devices: int = 1, on_other: Callable[[int], None] | None = None) -> None:
        self.num_devices = num_devices
        self.current = 0
        self._on_other = on_other

    def index_of(self, device: Any) -> int:
        """Return the index of a CUDA device; without an index, that of the current one.

        Raises:
            RuntimeError: The index is beyond the devices.
        """
        index = device if device is None or isinstance(device, int) else torch.device(device).index
        if index is None or index < 0:
            return self.current
        if index >= self.num_devices:
            if self._on_other is None:
                plural = "" if self.num_devices == 1 else "s"
                raise RuntimeError(
                    f"CUDA error: invalid device ordinal: cuda:{index} of {self.num_devices} "
                    f"device{plural}"
                )
            self._on_other(index)
            return 0
        return index

    def name_of(self, device: Any) -> str:
        """Return ``cuda:0`` for any name of the first CUDA device, and so on."""
        return f"cuda:{self.index_of(device)}"

    def as_device(self, device: Any) -> torch.device:
        """Return a CUDA device with its index, and any other device unchanged."""
        if is_cuda(device):
            return torch.device("cuda", self.index_of(device))
        return torch.device(device)


class OneGpu:
    """Notes the script's use of other GPUs and other processes."""

    def __init__(self) -> None:
        # In the order of display.
        self._messages = dict.fromkeys(("one-device", "second-device", "one-process"), "")
        self.num_processes = 0  # of the group that the script joins

    def note_split(self) -> None:
        """Note that ``nn.DataParallel`` receives several devices, but uses one."""
        self._messages["one-device"] = (
            "nn.DataParallel splits batches over several GPUs; this is the step on one of them"
        )

    def note_processes(self, num_processes: int) -> None:
        """Note that the script joins this number of processes."""
        self.num_processes = num_processes

    def note_exchanges(self, exchanges: Sequence[Collective]) -> None:
        """Note what one process of the script exchanges with the others in a step."""
        sizes: dict[str, int] = {}
        for each in exchanges:
            kind = "all_reduce of gradients" if each.is_bucket else each.kind
            sizes[kind] = sizes.get(kind, 0) + each.num_bytes
        what = ", ".join(f"{format_bytes(size)} by {kind}" for kind, size in sizes.items())
        what = f" ({what} in each step)" if what else ""
        if self.num_processes > 1:
            self._messages["one-process"] = (
                f"the script is one of {self.num_processes} processes; this is the step of its one "
                f"GPU, without the communication between processes{what}, which "
                f"`breakeven sweep --over num_devices={self.num_processes}` adds"
            )
        elif what:
            self._messages["one-process"] = (
                "the script joins a process group, here of one process; several also "
                f"communicate{what}, which `breakeven sweep --over num_devices=1,2,4,8` adds"
            )

    def note_second(self, index: int, location: Location | None) -> None:
        """Note that the script uses a device beyond the first; keep only the first such line."""
        where = f" ({location.place})" if location else ""
        self._messages["second-device"] = self._messages["second-device"] or (
            f"the script uses cuda:{index}{where}; the prediction puts all of its tensors and "
            "work on one GPU"
        )

    def caveats(self) -> list[Caveat]:
        """Return the limits of an answer for one GPU."""
        return [Caveat(code=code, message=text) for code, text in self._messages.items() if text]

"""How scripts name CUDA devices, and which of them are pretended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from breakeven.errors import Caveat
from breakeven.trace import Location

# Those of Apple and Intel stand for a CUDA device, in a script that names no other.
_GPUS = frozenset(("cuda", "mps", "xpu"))


def is_cuda(device: Any) -> bool:
    """Return whether ``device`` (a string, ``torch.device`` or index) means a GPU."""
    if isinstance(device, torch.device):
        return device.type in _GPUS
    if isinstance(device, str):
        return device.split(":", 1)[0] in _GPUS
    return isinstance(device, int) and not isinstance(device, bool)


class CudaDevices:
    """The CUDA devices that torch is told of, and which of them is current.

    Args:
        num_devices: How many there are.
        on_other: Called with the index of a device beyond those, which the first then stands for;
            without it there is none.
    """

    def __init__(self, num_devices: int = 1, on_other: Callable[[int], None] | None = None) -> None:
        self.num_devices = num_devices
        self.current = 0
        self._on_other = on_other

    def index_of(self, device: Any) -> int:
        """Return the index of a CUDA device; the current one's where none is said.

        Raises:
            RuntimeError: It is beyond the devices.
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
        """Return ``cuda:0`` for whatever means the first CUDA device, and so on."""
        return f"cuda:{self.index_of(device)}"

    def as_device(self, device: Any) -> torch.device:
        """Return a CUDA device with its index, and any other as it is."""
        if is_cuda(device):
            return torch.device("cuda", self.index_of(device))
        return torch.device(device)


_SPLITS = Caveat(
    code="one-device",
    message="nn.DataParallel splits the batches over several GPUs; measured and predicted on one",
)


class OneGpu:
    """Notes what the script says of other GPUs and other processes."""

    def __init__(self) -> None:
        # `nn.DataParallel` was given several devices, of which it got one.
        self.splits_batches = False
        self.num_processes = 1
        self._second: tuple[int, Location | None] | None = None

    def note_split(self) -> None:
        """Note that ``nn.DataParallel`` is given several devices."""
        self.splits_batches = True

    def note_processes(self, num_processes: int) -> None:
        """Note that the script joins so many processes."""
        self.num_processes = num_processes

    def note_second(self, index: int, location: Location | None) -> None:
        """Note that the script uses a device beyond the first; its first line counts."""
        self._second = self._second or (index, location)

    def caveats(self) -> list[Caveat]:
        """Return what an answer for one GPU leaves out."""
        found = [_SPLITS] if self.splits_batches else []
        if self._second is not None:
            index, location = self._second
            where = f" ({location.file}:{location.line})" if location else ""
            found.append(
                Caveat(
                    code="second-device",
                    message=f"the script uses cuda:{index}{where}; one GPU is predicted that holds "
                    "all of it and does all of its work",
                )
            )
        if self.num_processes > 1:
            found.append(
                Caveat(
                    code="one-process",
                    message=f"the script is one of {self.num_processes} processes; the step of its "
                    "one GPU is measured and predicted, without the exchange between them, which "
                    f"`breakeven sweep --over num_devices={self.num_processes}` adds",
                )
            )
        return found

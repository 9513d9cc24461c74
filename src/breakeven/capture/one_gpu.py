"""What a script meant for several GPUs, and is answered for one."""

from __future__ import annotations

from breakeven.errors import Caveat
from breakeven.trace import Location

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

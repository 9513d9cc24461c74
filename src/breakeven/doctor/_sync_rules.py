"""Rules about the host waiting for the device."""

from __future__ import annotations

from typing import ClassVar, final

from breakeven.doctor._rule import Case, Occurrence, by_line, times_per_step
from breakeven.simulate import Edit
from breakeven.trace import Sync

_EXPLICIT = frozenset({"synchronize", "empty_cache"})
_READS_OF_TENSORS = frozenset({"cpu", "tolist", "numpy", "copy_"})
_SIZES = frozenset({"nonzero", "mask", "unique", "repeat_interleave", "bincount"})


@final
class HostReadsValue:
    """SYNC001: the host reads a value from the device in every step.

    What it does:
        Finds lines that turn one element of a device tensor into a Python number or text:
        ``loss.item()``, ``float(loss)``, ``if loss > 1``, ``print(loss)``, a progress bar that
        shows the loss, the check for errors of ``torch.linalg``.

    Why it costs time:
        The host issues work ahead of the device. To know a value it must wait until the device has
        computed it; the launch queue runs empty, and the device then idles until the host has
        issued the next kernel.

    Evidence:
        Training loops gained between 4 % and a factor of 2 when such reads were removed. At most
        the smaller of host time and device time per step can be gained, since other waits may take
        over; the gain shown comes from simulating the step without the read.

    Fix:
        Add up on the device (``total += loss.detach()``) and read every hundredth step.

    Known limits:
        The wait that ``GradScaler`` needs to skip a step is reported too, and has to stay. A read
        that happens only every n-th step counts fully if the traced step is such a step.
    """

    code: ClassVar[str] = "SYNC001"
    cause: ClassVar[str] = "SYNC_ITEM"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that reads."""
        kinds = {sync.kind for sync in case.trace.syncs}
        return _waits(
            case,
            # Every other wait is for a value: a number, a truth, an error flag of linalg.
            kinds - _EXPLICIT - _READS_OF_TENSORS - _SIZES,
            title="the host reads a value from the GPU {often}",
            fix="keep the value on the GPU (total += loss.detach()) and read it every n-th step",
        )


@final
class ExplicitSync:
    """SYNC002: the script waits for the device explicitly in every step.

    What it does:
        Finds ``torch.cuda.synchronize()`` and ``torch.cuda.empty_cache()`` within the step.

    Why it costs time:
        Both wait until the device is idle. ``empty_cache`` also gives memory back that the next
        step asks for again.

    Evidence:
        Loops gained 10 to 30 % when the calls were removed.

    Fix:
        Remove them. They are needed around a clock only; measure with events there.

    Known limits:
        What allocating the memory again costs after ``empty_cache`` is not part of the gain shown.
    """

    code: ClassVar[str] = "SYNC002"
    cause: ClassVar[str] = "SYNC_EXPLICIT"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that waits."""
        return _waits(
            case,
            _EXPLICIT,
            title="the script waits for the GPU explicitly {often}",
            fix="remove torch.cuda.synchronize() and empty_cache() from the loop",
        )


@final
class SizeFromValues:
    """SYNC003: the size of a result depends on values.

    What it does:
        Finds ``nonzero``, ``x[mask]``, ``masked_select``, ``unique``, ``torch.where(mask)`` and
        other operators whose result is as large as the data says.

    Why it costs time:
        To allocate the result the host must know its size, so it waits for the device to count.

    Evidence:
        Losses with boolean masks gained 5 to 20 % of the step, some 3 ms, when rewritten; one
        large training code removed 104 of 142 waits per iteration in this way.

    Fix:
        Keep sizes fixed: ``torch.where(mask, x, 0)``, weights of 0, ``ignore_index``, a top-k of
        fixed size.

    Known limits:
        The gain shown is that of the wait alone; the rewritten operators may do more or less work.
    """

    code: ClassVar[str] = "SYNC003"
    cause: ClassVar[str] = "SYNC_SHAPE"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that waits."""
        return _waits(
            case,
            _SIZES,
            title="the size of a result depends on values, so the host waits for the GPU {often}",
            fix="keep sizes fixed: torch.where, weights of 0, ignore_index instead of a mask",
        )


@final
class HostReadsTensor:
    """SYNC004: the host reads whole tensors from the device in every step.

    What it does:
        Finds ``.cpu()``, ``.tolist()`` and copies into host tensors within the step, as metrics
        and logging make them.

    Why it costs time:
        The host waits until the device has computed the tensor, and then for the copy.

    Evidence:
        Metrics that moved predictions to NumPy in each step took a fifth of the training time in
        public reports.

    Fix:
        Count on the device and read once per epoch; log every n-th step.

    Known limits:
        Where the tensor is needed on the host to go on (SciPy in the loss), the read has to stay.
    """

    code: ClassVar[str] = "SYNC004"
    cause: ClassVar[str] = "SYNC_METRICS"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that reads."""
        return _waits(
            case,
            _READS_OF_TENSORS,
            title="the host reads a tensor from the GPU {often}",
            fix="compute metrics on the GPU and read them once per epoch",
        )


def _waits(
    case: Case, kinds: frozenset[str] | set[str], *, title: str, fix: str
) -> tuple[Occurrence, ...]:
    """Return one occurrence for each line with a sync of these kinds."""
    found = [
        index
        for index, event in enumerate(case.trace.events)
        if isinstance(event, Sync) and event.kind in kinds
    ]
    return tuple(
        Occurrence(
            title=title.format(often=times_per_step(len(events))),
            fix=fix,
            location=location,
            events=events,
            edit=Edit(replaced=dict.fromkeys(events, ())),
        )
        for location, events in by_line(case.trace, found)
    )

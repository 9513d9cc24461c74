"""Rules about the host waiting for the device: values, tensors, sizes, and waits on purpose."""

from __future__ import annotations

from typing import ClassVar, final

from breakeven.doctor.rule import Case, Occurrence, Rule, by_line, times_per_step
from breakeven.doctor.source import is_constant, keyword
from breakeven.doctor.sync_owner import Wait, waits_of
from breakeven.simulate import Edit
from breakeven.trace import HostWork, Sync
from breakeven.units import format_bytes, format_duration


@final
class HostReadsValue:
    """SYNC001: the host reads a value from the device in every step.

    What it does:
        Finds lines that turn one element of a device tensor into a Python number or text:
        ``loss.item()``, ``float(loss)``, ``print(loss)``, a progress bar that shows the loss, the
        check for errors of ``torch.linalg``.

    Why it costs time:
        The host issues work ahead of the device. To know a value it must wait until the device has
        computed it; the launch queue runs empty, and the device then idles until the host has
        issued the next kernel.

    Evidence:
        In public reports training loops gained between 4 % and a factor of 2 when such reads were
        removed. At most the smaller of host time and device time per step can be gained, since
        other waits may take over; the gain shown comes from simulating the step without the read.

    Fix:
        Add up on the device and read every hundredth step.

        ```python
        running += loss.item()
        ```

        ```python
        running += loss.detach()
        if step % 100 == 0:
            print(running.item() / 100)
        ```

    Known limits:
        Not reported are waits that have to stay: of ``GradScaler``, of an optimizer or another
        library for reasons of its own, and of a value that a simulator is given. A read that
        happens only every n-th step counts fully if the traced step is such a step.
    """

    code: ClassVar[str] = "SYNC001"
    cause: ClassVar[str] = "SYNC_ITEM"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that reads."""
        found = waits_of(case, Wait.VALUE)
        checks = [index for index in found if _kind(case, index) == "linalg"]
        reads = [index for index in found if index not in checks]
        return (
            *_shown_by_lightning(case),
            *occurrences(
                case,
                reads,
                title="the host reads a value from the GPU {often}",
                fix="keep the value on the GPU (total += loss.detach()) and read it every n-th "
                "step",
            ),
            *occurrences(
                case,
                checks,
                title="torch.linalg reads back {often} whether there was an error",
                fix="the variant that does not check: torch.linalg.cholesky_ex, inv_ex, solve_ex",
            ),
        )


@final
class ExplicitSync:
    """SYNC002: the script waits for the device, or collects garbage, in every step.

    What it does:
        Finds ``torch.cuda.synchronize()``, ``torch.cuda.empty_cache()`` and ``gc.collect()``
        within the step.

    Why it costs time:
        The first two wait until the device is idle. ``empty_cache`` also gives memory back that the
        next step asks for again. A collection looks at every object of torch and of the script
        while nothing is issued.

    Evidence:
        In public reports loops gained 10 to 30 % when the calls were removed; one collection takes
        35 to 100 ms once torch is imported.

    Fix:
        Remove them: the allocator reuses memory by itself, and memory that runs out is not helped
        by them. They are needed around a clock only.

        ```python
        for batch in loader:
            train_step(batch)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            gc.collect()
        ```

        ```python
        for batch in loader:
            train_step(batch)
        ```

    Known limits:
        What allocating the memory again costs after ``empty_cache`` is not part of the gain shown.
        A wait beside the reading of a clock is taken as meant.
    """

    code: ClassVar[str] = "SYNC002"
    cause: ClassVar[str] = "SYNC_EXPLICIT"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that waits."""
        collections = [
            index
            for index, event in enumerate(case.trace.events)
            if isinstance(event, HostWork) and event.kind == "gc"
        ]
        return (
            *occurrences(
                case,
                waits_of(case, Wait.EXPLICIT),
                title="the script waits for the GPU explicitly {often}",
                fix="remove torch.cuda.synchronize() and empty_cache() from the loop",
            ),
            *occurrences(
                case,
                collections,
                title="the script collects garbage {often}",
                fix="remove gc.collect() from the loop, or call it once per epoch",
            ),
        )


@final
class SizeFromValues:
    """SYNC003: the size of a result depends on values.

    What it does:
        Finds ``nonzero``, ``x[mask]``, ``masked_select``, ``unique``, ``torch.where(mask)``,
        ``repeat_interleave`` by a tensor, ``one_hot`` without a number of classes, and other
        operators whose result is as large as the data says. The backward pass of ``x[mask]``
        counts again and is part of the same finding.

    Why it costs time:
        To allocate the result the host must know its size, so it waits for the device to count.

    Evidence:
        In public reports losses with boolean masks gained 5 to 20 % of the step, some 3 ms, when
        rewritten; one large training code removed 104 of 142 waits per iteration in this way.

    Fix:
        Keep sizes fixed: ``torch.where``, weights of 0, ``ignore_index``, a top-k of fixed size,
        ``one_hot(x, num_classes)``, ``repeat_interleave(..., output_size=n)``.

        ```python
        loss = F.cross_entropy(logits[mask], labels[mask])
        ```

        ```python
        loss = F.cross_entropy(logits, torch.where(mask, labels, -100), ignore_index=-100)
        ```

    Known limits:
        The gain shown is that of the wait alone; the rewritten operators may do more or less work.
    """

    code: ClassVar[str] = "SYNC003"
    cause: ClassVar[str] = "SYNC_SHAPE"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that waits."""
        return occurrences(
            case,
            waits_of(case, Wait.SIZE),
            title="the size of a result depends on values, so the host waits for the GPU {often}",
            fix="keep sizes fixed: torch.where, weights of 0, ignore_index instead of a mask",
        )


@final
class HostReadsTensor:
    """SYNC004: the host reads whole tensors from the device in every step.

    What it does:
        Finds ``.cpu()``, ``.numpy()``, ``.tolist()`` and copies into host tensors within the step,
        as metrics make them, and the reads of metrics libraries.

    Why it costs time:
        The host waits until the device has computed the tensor, and then for the copy.

    Evidence:
        Metrics that moved predictions to NumPy in each step took a fifth of the training time in
        public reports.

    Fix:
        Count on the device and read once per epoch.

        ```python
        hits += (logits.argmax(1).cpu().numpy() == labels.cpu().numpy()).sum()
        ```

        ```python
        hits += (logits.argmax(1) == labels).sum()  # a tensor; hits.item() after the epoch
        ```

    Known limits:
        What the metrics compute on the host afterwards is not part of the gain shown.
    """

    code: ClassVar[str] = "SYNC004"
    cause: ClassVar[str] = "SYNC_METRICS"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that reads."""
        return occurrences(
            case,
            waits_of(case, Wait.TENSOR),
            title="the host reads a tensor from the GPU {often}",
            fix="compute metrics on the GPU and read them once per epoch",
        )


def occurrences(case: Case, found: list[int], *, title: str, fix: str) -> tuple[Occurrence, ...]:
    """Return one occurrence for each line, whose fix is that these events are gone.

    Args:
        case: The step.
        found: Positions of syncs and of work of the host.
        title: One line, with ``{often}`` where it says how often.
        fix: What to change.
    """
    return tuple(
        Occurrence(
            title=title.format(often=times_per_step(len(events))),
            fix=fix,
            evidence=seen(case, events),
            location=location,
            events=events,
            edit=Edit(replaced=dict.fromkeys(events, ())),
        )
        for location, events in by_line(case.trace, found)
    )


def seen(case: Case, events: tuple[int, ...]) -> str:
    """Return in words what the step shows: kinds of waits, bytes, and who reads."""
    members = [case.trace.events[index] for index in events]
    syncs = [event for event in members if isinstance(event, Sync)]
    others = [event for event in members if isinstance(event, HostWork)]
    kinds = ", ".join(dict.fromkeys(sync.kind for sync in syncs))
    num_bytes = sum(sync.num_bytes for sync in syncs)
    via = ", ".join(dict.fromkeys(sync.via for sync in syncs if sync.via))
    parts: list[str] = []
    if syncs:
        parts.append(f"{len(syncs)} wait{'s' * (len(syncs) > 1)} in the recorded step ({kinds})")
    if num_bytes:
        parts.append(f"{format_bytes(num_bytes)} read back")
    if via:
        parts.append(f"within {via}")
    if others:
        total_ns = sum(work.duration_ns for work in others)
        parts.append(f"{format_duration(total_ns, 2)} of the host in the recorded step")
    return ", ".join(parts)


def _shown_by_lightning(case: Case) -> tuple[Occurrence, ...]:
    """Return one occurrence for each line that has Lightning's progress bar show a value.

    Lightning reads the values in the order in which they are logged, from its own loop.
    """
    reads = waits_of(case, Wait.LOGGED)
    lines = [
        source.location(call)
        for source in case.sources
        for call in source.calls("self.log", "self.log_dict")
        if is_constant(keyword(call, "prog_bar"), True)
    ]
    found: list[Occurrence] = []
    for position, location in enumerate(lines):
        events = tuple(reads[position :: len(lines)])
        if events:
            found.append(
                Occurrence(
                    title="the progress bar of Lightning reads a value from the GPU "
                    f"{times_per_step(len(events))}",
                    fix="prog_bar=False, or TQDMProgressBar(refresh_rate=50)",
                    evidence=seen(case, events),
                    location=location,
                    events=events,
                    edit=Edit(replaced=dict.fromkeys(events, ())),
                )
            )
    return tuple(found)


def _kind(case: Case, index: int) -> str:
    event = case.trace.events[index]
    return event.kind if isinstance(event, Sync) else ""


SYNC_RULES: tuple[Rule, ...] = (
    HostReadsValue(),
    ExplicitSync(),
    SizeFromValues(),
    HostReadsTensor(),
)

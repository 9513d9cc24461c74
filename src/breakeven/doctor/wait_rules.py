"""Rules about waits that have a fix of their own: branches, norms, libraries, logs, round trips."""

from __future__ import annotations

from typing import ClassVar, final

from breakeven.doctor.rule import Case, Occurrence, Rule, by_line, times_per_step
from breakeven.doctor.source import Source, dotted_name
from breakeven.doctor.sync_origin import Origins
from breakeven.doctor.sync_owner import Wait, waits_of
from breakeven.doctor.sync_round_trip import round_trips
from breakeven.doctor.sync_rules import occurrences, seen
from breakeven.simulate import Edit
from breakeven.trace import HostWork, Location, Op


@final
class BranchOnValue:
    """SYNC005: Python branches on a value of the device in every step.

    What it does:
        Finds lines that ask for the truth of a device tensor: ``if torch.isnan(loss)``,
        ``if mask.any()``, ``while error > tolerance``, ``assert (x >= 0).all()``.

    Why it costs time:
        Python has to know the answer to go on, so the host waits until the device has computed it
        and issues nothing in the meantime.

    Evidence:
        One large training code removed 104 of 142 waits per iteration in public reports, most of
        them such tests.

    Fix:
        Let the device decide, or test every hundredth step.

        ```python
        if torch.isnan(loss).any():
            continue
        ```

        ```python
        loss = torch.where(torch.isnan(loss), torch.zeros_like(loss), loss)
        ```

    Known limits:
        A solver that iterates until it has converged needs its test; test every few iterations.
        The gain shown is that of the wait alone.
    """

    code: ClassVar[str] = "SYNC005"
    cause: ClassVar[str] = "SYNC_BRANCH"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that branches."""
        return occurrences(
            case,
            waits_of(case, Wait.TRUTH),
            title="Python branches on a value of the GPU {often}",
            fix="decide on the GPU with torch.where, or test every n-th step",
        )


@final
class NormByNorm:
    """SYNC006: norms are read back parameter by parameter.

    What it does:
        Finds lines that read the norm of one parameter or gradient after another:
        ``total += p.grad.norm().item() ** 2``; and the test for infinite norms of
        ``clip_grad_norm_(..., error_if_nonfinite=True)``.

    Why it costs time:
        One wait for each parameter: the host and the device take turns, tensor by tensor.

    Evidence:
        In public reports clipping 1,000 tensors took 9.8 ms with a wait for each, and 2.2 ms
        without.

    Fix:
        ``torch.nn.utils.clip_grad_norm_`` computes all norms in a few launches and returns the
        total as a tensor; read that every n-th step.

        ```python
        total = sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5
        ```

        ```python
        grads = [p.grad for p in model.parameters()]
        total = torch.nn.utils.get_total_norm(grads)
        ```

    Known limits:
        The gain shown is that of the waits alone; the norms in one call save launches besides.
    """

    code: ClassVar[str] = "SYNC006"
    cause: ClassVar[str] = "SYNC_CLIP"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that reads."""
        return occurrences(
            case,
            waits_of(case, Wait.NORMS),
            title="the host reads norms of parameters or gradients {often}",
            fix="torch.nn.utils.clip_grad_norm_ or get_total_norm, and read the total every n-th "
            "step",
        )


@final
class ValidatedDistribution:
    """SYNC007: ``torch.distributions`` checks its arguments on the device.

    What it does:
        Finds waits within ``torch.distributions``: its classes test that every parameter and every
        value is valid, which is on by default.

    Why it costs time:
        Each test is a few launches and a wait for their result.

    Evidence:
        Libraries for reinforcement learning turn the tests off for speed; in public reports one
        assigned to the switch instead of calling it, and kept paying for years.

    Fix:
        Turn the tests off for one distribution, or for all of them, once the code is known to be
        right.

        ```python
        dist = Categorical(logits=policy(obs))
        ```

        ```python
        dist = Categorical(logits=policy(obs), validate_args=False)
        # or once: torch.distributions.Distribution.set_default_validate_args(False)
        ```

    Known limits:
        The gain shown is that of the waits alone; the operators of the tests go away too. Waits of
        methods are told at the line that makes the distribution, where the step shows one.
    """

    code: ClassVar[str] = "SYNC007"
    cause: ClassVar[str] = "SYNC_DIST"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that makes distributions."""
        found = by_line(case.trace, waits_of(case, Wait.DISTRIBUTION))
        makers = [location for location, _ in found if _makes_distribution(case, location)]
        grouped: dict[tuple[str, int] | None, tuple[Location | None, list[int]]] = {}
        for location, events in found:
            if makers and location not in makers:
                location = _last_before(case, makers, events[0])
            key = (location.file, location.line) if location else None
            grouped.setdefault(key, (location, []))[1].extend(events)
        return tuple(
            Occurrence(
                title="torch.distributions checks its arguments on the GPU, and the host waits "
                f"{times_per_step(len(events))}",
                fix="validate_args=False, or Distribution.set_default_validate_args(False) once",
                evidence=seen(case, tuple(events)),
                location=location,
                events=tuple(sorted(events)),
                edit=Edit(replaced=dict.fromkeys(events, ())),
            )
            for location, events in grouped.values()
        )


@final
class HeavyLog:
    """SYNC008: weights, gradients or images are logged in every step.

    What it does:
        Finds lines that read one parameter or gradient after another to the host, calls of
        ``add_histogram`` and its kin within the step, and whole tensors that are read to be
        written to a file or drawn: ``np.save``, ``save_image``, ``plt.imshow``.

    Why it costs time:
        Each read is a wait and a copy, and the histogram is computed on the host.

    Evidence:
        Between 10 % of the step and ten times the step in public reports.

    Fix:
        Log every n-th step.

        ```python
        for name, p in model.named_parameters():
            writer.add_histogram(name, p.detach().cpu(), step)
        ```

        ```python
        if step % 500 == 0:
            for name, p in model.named_parameters():
                writer.add_histogram(name, p.detach().cpu(), step)
        ```

    Known limits:
        Writing to the disk later is not part of the gain shown.
    """

    code: ClassVar[str] = "SYNC008"
    cause: ClassVar[str] = "LOG_HEAVY"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that logs."""
        logged = [
            index
            for index, event in enumerate(case.trace.events)
            if isinstance(event, HostWork) and event.kind == "log"
        ]
        return occurrences(
            case,
            sorted((*waits_of(case, Wait.LOG, Wait.SAVED), *logged)),
            title="weights, gradients or images are logged {often}",
            fix="log them every n-th step",
        )


@final
class RoundTrip:
    """SYNC009: a tensor goes to the host and comes back changed, within the forward pass.

    What it does:
        Finds reads of whole tensors in model or loss that are followed, before the backward pass,
        by a copy to the device of something younger: SciPy, NumPy, a Hungarian matcher or OpenCV
        in between.

    Why it costs time:
        The host waits for the device, computes while the device idles, and waits again for the
        copy back.

    Evidence:
        In public reports a loss block with some 200 such waits went from 434 to 13 ms when it was
        rewritten.

    Fix:
        Do it in torch on the device; where that cannot be, for the whole batch with one copy each
        way.

        ```python
        smooth = np.stack([np.convolve(row, kernel, "same") for row in x.cpu().numpy()])
        smooth = torch.from_numpy(smooth).to(x.device)
        ```

        ```python
        smooth = F.conv1d(x[:, None], kernel[None, None], padding="same")[:, 0]
        ```

    Known limits:
        The gain shown assumes that waits, copies and the host's work between them are gone; what
        the device computes instead is not counted. A read that a simulator is given is not told.
    """

    code: ClassVar[str] = "SYNC009"
    cause: ClassVar[str] = "CPU_ROUNDTRIP"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that reads."""
        found = round_trips(case, Origins(case.trace))
        result: list[Occurrence] = []
        for location, reads in by_line(case.trace, list(found)):
            copies = sorted({copy for read in reads for copy in found[read]})
            between = [
                index for index in range(min(reads), copies[-1]) if _is_host_work(case, index)
            ]
            events = tuple(sorted({*reads, *copies, *between}))
            result.append(
                Occurrence(
                    title="a tensor goes to the host and what comes of it back to the GPU "
                    f"{times_per_step(len(reads))}",
                    fix="do it in torch on the GPU, or for the whole batch with one copy each way",
                    evidence=f"{seen(case, reads)}, then {len(copies)} "
                    f"cop{'y' if len(copies) == 1 else 'ies'} of younger memory to the GPU before "
                    "the backward pass",
                    location=location,
                    events=events,
                    edit=Edit(replaced=dict.fromkeys(events, ())),
                )
            )
        return tuple(result)


@final
class ComparedMask:
    """SYNC010: a transformer compares its mask with the causal one.

    What it does:
        Finds the test by which ``nn.Transformer`` and ``nn.TransformerEncoder`` find out whether
        the mask that they are given is the causal one.

    Why it costs time:
        With ``is_causal`` left at None they build a causal mask, compare, and wait for the result:
        a wait and three operators per forward pass that nobody wrote.

    Evidence:
        The source of ``torch.nn.modules.transformer``: ``bool((mask == causal).all())``.

    Fix:
        Say what the mask is.

        ```python
        out = encoder(x, mask=mask)
        ```

        ```python
        out = encoder(x, mask=mask, is_causal=True)
        ```

    Known limits:
        The gain shown is that of the wait alone. ``is_causal=False`` for any other mask.
    """

    code: ClassVar[str] = "SYNC010"
    cause: ClassVar[str] = "SYNC_BRANCH"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that calls a transformer."""
        return occurrences(
            case,
            waits_of(case, Wait.CAUSAL_MASK),
            title="a transformer compares its mask with the causal one {often}",
            fix="pass is_causal=True with a causal mask, is_causal=False with any other",
        )


def _makes_distribution(case: Case, location: Location | None) -> bool:
    """Return whether the line calls a class, by its name: ``Normal(...)``."""
    return case.sources.is_at(location, _calls_class)


def _calls_class(source: Source, line: int) -> bool:
    names = (dotted_name(call.func).rpartition(".")[2] for call in source.calls_on(line))
    return any(name[:1].isupper() for name in names)


def _last_before(case: Case, makers: list[Location | None], event: int) -> Location | None:
    """Return the line that last made a distribution before a position in the step."""
    lines = {(maker.file, maker.line): maker for maker in makers if maker is not None}
    for earlier in reversed(case.trace.events[: event + 1]):
        location = earlier.location
        if location is not None and (location.file, location.line) in lines:
            return lines[location.file, location.line]
    return makers[0]


def _is_host_work(case: Case, index: int) -> bool:
    event = case.trace.events[index]
    if isinstance(event, HostWork):
        return event.kind == "script"
    return isinstance(event, Op) and event.is_on_host


WAIT_RULES: tuple[Rule, ...] = (
    BranchOnValue(),
    NormByNorm(),
    ValidatedDistribution(),
    HeavyLog(),
    RoundTrip(),
    ComparedMask(),
)

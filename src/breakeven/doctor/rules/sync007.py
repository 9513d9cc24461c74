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
    methods are reported at the line that makes the distribution, where the step shows one.
"""

from __future__ import annotations

from breakeven.doctor.events import line_of
from breakeven.doctor.rule import Case, Found, by_line
from breakeven.doctor.waits import Wait, waiting_at, waits_of
from breakeven.source import SourceFile, dotted_name
from breakeven.trace import Location

CAUSE = "SYNC_DIST"


def detect(case: Case) -> Found:
    found = by_line(case.trace, waits_of(case, Wait.DISTRIBUTION))
    makers = [
        location for location, _ in found if case.sources.is_at(location, _makes_distribution)
    ]
    grouped: dict[tuple[str, int] | None, tuple[Location | None, list[int]]] = {}
    for location, events in found:
        if makers and location not in makers:
            location = _last_before(case, makers, events[0])
        grouped.setdefault(line_of(location), (location, []))[1].extend(events)
    for location, events in grouped.values():
        yield waiting_at(
            case,
            location,
            events,
            title="torch.distributions checks its arguments on the GPU, and the host waits {often}",
            fix="validate_args=False, or Distribution.set_default_validate_args(False) once",
        )


def _makes_distribution(source: SourceFile, line: int) -> bool:
    """Return whether the line calls a class, by its name: ``Normal(...)``."""
    names = (dotted_name(call.func).rpartition(".")[2] for call in source.calls_on(line))
    return any(name[:1].isupper() for name in names)


def _last_before(case: Case, makers: list[Location | None], event: int) -> Location | None:
    """Return the line that last made a distribution before a position in the step."""
    lines = {line_of(maker): maker for maker in makers}
    earlier = (line_of(case.trace.events[index]) for index in range(event, -1, -1))
    return next((lines[line] for line in earlier if line and line in lines), makers[0])

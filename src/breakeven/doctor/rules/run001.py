"""RUN001: autograd looks for invalid values after every operator of the backward pass.

What it does:
    Finds ``set_detect_anomaly(True)``, ``detect_anomaly()``, a trainer's ``detect_anomaly``
    and autograd's profiler left on around the training step.

Why it costs time:
    After each node of the backward pass the host launches two more kernels and waits for
    their answer, and in the forward pass it keeps a Python stack for each operator.

Evidence:
    1.5 to 3 times faster training without it in public reports: 1.5 hours to 36 minutes, 6 to
    9 steps per second.

Fix:
    Switch it on to look for a fault, and off again.

    ```python
    torch.autograd.set_detect_anomaly(True)
    ```

    ```python
    torch.autograd.set_detect_anomaly(args.debug)
    ```

Known limits:
    The gain shown is that of the checks in the backward pass; keeping stacks in the forward
    pass costs more on top. What a profiler costs is not simulated.
"""

from __future__ import annotations

import ast
import re

from breakeven.doctor.rule import Case, Found, Occurrence, without
from breakeven.doctor.source_lines import recorded_calls
from breakeven.source import SourceFile, dotted_name, is_constant, keyword
from breakeven.trace import Location, Op, Phase, Sync

CAUSE = "ANOMALY"

_ANOMALY_CALLS = ("set_detect_anomaly", "detect_anomaly")

# What autograd runs on every gradient to look for values that are not numbers.
_ANOMALY_OPS = re.compile(r"^aten\.(isnan|_is_any_true)\.")


def detect(case: Case) -> Found:
    if case.facts.is_anomaly_checked:
        checks = _anomaly_events(case)
        yield Occurrence(
            title="autograd looks for invalid values in every backward pass",
            fix="remove set_detect_anomaly(True); switch it on to look for a fault only",
            evidence=f"anomaly detection is on; {len(checks)} operators and waits of the "
            "step are its own",
            location=_anomaly_location(case),
            events=checks,
            edit=without(checks) if checks else None,
        )
    for source, block in case.sources.nodes(ast.With):
        for call in (item.context_expr for item in block.items):
            if isinstance(call, ast.Call) and _is_profiler(call) and _runs(case, source, block):
                yield Occurrence(
                    title="a profiler of autograd records the training steps",
                    fix="remove the profiler; torch.profiler with a schedule records a few steps "
                    "only",
                    evidence=f"{dotted_name(call.func)}() around the training step",
                    location=source.location(call),
                )


def _anomaly_events(case: Case) -> tuple[int, ...]:
    """Return the checks of the backward pass: two operators, and the wait for their answer."""
    answers: set[int] = set()
    found: list[int] = []
    for index, event in enumerate(case.trace.events):
        if isinstance(event, Op) and _is_check(event):
            found.append(index)
            answers.update(output.storage for output in event.outputs if output.storage >= 0)
        elif isinstance(event, Sync) and (event.storage in answers or found[-1:] == [index - 1]):
            found.append(index)
    return tuple(found)


def _is_check(op: Op) -> bool:
    return op.phase is Phase.BACKWARD and _ANOMALY_OPS.match(op.name) is not None


def _anomaly_location(case: Case) -> Location | None:
    seen = [call for call in recorded_calls(case, *_ANOMALY_CALLS) if call.argument != "False"]
    location = seen[0].location if seen else None
    for source in case.sources:
        for call in source.calls("Trainer"):
            value = keyword(call, "detect_anomaly")
            if value is not None and is_constant(value, True):
                return source.location(value)
        if location is None:
            for call in source.calls(*_ANOMALY_CALLS):
                if not (call.args and is_constant(call.args[0], False)):
                    return source.location(call)
    return location


def _is_profiler(call: ast.Call) -> bool:
    name = dotted_name(call.func)
    if any(is_constant(value, False) for value in (keyword(call, "enabled"), *call.args[:1])):
        return False
    return name.endswith("autograd.profiler.profile") or name.rpartition(".")[2] == "emit_nvtx"


def _runs(case: Case, source: SourceFile, block: ast.With) -> bool:
    """Return whether events of the step come from lines within a profiler's block."""
    end = block.end_lineno or block.lineno
    own = (event.location for event in case.trace.events if event.location)
    return any(
        location.file == source.path and block.lineno < location.line <= end
        for stack in (*case.trace.stacks, own)
        for location in stack
    )

"""RUN006: ``torch.compile`` meets changing shapes.

What it does:
    Finds a call of ``torch.compile`` without ``dynamic=True`` whose steps had three different
    input shapes or more.

Why it costs time:
    Compiled code is for the shapes that it was compiled for. Others are compiled anew, tens of
    seconds each, until torch gives up and runs without it.

Evidence:
    The first hundred steps ran at 4,000 instead of 19,000 tokens per second in a public report.

Fix:
    Say which shapes change, or pad batches to a few lengths.

    ```python
    model = torch.compile(model)
    ```

    ```python
    model = torch.compile(model, dynamic=True)
    ```

Known limits:
    No gain is shown: compiling is not simulated. torch makes a dimension general when it first
    changes, which serves some models well enough.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.rules.run.distinct import distinct
from breakeven.doctor.source_lines import recorded_calls
from breakeven.source import is_constant, keyword
from breakeven.trace import Location

CAUSE = "COMPILE_RECOMPILE"

# torch.compile specialises on the first shape and makes the second general; a third that differs
# shows that more will come.
_MIN_SHAPES = 3


def detect(case: Case) -> Found:
    num_shapes = case.facts.num_shapes
    if num_shapes < _MIN_SHAPES or _marks_dynamic(case):
        return ()
    compiled = [
        call.location
        for call in recorded_calls(case, "compile")
        if not _is_dynamic(case, call.location)
    ]
    return tuple(
        Occurrence(
            title=f"torch.compile meets {num_shapes} different shapes in "
            f"{case.facts.num_steps} steps",
            fix="torch.compile(..., dynamic=True), or batches padded to a few lengths",
            evidence=f"{num_shapes} input shapes"
            + _since(case.facts.shapes_vary_at, ", the first that varies at {file}:{line}"),
            location=location,
        )
        for location in distinct(compiled)
    )


def _is_dynamic(case: Case, location: Location | None) -> bool:
    source = case.sources.find(location)
    if source is None or location is None:
        return False
    call = source.call_at(location.line, "compile")
    return call is not None and is_constant(keyword(call, "dynamic"), True)


def _marks_dynamic(case: Case) -> bool:
    return any(
        True for source in case.sources for _ in source.calls("mark_dynamic", "maybe_mark_dynamic")
    )


def _since(location: Location | None, text: str) -> str:
    return text.format(file=location.file, line=location.line) if location else ""

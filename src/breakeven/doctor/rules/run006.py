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

from breakeven.doctor.events import one_per_line
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.source_lines import recorded_calls
from breakeven.source import SourceFile, is_constant, keyword
from breakeven.trace import Location

CAUSE = "COMPILE_RECOMPILE"

# torch.compile specialises on the first shape and makes the second general; a third that differs
# shows that more will come.
_MIN_SHAPES = 3


def detect(case: Case) -> Found:
    facts, varying = case.facts, case.facts.shapes_vary_at
    if facts.num_shapes < _MIN_SHAPES or any(map(_marks_dynamic, case.sources)):
        return
    compiled = (call.location for call in recorded_calls(case, "compile"))
    for location in one_per_line(at for at in compiled if not _is_dynamic(case, at)):
        yield Occurrence(
            title=f"torch.compile meets {facts.num_shapes} different shapes in "
            f"{facts.num_steps} steps",
            fix="torch.compile(..., dynamic=True), or batches padded to a few lengths",
            evidence=f"{facts.num_shapes} input shapes"
            + (f", the first that varies at {varying.file}:{varying.line}" if varying else ""),
            location=location,
        )


def _is_dynamic(case: Case, location: Location | None) -> bool:
    call = case.sources.call_at(location, "compile")
    return call is not None and is_constant(keyword(call, "dynamic"), True)


def _marks_dynamic(source: SourceFile) -> bool:
    return any(source.calls("mark_dynamic", "maybe_mark_dynamic"))

"""RUN002: ``nn.DataParallel`` splits each step over GPUs from one process.

What it does:
    Finds models wrapped in ``torch.nn.DataParallel``.

Why it costs time:
    Each step copies the batch and all parameters from the first GPU to the others and brings
    outputs and gradients back, and the threads of one Python take turns in issuing work.

Evidence:
    49 s on one A100 and 82 s on four in public reports; 80 to 300 ms per step on another.

Fix:
    One GPU for small models, ``DistributedDataParallel`` with a process per GPU for others.

    ```python
    model = nn.DataParallel(model).to("cuda")
    ```

    ```python
    model = model.to("cuda")
    ```

Known limits:
    No gain is shown: it depends on how many GPUs there are and on how they are connected. On
    a single GPU the wrapper hardly costs anything.
"""

from __future__ import annotations

import ast

from breakeven.doctor.events import one_per_line
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.source_lines import recorded_calls

CAUSE = "DATAPARALLEL"


def detect(case: Case) -> Found:
    called = [call.location for call in recorded_calls(case, "DataParallel")]
    written = [
        source.location(call)
        for source, call in case.sources.calls("DataParallel")
        # Behind a condition only a call that was seen counts.
        if not any(isinstance(above, (ast.If, ast.IfExp)) for above in source.parents(call))
    ]
    for location in one_per_line([*called, *written]):
        yield Occurrence(
            title="nn.DataParallel copies the model to every GPU in every step",
            fix="one GPU for a small model; DistributedDataParallel for a large one",
            evidence="the model is wrapped in torch.nn.DataParallel",
            location=location,
        )

"""OPT002: the optimizer could be one fused kernel.

What it does:
    Reports ``Adam``, ``AdamW`` and ``SGD`` without ``fused=True`` where the update takes a
    twentieth of the step or more. Advice: it is never why a GPU does not pay.

Why it costs time:
    Without it each operation of the update is a pass over all parameters, with launches of its
    own and a trip through memory.

Evidence:
    An update of 22 ms became one of 8 in a public report, 3 % of that step; it did not help in
    another.

Fix:
    Say ``fused=True``.

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ```

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ```

Known limits:
    Parameters and gradients have to be floats on the device. With gradient scaling the fused
    update skips steps by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from breakeven.doctor.events import ZEROING, base_name, parameters_of
from breakeven.doctor.rule import Case, Found, Occurrence, changed
from breakeven.simulate import Edit, phase_times
from breakeven.trace import Op, OptimizerFacts, Phase

CAUSE = "OPT_UNFUSED"

# An optimizer that takes less of the step than this is not worth a word.
_MIN_OPTIMIZER_FRACTION = 0.05
# Fused kernels: what torch calls them, and how many tensors per parameter they work on besides
# the counter of steps.
_FUSED = {
    "Adam": ("aten._fused_adam_.default", 4, True),
    "AdamW": ("aten._fused_adamw_.default", 4, True),
    "SGD": ("aten._fused_sgd_.default", 3, False),
}


def detect(case: Case) -> Found:
    optimizers = case.facts.optimizers
    updates = {index: op for index, op in case.each_on_device() if _is_batched_update(op)}
    if not optimizers or not all(map(_could_be_fused, optimizers)) or not updates:
        return
    times = phase_times(case.program, case.device, case.host)
    optimizer_ns = max(times.other_host_ns, times.other_device_ns)
    if not case.step_ns or optimizer_ns / case.step_ns < _MIN_OPTIMIZER_FRACTION:
        return
    name = optimizers[0].name
    plural = "" if len(updates) == 1 else "s"
    yield Occurrence(
        title=f"{name} updates the parameters by {len(updates)} operator{plural} on lists; fused "
        "it is one kernel",
        fix=f"{name}(..., fused=True)",
        evidence=f"{name} was made without fused=True",
        location=optimizers[0].location,
        events=tuple(updates),
        edit=_fused(case, updates, name),
    )


def _could_be_fused(optimizer: OptimizerFacts) -> bool:
    is_known = optimizer.is_from_torch and optimizer.name in _FUSED
    return is_known and not optimizer.fused and optimizer.foreach is not False


def _is_batched_update(op: Op) -> bool:
    return (
        op.phase is Phase.OPTIMIZER
        and op.name.startswith("aten._foreach_")
        and base_name(op) not in {*ZEROING, "_foreach_norm"}
    )


def _fused(case: Case, updates: Mapping[int, Op], name: str) -> Edit | None:
    """Return the step whose update is one operator over all parameters and their state."""
    owned = parameters_of(case.trace)
    parameters = {
        tensor.storage: tensor
        for op in updates.values()
        for tensor in op.inputs
        if tensor.storage in owned
    }
    if not parameters:
        return None
    op_name, num_lists, has_steps = _FUSED[name]
    tensors = tuple(parameters.values())
    steps = tuple(replace(tensor, shape=(), dtype="float32") for tensor in tensors)
    first, op = next(iter(updates.items()))
    fused = replace(
        op,
        name=op_name,
        inputs=tensors * num_lists + (steps if has_steps else ()),
        outputs=(),
        attributes={"momentum": 0.9} if name == "SGD" else {},
    )
    return changed({first: fused}, gone=updates)

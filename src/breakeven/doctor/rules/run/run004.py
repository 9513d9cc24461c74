"""RUN004: checkpoints are saved in every step, or after very few.

What it does:
    Finds ``torch.save`` in at least two of the steps that were recorded, where it takes a
    twentieth of the step or more.

Why it costs time:
    Saving copies every parameter to the host, waits for it, and writes a file, while the GPU
    has nothing to do.

Evidence:
    20 to 50 % of an epoch in public reports; on one small data set saving took longer than
    training.

Fix:
    Save by time, or after many steps.

    ```python
    for step, batch in enumerate(loader):
        train(batch)
        torch.save(model.state_dict(), "last.pt")
    ```

    ```python
    for step, batch in enumerate(loader):
        train(batch)
        if step % 1000 == 999:
            torch.save(model.state_dict(), "last.pt")
    ```

Known limits:
    The time is that of this machine's disk. The gain shown assumes that saving is so rare
    that it no longer counts.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, KnownGain, Occurrence, without
from breakeven.doctor.source_lines import recorded_calls, trainer_setting
from breakeven.trace import Call, HostWork
from breakeven.units import format_duration

CAUSE = "CKPT_OFTEN"

# Below this part of the step saving is not worth a change.
_MIN_SAVE_FRACTION = 0.05
# One save may be that of every thousandth step, the first of which is step 0.
_MIN_SAVES = 2


def detect(case: Case) -> Found:
    found = (
        _saving(case, call)
        for call in recorded_calls(case, "save")
        if call.step_count >= _MIN_SAVES and call.count
    )
    return tuple(one for one in found if one is not None)


def _saving(case: Case, call: Call) -> Occurrence | None:
    """Return what a line that saves in many steps costs; None where that is little."""
    own = {
        index: event.duration_ns
        for index, event in enumerate(case.trace.events)
        if isinstance(event, HostWork) and event.kind == "save" and event.location == call.location
    }
    step_ns = case.step_ns
    if own:
        saving_ns = float(sum(own.values()))
        share = saving_ns / step_ns
    else:
        # The recorded step is one of those that do not save.
        saving_ns = call.duration_ns / call.count * call.step_count / case.facts.num_steps
        share = saving_ns / (step_ns + saving_ns)
    if share < _MIN_SAVE_FRACTION:
        return None
    events = tuple(own)
    return Occurrence(
        title=f"saving takes {format_duration(saving_ns, 2)} per step",
        fix="save by time, or after many steps",
        evidence=f"torch.save in {call.step_count} of {case.facts.num_steps} recorded steps",
        location=trainer_setting(case, call.location, "save_steps", "every_n_train_steps")
        or call.location,
        events=events,
        share_fraction=share,
        edit=without(events) if events else None,
        gain=KnownGain(fraction=share, low_fraction=share / 2, high_fraction=share),
    )

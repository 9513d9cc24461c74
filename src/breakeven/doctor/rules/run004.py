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
from breakeven.trace import HostWork
from breakeven.units import format_duration

CAUSE = "CKPT_OFTEN"

# Below this part of the step saving is not worth a change.
_MIN_SAVE_FRACTION = 0.05

# One save may be that of every thousandth step, the first of which is step 0.
_MIN_SAVES = 2


def detect(case: Case) -> Found:
    num_steps = case.facts.num_steps
    for call in recorded_calls(case, "save"):
        if call.step_count < _MIN_SAVES or not call.count:
            continue
        own = {
            index: work.duration_ns
            for index, work in case.each(HostWork)
            if work.kind == "save" and work.location == call.location
        }
        if own:
            saving_ns = float(sum(own.values()))
            share = saving_ns / case.step_ns
        else:
            # The recorded step is one of those that do not save.
            saving_ns = call.duration_ns / call.count * call.step_count / num_steps
            share = saving_ns / (case.step_ns + saving_ns)
        if share < _MIN_SAVE_FRACTION:
            continue
        setting = trainer_setting(case, call.location, "save_steps", "every_n_train_steps")
        yield Occurrence(
            title=f"saving takes {format_duration(saving_ns, 2)} per step",
            fix="save by time, or after many steps",
            evidence=f"torch.save in {call.step_count} of {num_steps} recorded steps",
            location=setting or call.location,
            events=tuple(own),
            share_fraction=share,
            edit=without(own) if own else None,
            gain=KnownGain(fraction=share, low_fraction=share / 2, high_fraction=share),
        )

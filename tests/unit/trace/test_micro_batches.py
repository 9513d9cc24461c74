"""Which calls of a model are batches whose gradients a step accumulates."""

import pytest

from breakeven.trace import Location, ModelCall, Op, Phase, num_micro_batches

LINE, OTHER = Location(file="train.py", line=7), Location(file="train.py", line=9)
FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


def step(*parts: Phase | Location, samples: int = 8) -> int:
    """Ask about a step; a line stands for a call of the model there."""
    events: list[Op] = []
    calls: list[ModelCall] = []
    for part in parts:
        if isinstance(part, Location):
            calls.append(
                ModelCall(
                    model="Net", location=part, stack=-1, is_training=True, has_grad=True,
                    is_used_in_backward=True, first_event=len(events), num_events=1,
                    num_samples=samples if part is LINE else 5,
                )
            )  # fmt: skip
        phase = FORWARD if isinstance(part, Location) else part
        events.append(Op(name="aten.mm.default", inputs=(), outputs=(), phase=phase))
    return num_micro_batches(events, calls)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((LINE, BACKWARD, OPTIMIZER), 1),
        ((LINE, BACKWARD, LINE, BACKWARD, LINE, FORWARD, BACKWARD, OPTIMIZER), 3),
        # Time steps of one sequence.
        ((LINE, LINE, LINE, BACKWARD, OPTIMIZER), 1),
        # A discriminator's two halves.
        ((LINE, BACKWARD, OTHER, BACKWARD, OPTIMIZER), 1),
        # A line search tries the same batch with other weights.
        ((LINE, BACKWARD, OPTIMIZER, LINE, BACKWARD, OPTIMIZER), 1),
        # Evaluated after the update, with gradients that nothing asks for.
        ((LINE, BACKWARD, OPTIMIZER, LINE), 1),
        ((OPTIMIZER,), 1),
    ],
)
def test_batches_are_told_from_other_calls(
    parts: tuple[Phase | Location, ...], expected: int
) -> None:
    assert step(*parts) == expected

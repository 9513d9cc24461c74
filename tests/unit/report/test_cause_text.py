"""How causes of the time of a step are called and coloured."""

from __future__ import annotations

from breakeven.report.timeline import CauseGroup, group_and_words
from breakeven.simulate import StepCause


def test_every_cause_has_words_and_a_colour() -> None:
    words = [group_and_words(cause)[1] for cause in StepCause]
    assert len(set(words)) == len(words)
    assert not set(words) & {cause.value for cause in StepCause} - {"autograd"}
    assert group_and_words("device-gemm")[0] is CauseGroup.ARITHMETIC
    assert group_and_words("device-sort")[0] is CauseGroup.KERNELS
    assert group_and_words("device-idle")[0] is CauseGroup.WAITING
    assert group_and_words("device-batched_gemm")[1] == "GPU: batched gemm"
    assert group_and_words("of a later version\x1b")[1] == r"of a later version\x1b"
    letters = [group.letter for group in CauseGroup]
    assert len(set(letters)) == len(letters)

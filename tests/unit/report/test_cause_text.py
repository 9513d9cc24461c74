"""How causes of the time of a step are called and coloured."""

from __future__ import annotations

from breakeven.report.charts.causes import CauseGroup, cause_words, group_of
from breakeven.simulate import StepCause


def test_every_cause_has_words_and_a_colour() -> None:
    words = [cause_words(cause) for cause in StepCause]
    assert len(set(words)) == len(words)
    assert not set(words) & {cause.value for cause in StepCause} - {"autograd"}
    assert group_of("device-gemm") is CauseGroup.ARITHMETIC
    assert group_of("device-sort") is CauseGroup.KERNELS
    assert group_of("device-idle") is CauseGroup.WAITING
    assert cause_words("device-batched_gemm") == "GPU: batched gemm"
    assert cause_words("of a later version\x1b") == r"of a later version\x1b"
    letters = [group.value.letter for group in CauseGroup]
    assert len(set(letters)) == len(letters)

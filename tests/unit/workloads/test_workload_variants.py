from breakeven.trace import (
    Copy,
    NumberFormat,
    Op,
    Phase,
    StepCase,
    StepTrace,
    Sync,
    TensorSpec,
    TimedPhase,
)
from breakeven.workloads.spec import as_asked, base_case


def traced(batch_size: int) -> StepTrace:
    tensor = TensorSpec(shape=(batch_size, 4), dtype="float32", device="cuda:0")
    copies = [
        Copy(source="cpu", destination="cuda:0", num_bytes=16 * batch_size),
        Copy(source="cpu", destination="cuda:0", num_bytes=8 * batch_size),
    ]
    ops = [
        Op(name=name, inputs=(tensor,), outputs=(tensor,), phase=phase)
        for name, phase in (
            ("aten.relu.default", Phase.FORWARD),
            ("aten.ones_like.default", Phase.FORWARD),
            ("aten.threshold_backward.default", Phase.BACKWARD),
        )
    ]
    return StepTrace(
        events=(*copies, *ops, Sync(kind="synchronize")),
        batch_size=batch_size,
    )


def case(**changes) -> StepCase:
    given = {"workload": "breakeven:mlp", "phase": TimedPhase.FORWARD_BACKWARD, **changes}
    return StepCase(**given)


def names(trace: StepTrace) -> list[str]:
    return [event.name if isinstance(event, Op) else type(event).__name__ for event in trace.events]


def test_what_a_trace_does_not_depend_on_is_left_out_of_its_base():
    base = base_case(case())
    assert base.h2d == "pageable"
    for changes in (
        {"h2d": "pinned"},
        {"number_format": NumberFormat.TF32},
        {"phase": TimedPhase.BACKWARD},
        {"optimizer": "adam"},  # only training steps update
    ):
        assert base_case(case(**changes)) == base
    assert base_case(base) == base


def test_what_a_trace_depends_on_stays_in_its_base():
    bases = {
        base_case(case(**changes))
        for changes in (
            {},
            {"number_format": NumberFormat.FP16},
            {"phase": TimedPhase.INFERENCE},
            {"phase": TimedPhase.FORWARD},
            {"phase": TimedPhase.TRAIN, "optimizer": "adam"},
            {"zeroes_gradients": True},
            {"workload": "breakeven:lstm"},
        )
    }
    assert len(bases) == 7


def test_inference_has_no_gradients_to_zero():
    one = base_case(case(phase=TimedPhase.INFERENCE, zeroes_gradients=True))
    assert one == base_case(case(phase=TimedPhase.INFERENCE))


def test_the_batch_is_copied_as_asked():
    base = (traced(2), traced(3))
    assert as_asked(base, case()).first.copies == ()
    pageable = as_asked(base, case(h2d="pageable"))
    assert [copy.is_blocking for copy in pageable.first.copies] == [True, True]
    assert pageable.at(10).h2d_bytes == 240
    pinned = as_asked(base, case(h2d="pinned"))
    assert [copy.is_blocking for copy in pinned.first.copies] == [False, False]


def test_the_backward_phase_is_what_autograd_runs_and_the_wait_for_it():
    base = (traced(2), traced(3))
    step = as_asked(base, case(phase=TimedPhase.BACKWARD, h2d="none")).first
    assert names(step) == ["aten.threshold_backward.default", "Sync"]


def test_tf32_is_a_switch():
    base = (traced(2), traced(3))
    plain = as_asked(base, case()).first.settings
    assert not plain.allow_tf32_matmul
    assert not plain.allow_tf32_convolution
    switched = as_asked(base, case(number_format=NumberFormat.TF32)).first.settings
    assert switched.allow_tf32_matmul
    assert switched.allow_tf32_convolution

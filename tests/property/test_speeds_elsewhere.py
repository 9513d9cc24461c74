"""What a measured speed tells of a machine, whatever the step and the machine."""

from __future__ import annotations

import math

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven.calibrate import host_called
from breakeven.calibrate.elsewhere import log_factor, predictor
from breakeven.cost import reference_host
from breakeven.device import FeedingHost, find_device, find_kind
from breakeven.simulate import build_program
from breakeven.trace import StepTrace
from factories.steps import op, tensor


@settings(max_examples=25)
@given(
    size=st.sampled_from((8, 256, 1_024, 4_096)),
    off=st.floats(0.1, 10.0),
    device=st.sampled_from(("T4", "A100", "RTX 4090")),
)
@example(size=1_024, off=0.25, device="A100")
def test_a_measured_step_moves_the_host_its_way_and_not_beyond(
    size: int, off: float, device: str
) -> None:
    x = tensor(size, size, device="cuda:0")
    trace = StepTrace(events=(op(name="aten.mm.default", inputs=(x, x), outputs=(x,)),) * 30)
    kind, host = find_kind("cloud"), host_called("cloud", reference_host())
    assert isinstance(host, FeedingHost)
    predicted = predictor(build_program(trace), find_device(device), host)
    usual_ns = predicted(kind).value_ns
    mean, sigma = log_factor(off * usual_ns, kind, predicted)
    assert abs(mean) < 1e-3 or (mean > 0) == (off > 1)
    # Towards what was measured, and not beyond it.
    after = predicted(replace(kind, factor=kind.factor * math.exp(mean), log_sigma=sigma))
    low, high = sorted((1.0, off))
    assert 0.98 * low <= after.value_ns / usual_ns <= 1.02 * high
    if size == 8:  # the host decides the step whatever its factor, within these bounds
        assert sigma < 0.8 * kind.log_sigma
        before = predicted(kind)
        assert after.high_ns / after.low_ns < 0.9 * before.high_ns / before.low_ns

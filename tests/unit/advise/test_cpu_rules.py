from __future__ import annotations

import msgspec
import pytest

from breakeven.simulate import Side
from breakeven.timing import CpuFacts, CpuTrial, Estimate, Source
from breakeven.trace import Call, RunFacts
from factories.cases import rule_of, rules_of
from factories.layers import convolution, gpu_case, linear, only
from factories.steps import at

STEP = linear(batch=64, inputs=64, outputs=64)


def estimate(value_ns: float, spread: float = 0.02) -> Estimate:
    return Estimate(
        value_ns=value_ns,
        low_ns=value_ns * (1 - spread),
        high_ns=value_ns * (1 + spread),
        source=Source.MEASURED,
    )


def cpu(*trials: tuple[str, float], spread: float = 0.02, **facts: object) -> CpuFacts:
    """Return a step of 1 ms on 8 threads of 8 cores, and trials by setting and time in ms."""
    known = CpuFacts(
        name="Made-up CPU",
        estimate=estimate(1e6, spread),
        num_threads=8,
        num_cores=8,
        trials=tuple(
            CpuTrial(setting=setting, estimate=estimate(ms * 1e6, spread)) for setting, ms in trials
        ),
    )
    return msgspec.structs.replace(known, **facts)


@pytest.mark.parametrize("rule", rules_of("CPU"), ids=lambda rule: rule.code)
@pytest.mark.parametrize("facts", [None, cpu()], ids=["not measured", "nothing tried"])
def test_nothing_is_found_without_evidence(rule, facts: CpuFacts | None) -> None:
    assert rule.detect(gpu_case(*STEP, *convolution(), cpu=facts)) == ()


# --- threads -------------------------------------------------------------------------------------


def test_fewer_threads_are_faster() -> None:
    trials = cpu(("threads=4", 0.8), ("threads=1", 0.4), ("threads=2", 0.5))
    found = only(rule_of("CPU001"), gpu_case(*STEP, cpu=trials))

    assert found.side is Side.CPU
    assert "set_num_threads(1)" in found.fix
    assert found.location is None
    assert found.gain is not None
    assert found.gain.fraction == pytest.approx(0.6)
    assert found.gain.low_fraction == pytest.approx(1 - 0.408 / 0.98)
    assert found.gain.high_fraction == pytest.approx(1 - 0.392 / 1.02)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(cpu(("threads=1", 3.0)), id="slower"),
        pytest.param(cpu(("threads=1", 0.97), spread=0.001), id="as fast"),
        pytest.param(cpu(("threads=1", 0.8), spread=0.2), id="within the noise"),
        pytest.param(cpu(("threads=16", 0.4)), id="more threads"),
        pytest.param(cpu(("flush-denormal", 0.4), ("threads=few", 0.4)), id="another setting"),
    ],
)
def test_threads_that_are_not_too_many(facts: CpuFacts) -> None:
    assert rule_of("CPU001").detect(gpu_case(*STEP, cpu=facts)) == ()


def test_more_threads_than_processors() -> None:
    facts = cpu(("threads=8", 0.5), num_threads=32)
    case = gpu_case(*STEP, cpu=facts)
    found = only(rule_of("CPU002"), case)

    assert found.title == "32 threads share 8 processors"
    assert found.gain is not None
    assert found.gain.fraction == pytest.approx(0.5)
    # One reason, one finding.
    assert rule_of("CPU001").detect(case) == ()


def test_the_recorded_run_tells_of_threads_too() -> None:
    call = Call(name="torch.set_num_threads", location=at(4), count=1, argument="64")
    facts = RunFacts(num_threads=64, num_cores=8, calls=(call,))
    found = only(rule_of("CPU002"), gpu_case(*STEP, facts=facts))

    assert found.location == at(4)
    assert found.gain is None


@pytest.mark.parametrize("num_threads", [1, 8])
def test_as_many_threads_as_processors_are_healthy(num_threads: int) -> None:
    facts = RunFacts(num_threads=num_threads, num_cores=8)
    assert rule_of("CPU002").detect(gpu_case(*STEP, facts=facts)) == ()


# --- subnormal numbers ---------------------------------------------------------------------------


def test_subnormal_numbers_that_cost_time() -> None:
    case = gpu_case(
        *STEP, cpu=cpu(("flush-denormal", 0.25)), facts=RunFacts(subnormal_fraction=0.3)
    )
    found = only(rule_of("CPU003"), case)

    assert found.side is Side.CPU
    assert "30 %" in found.evidence
    assert found.gain is not None
    assert found.gain.fraction == pytest.approx(0.75)


def test_many_subnormal_numbers_untried() -> None:
    found = only(rule_of("CPU003"), gpu_case(*STEP, facts=RunFacts(subnormal_fraction=0.02)))
    assert found.gain is None


def test_subnormal_activations_show_in_the_trial_alone() -> None:
    found = only(rule_of("CPU003"), gpu_case(*STEP, cpu=cpu(("flush-denormal", 0.5))))
    assert "subnormal" not in found.evidence


@pytest.mark.parametrize(
    ("facts", "fraction"),
    [
        pytest.param(cpu(("flush-denormal", 1.0)), 0.3, id="they cost nothing"),
        pytest.param(None, 0.001, id="few"),
    ],
)
def test_subnormal_numbers_that_do_not_matter(facts: CpuFacts | None, fraction: float) -> None:
    case = gpu_case(*STEP, cpu=facts, facts=RunFacts(subnormal_fraction=fraction))
    assert rule_of("CPU003").detect(case) == ()

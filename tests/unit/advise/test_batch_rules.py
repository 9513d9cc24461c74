from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.advise import Finding, RuleInput, diagnose
from breakeven.simulate import Severity
from breakeven.trace import HostWork, Op, RunFacts, ScaledTrace, StepTrace
from factories.steps import HOST, MadeUpCosts, loader_facts, made_up_device, op, tensor

GPU = made_up_device(memory_bytes=8e9)


class CostsByRows(MadeUpCosts):
    """Kernels that take longer the more rows they have, beyond those that fit the device at once.

    Launching takes the host 1,000 ns whatever the batch.
    """

    def lower(self, op: Op, settings):
        if not op.inputs:
            return super().lower(op, settings)
        rows = op.inputs[0].shape[0]
        kernel_ns = [max(100.0, 10.0 * rows)]
        return super().lower(
            replace(op, attributes={**op.attributes, "kernel_ns": kernel_ns}), settings
        )


def step(
    batch_size: int, *, bytes_per_sample: float = 1e6, facts: RunFacts | None = None
) -> StepTrace:
    rows = (tensor(batch_size, 8, device="cuda:0"),)
    return StepTrace(
        events=(op(0, host_ns=1000, inputs=rows, outputs=rows),),
        batch_size=batch_size,
        peak_memory_bytes=round(1e9 + bytes_per_sample * batch_size),
        facts=facts or RunFacts(),
    )


def found(batch_size: int, *, is_scaled: bool = True, **step_options) -> dict[str, Finding]:
    first = step(batch_size, **step_options)
    second = step(2 * batch_size, **step_options)
    scaled = ScaledTrace(first, second) if is_scaled else None
    return {
        one.finding.code: one.finding
        for one in diagnose(RuleInput.of(first, GPU, HOST, costs=CostsByRows(), scaled=scaled))
    }


def test_a_small_batch_names_the_one_from_which_it_stops_mattering() -> None:
    finding = found(4)["BATCH001"]

    assert (finding.cause, finding.line) == ("BATCH_SMALL", None)
    # The host needs 1,000 ns, and the device 10 per sample: 10 per sample at best, from 100 on.
    # 64 samples take 1,000 / 64 = 15.6 each, 128 take 10.
    assert finding.fix == "a batch of 128 samples; larger batches gain little more"
    assert finding.gain_fraction == pytest.approx(1 - 10 / 250)
    assert finding.gain_low_fraction <= finding.gain_fraction <= finding.gain_high_fraction


def test_a_batch_of_hundreds_is_not_small() -> None:
    assert "BATCH001" not in found(256)


def test_a_step_that_grows_with_its_batch_is_not_flat() -> None:
    class Busy(MadeUpCosts):
        def lower(self, op: Op, settings):
            kernel_ns = [1e4 * op.inputs[0].shape[0]]
            new = replace(op, attributes={**op.attributes, "kernel_ns": kernel_ns})
            return super().lower(new, settings)

    first, second = step(8), step(16)
    findings = diagnose(
        RuleInput.of(first, GPU, HOST, costs=Busy(), scaled=ScaledTrace(first, second))
    )
    assert "BATCH001" not in {one.finding.code for one in findings}


@pytest.mark.parametrize("is_scaled", [True, False])
def test_loading_does_not_hide_that_a_batch_is_small(is_scaled: bool) -> None:
    def loading(batch_size: int) -> StepTrace:
        work = HostWork(kind="data", duration_ns=5_000 * batch_size)
        own = step(batch_size)
        return replace(own, events=(work, *own.events))

    first, second = loading(2), loading(4)
    scaled = ScaledTrace(first, second) if is_scaled else None
    found = diagnose(RuleInput.of(first, GPU, HOST, costs=CostsByRows(), scaled=scaled))
    (finding,) = (one.finding for one in found if one.finding.code == "BATCH001")

    # Of 11,000 ns the 10,000 of loading grow with the samples, the 1,000 of launching do not.
    assert 0 < finding.gain_fraction <= 1_000 / 11_000


def test_one_batch_size_gives_a_limit() -> None:
    finding = found(4, is_scaled=False)["BATCH001"]

    # The step takes 1,000 ns and its kernel 100: 8 times the samples take 1,700 at the very most.
    assert finding.fix == "a batch of 32 samples or more"
    assert finding.gain_fraction == pytest.approx(1 - 1700 / 8 / 1000)
    assert finding.gain_low_fraction == 0


def test_one_batch_size_tells_nothing_of_a_busy_device() -> None:
    class Busy(MadeUpCosts):
        def lower(self, op: Op, settings):
            new = replace(op, attributes={**op.attributes, "kernel_ns": [500.0]})
            return super().lower(new, settings)

    findings = diagnose(RuleInput.of(step(4), GPU, HOST, costs=Busy()))
    assert "BATCH001" not in {one.finding.code for one in findings}


def test_no_batch_is_larger_than_the_data_set() -> None:
    loader = loader_facts(batch_size=4, num_samples=20)
    finding = found(4, facts=RunFacts(loaders=(loader,)))["BATCH001"]
    assert finding.fix == "a batch of 16 samples or more"


def test_no_batch_is_larger_than_the_memory() -> None:
    # 1 GB for itself, half for CUDA: 6.5 GB for samples of 100 MB.
    finding = found(4, bytes_per_sample=1e8)["BATCH001"]
    assert finding.fix == "a batch of 64 samples or more"


def test_a_step_that_does_not_fit_is_an_error_with_the_batch_that_does() -> None:
    finding = found(16, bytes_per_sample=1e9)["MEM001"]

    assert (finding.cause, finding.severity) == ("MEMORY_FULL", Severity.ERROR)
    assert finding.title == "the step needs 17.5 GB of memory, Made-up GPU has 8 GB"
    assert finding.fix.startswith("a batch of 6 samples at most")


def test_a_model_that_does_not_fit_at_all() -> None:
    finding = found(2, bytes_per_sample=1e10)["MEM001"]
    assert finding.fix.startswith("not even one sample fits")


def test_without_a_second_size_no_batch_is_named() -> None:
    finding = found(16, bytes_per_sample=1e9, is_scaled=False)["MEM001"]
    assert finding.fix == "a smaller batch, mixed precision or torch.utils.checkpoint"


def test_a_step_that_fits_is_no_finding() -> None:
    assert "MEM001" not in found(4)

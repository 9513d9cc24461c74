"""A GPU is measured, fitted and kept: the whole path on the CPU, its parts on made-up figures."""

from __future__ import annotations

import platform
import socket
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import pytest
import torch

from breakeven.calibrate.fit import TimedKernel, fit_factors, fit_families
from breakeven.calibrate.gpu import (
    GpuRequest,
    calibrate_gpu,
    calibrating,
    find_gpu,
    save_calibration,
)
from breakeven.calibrate.gpu.calibrating import Item, measure_items, sample_name
from breakeven.calibrate.gpu.machine import (
    ISSUES,
    calibration_bytes,
    describe_machine,
    fit_copies,
    measure_copies,
    measure_launch,
    sharing_text,
)
from breakeven.calibrate.gpu.samples import (
    DTYPES,
    Place,
    Sample,
    all_samples,
    sample_kernels,
    timed_kernel,
)
from breakeven.calibrate.gpu.steps import WantedStep, all_steps, case_of, fit_steps, time_step
from breakeven.capture import FakeSession, fake_gpus
from breakeven.cost import (
    CalibrationStep,
    Family,
    MeasuredSample,
    StepCosts,
    calibrated_table,
    is_in_one_kernel,
    kernel_times,
    load_calibrations,
    load_efficiencies,
    load_step_effects,
    read_calibration,
    read_calibrations_again,
    reference_host,
    shipped_costs,
)
from breakeven.device import FOLDER_VARIABLE, Precision, find_device
from breakeven.errors import BreakevenError, UsageError
from breakeven.measure import DeviceTimer
from breakeven.progress import SilentProgress
from breakeven.simulate import predict_steps
from breakeven.trace import NumberFormat
from breakeven.verdict import device_result
from breakeven.workloads import trace_case, trace_cases
from factories.calibrations import calibrated
from factories.loaded_scripts import load_script

CPU = torch.device("cpu")
TINY = all_steps(is_tiny=True)[0]
L4 = find_device("l4")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "cache"))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measure a few samples alone; return the names of those that were timed."""
    samples = [
        sample
        for sample in all_samples(is_tiny=True)
        if sample.is_quick and sample.family in (Family.GEMM, Family.ELEMENTWISE)
    ]
    timed: list[str] = []
    real = calibrating.time_sample

    def time_sample(sample, precision, timer):
        timed.append(f"{sample.name} {precision}")
        return real(sample, precision, timer)

    monkeypatch.setattr(calibrating, "all_samples", lambda *, is_tiny: tuple(samples))
    monkeypatch.setattr(calibrating, "time_sample", time_sample)
    monkeypatch.setattr(calibrating, "all_steps", lambda *, is_tiny: ())
    return timed


def request(**fields) -> GpuRequest:
    return GpuRequest(device=CPU, **{"is_quick": True, "is_tiny": True} | fields)


def measured_sample(sample: Sample, precision: Precision) -> MeasuredSample:
    return MeasuredSample(
        name=sample.name, precision=precision, time_ns=1e5, spread=1.0, num_calls=10
    )


def test_a_device_is_measured_once_and_its_file_is_read_back_and_used(
    few: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = calibrate_gpu(request(), SilentProgress())
    assert len(few) == len({*few}) == len(first.calibration.samples) - 3  # copies
    assert first.num_left == 0
    again = calibrate_gpu(request(), SilentProgress())
    assert again.num_new == 0
    assert len(few) == len({*few})
    document = calibration_bytes(first.calibration)
    assert read_calibration(document, "here") == first.calibration
    # To be read by people: a line for each measurement.
    lines = document.decode().splitlines()
    assert sum('"time_ns"' in line for line in lines) == len(first.calibration.samples)
    spec = first.calibration.spec
    assert spec is not None
    assert spec.id == first.calibration.device
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "own"))
    save_calibration(first.calibration)
    assert find_device(describe_machine(CPU).gpu) == spec
    trace = trace_case(case_of(TINY))
    (predicted,) = predict_steps(trace.at(4), [spec], reference_host(), costs=shipped_costs())
    assert device_result(predicted).calibrated_on == first.calibration.machine.date
    assert predicted.estimate.value_ns > 0
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    read_calibrations_again()
    forced = calibrate_gpu(request(is_forced=True), SilentProgress())
    assert forced.num_new == first.num_new


def test_an_interrupted_calibration_goes_on(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = calibrating.time_sample

    def interrupted(sample, precision, timer):
        if len(few) == 4:
            raise KeyboardInterrupt
        return real(sample, precision, timer)

    with monkeypatch.context() as patches:
        patches.setattr(calibrating, "time_sample", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calibrate_gpu(request(), SilentProgress())
    assert len(few) == 4
    result = calibrate_gpu(request(), SilentProgress())
    assert len(few) == len({*few})
    assert len(result.calibration.samples) == len(few) + 3


class KilledError(BaseException):
    """Stands for the end of the process."""


def test_what_ended_the_process_is_not_asked_again(
    few: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = calibrating.time_sample
    as_it_was: dict[Path, bytes] = {}

    def aborts(sample, precision, timer):
        if len(few) == 4:
            files = (tmp_path / "cache").glob("calibrating-*.json")
            as_it_was.update({file: file.read_bytes() for file in files})
            few.append(f"{sample.name} {precision}")
            raise KilledError
        return real(sample, precision, timer)

    with monkeypatch.context() as patches:
        patches.setattr(calibrating, "time_sample", aborts)
        with pytest.raises(KilledError):
            calibrate_gpu(request(), SilentProgress())
    ((file, content),) = as_it_was.items()
    file.write_bytes(content)
    result = calibrate_gpu(request(), SilentProgress())
    left_out = f"{few[4]}: breakeven was ended while it was measured"
    assert result.calibration.left_out == (left_out,)
    assert len(few) == len({*few})
    assert len(result.calibration.samples) == len(few) - 1 + 3


def test_copies_of_any_memory_are_kept_where_none_can_be_pinned(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def copies(*_, **__):
        yield measured_sample(few_copies[0], Precision.FP32)
        raise RuntimeError("cannot pin memory")

    few_copies = [replace(all_samples(is_tiny=True)[0], name="copy pageable 4096")]
    monkeypatch.setattr(calibrating, "measure_copies", copies)
    found = calibrate_gpu(request(), SilentProgress()).calibration
    assert "copy pageable 4096" in {sample.name for sample in found.samples}
    assert "copies: RuntimeError: cannot pin memory" in found.left_out


def test_what_the_device_refuses_is_left_out_and_named(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = calibrating.time_sample

    def refused(sample, precision, timer):
        if precision is Precision.BF16 and sample.family is Family.GEMM:
            raise RuntimeError("no such type\nhere")
        return real(sample, precision, timer)

    monkeypatch.setattr(calibrating, "time_sample", refused)
    found = calibrate_gpu(request(), SilentProgress()).calibration
    assert len(found.left_out) == 5
    assert all(text.endswith("bf16: RuntimeError: no such type") for text in found.left_out)
    assert not any(
        one.precision is Precision.BF16 and one.family is Family.GEMM for one in found.families
    )


def test_a_gpu_that_answers_no_more_ends_it_and_what_ended_it_is_not_asked_again(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sample, precision, timer):
        few.append(f"{sample.name} {precision}")
        if len(few) < 3:
            return measured_sample(sample, precision)
        patches.setattr(calibrating, "check_gpu", lost)
        raise RuntimeError("an illegal memory access")

    def lost(_: torch.device) -> None:
        raise BreakevenError("the GPU computes nothing: an illegal memory access")

    with monkeypatch.context() as patches:
        patches.setattr(calibrating, "time_sample", broken)
        with pytest.raises(BreakevenError, match="stopped answering at linear "):
            calibrate_gpu(request(), SilentProgress())
    ended_by = few[2]
    result = calibrate_gpu(request(), SilentProgress())
    assert result.calibration.left_out == (f"{ended_by}: RuntimeError: an illegal memory access",)
    assert len(few) == len({*few})


def test_a_gpu_that_computes_nothing_is_said_so_at_once(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ones(*_, **__):
        raise RuntimeError("CUDA error: no kernel image is available for execution\nhere")

    monkeypatch.setattr(torch, "ones", ones)
    with pytest.raises(BreakevenError, match="computes nothing: CUDA error: no kernel image") as no:
        calibrate_gpu(request(), SilentProgress())
    assert "torch is built for it" in str(no.value.hint)
    assert few == []


def test_what_found_no_memory_is_tried_again(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = calibrating.time_sample
    signs = iter(("CUDA out of memory. Tried to allocate 2 GiB", "CUBLAS_STATUS_ALLOC_FAILED"))

    def full(sample, precision, timer):
        sign = next(signs, None)
        if sign is not None:
            raise torch.OutOfMemoryError(sign)
        return real(sample, precision, timer)

    with monkeypatch.context() as patches:
        patches.setattr(calibrating, "time_sample", full)
        found = calibrate_gpu(request(), SilentProgress())
    assert len(found.calibration.left_out) == 2
    again = calibrate_gpu(request(), SilentProgress())
    assert again.num_new == 2
    assert again.calibration.left_out == ()


def test_tf32_is_measured_where_there_is_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def precisions() -> set[Precision]:
        asked = GpuRequest(device=torch.device("cuda", 0))
        return {precision for _, precision in calibrating.wanted_samples(asked)}

    with fake_gpus():
        assert Precision.TF32 in precisions()
        monkeypatch.setattr(torch.version, "hip", "7.0")
        assert precisions() == {Precision.BF16, Precision.FP32, Precision.FP16}


def test_without_traces_what_steps_show_is_left_out(
    few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object) -> None:
        raise BreakevenError("on Windows, the steps of workloads cannot be traced")

    monkeypatch.setattr(calibrating, "fit_steps", fit)
    found = calibrate_gpu(request(), SilentProgress(), host=reference_host()).calibration
    assert found.samples
    assert found.left_out == (
        "what whole steps show: on Windows, the steps of workloads cannot be traced",
    )


def test_the_time_is_kept_and_what_is_left_is_counted() -> None:
    now_s, done, failed = [0.0], [], []

    def item(name: str, takes_s: float, about_s: float = 2.0) -> Item:
        def measure() -> None:
            now_s[0] += takes_s
            if name == "refused":
                raise RuntimeError("no")
            done.append(name)

        return Item(name=name, stage="all", measure=measure, about_s=about_s)

    told: list[str] = []
    asked: list[str] = []
    progress = SilentProgress()
    progress.begin = lambda stage, expected_s=None: told.append(stage)
    progress.detail = told.append
    num_left = measure_items(
        [
            item("known", 9), item("one", 4), item("refused", 1), item("slow", 5, about_s=60),
            item("two", 3), item("late", 1),
        ],
        progress,
        is_known=lambda name: name == "known",
        ask=asked.append,
        failed=lambda name, error: failed.append((name, str(error))),
        now_s=lambda: now_s[0],
        until_s=9.0,
    )  # fmt: skip
    assert asked == ["one", "refused", "two"]
    assert done == ["one", "two"]
    assert failed == [("refused", "no")]
    assert num_left == 2
    assert told[0] == "all"
    assert told.count("all") == 1
    assert told[1].endswith("2 of 6 one")


@pytest.fixture(scope="module")
def l4_samples() -> Callable[[float], list[TimedKernel]]:
    """Return a function that makes up the samples of an L4 that is so many times as slow."""
    samples = [sample for sample in all_samples() if sample.family is not Family.RECURRENT]
    rows = []
    with FakeSession() as session:
        for sample in samples:
            for precision in (Precision.FP32, Precision.FP16):
                if precision in sample.precisions:
                    rows.append((sample, sample_kernels(sample, precision, session)))

    def make(slowness: float) -> list[TimedKernel]:
        made: list[TimedKernel] = []
        for sample, some in rows:
            time_ns = slowness * float(kernel_times(some, [L4], warm_fraction=1.0).time_ns.sum())
            row = timed_kernel(sample, time_ns, some, L4)
            assert row is not None, sample.name
            made.append(row)
        return made

    return make


@pytest.mark.slow
def test_the_fit_finds_what_a_gpu_reaches_again(
    l4_samples: Callable[[float], list[TimedKernel]],
) -> None:
    for slowness in (1.0, 2.0):
        timed = l4_samples(slowness)
        families = fit_families(timed)
        assert {one.family for one in families} >= {
            Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION,
            Family.ELEMENTWISE, Family.NORMALIZATION, Family.SOFTMAX,
        }  # fmt: skip
        errors = [one.median_error_fraction for one in families]
        assert float(np.median(errors)) < 0.05
        attention = [one for one in families if one.family is Family.ATTENTION]
        assert max(one.median_error_fraction for one in attention) < 0.05
        own = calibrated(*families, device=L4.id)
        log_ratios = []
        for row in timed:
            if row.kernel.family not in (Family.GEMM, Family.ELEMENTWISE):
                continue
            table = calibrated_table(load_efficiencies(), own, L4, row.kernel.precision)
            found = kernel_times([row.kernel], [L4], efficiencies=table, warm_fraction=1.0)
            log_ratios.append(float(np.log(found.time_ns[0, 0] / row.time_ns)))
        assert float(np.median(np.abs(log_ratios))) < 0.08


def test_small_recurrent_layers_teach_a_factor_of_their_own() -> None:
    timed: list[TimedKernel] = []
    with FakeSession() as session:
        for sample in all_samples():
            if sample.family is not Family.RECURRENT:
                continue
            some = sample_kernels(sample, Precision.FP32, session)
            time_ns = kernel_times(some, [L4], warm_fraction=1.0).time_ns[:, 0]
            is_small = [is_in_one_kernel(kernel.variant) for kernel in some]
            assert any(is_small) == (" 64x" in sample.name)
            time_ns[is_small] *= 2
            row = timed_kernel(sample, float(time_ns.sum()), some, L4)
            assert row is not None
            timed.append(row)
    (usual,) = fit_families(timed)
    assert usual.median_error_fraction < 0.05
    (factor,) = fit_factors(timed, calibrated(usual, device=L4.id))
    assert (factor.kind, factor.of) == ("gpu+units", ("small recurrent", "vector fp32"))
    assert factor.log_factor == pytest.approx(np.log(2), abs=0.05)


def measured_step(step: WantedStep, time_ns: float) -> CalibrationStep:
    return CalibrationStep(
        workload=step.workload,
        batch_size=step.batch_size,
        precision=step.precision.value,
        optimizer=step.optimizer,
        compile=step.compile,
        time_ns=time_ns,
        issue_ns=time_ns,
        spread=1.0,
        num_steps=10,
    )


@pytest.mark.slow
def test_steps_of_its_own_tell_what_kernels_one_by_one_do_not() -> None:
    own, host = calibrated(device=L4.id), reference_host()
    # Bound by the device, and by the host.
    wanted = [
        WantedStep(
            workload=f"breakeven:mlp?width={width}&depth=6",
            batch_size=batch,
            precision=NumberFormat.FP32,
            optimizer="sgd",
        )
        for width, batch in ((2048, 4096), (4096, 4096), (32, 8), (64, 16))
    ]
    costs = StepCosts(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        calibrations={L4.id: own},
    )
    traces = trace_cases([case_of(step) for step in wanted])
    times = []
    for step in wanted:
        trace = traces[case_of(step)]
        assert not isinstance(trace, BreakevenError)
        (predicted,) = predict_steps(trace.at(step.batch_size), [L4], host, costs=costs)
        times.append(predicted.estimate.value_ns)
    slowed = [1.4, 1.4, 0.7, 0.7]
    found = fit_steps(
        [measured_step(step, t * by) for step, t, by in zip(wanted, times, slowed, strict=True)],
        own, L4, host,
    )  # fmt: skip
    by_kind: dict[str, float] = {}
    for effect in found:
        by_kind[effect.kind] = by_kind.get(effect.kind, 0.0) + effect.log_factor
    assert by_kind["gpu"] + by_kind["gpu+units"] > 0.2
    assert by_kind["own host"] < -0.1
    # Of steps that the GPU bounds, the host shows in what it took to issue them.
    bound = [measured_step(step, t) for step, t in zip(wanted[:2], times, strict=False)]
    issued = [msgspec.structs.replace(step, issue_ns=0.002 * step.time_ns) for step in bound]

    def own_host(steps: list[CalibrationStep]) -> float:
        return sum(e.log_factor for e in fit_steps(steps, own, L4, host) if "own host" in e.kind)

    assert own_host(issued) < -0.2
    assert own_host(bound) == pytest.approx(0.0, abs=0.02)
    # Compiled steps are kept, and nothing is fitted to them.
    compiled = replace(wanted[0], compile="default")
    assert fit_steps([measured_step(compiled, 1e9)], own, L4, host) == ()


def test_whole_steps_run_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = DeviceTimer(CPU)
    found = time_step(all_steps(is_tiny=True)[0], timer)
    assert found.time_ns > 0
    assert found.num_steps >= 5
    names = [step.name for step in all_steps()]
    assert len(set(names)) == len(names)
    eager = [step for step in all_steps() if step.compile == "none"]
    assert len(eager) == 12
    # None compiled before all that is eager is measured.
    assert list(all_steps()[:12]) == eager


@pytest.mark.parametrize("precision", [*DTYPES])
def test_every_sample_computes_in_its_precisions(precision: Precision) -> None:
    place = Place(CPU, DTYPES[precision])
    asked = GpuRequest(device=CPU, is_tiny=True)
    samples = [sample for sample, its in calibrating.wanted_samples(asked) if its is precision]
    assert len(samples) >= 45
    for sample in samples:
        found = sample.build(place)()
        results = found if isinstance(found, tuple) else (found,)
        computed = [one for one in results if isinstance(one, torch.Tensor)]
        assert computed, sample.name
        for one in computed:
            assert one.dtype is DTYPES[precision], sample.name
            assert torch.isfinite(one).all(), sample.name


def test_samples_have_names_of_their_own_and_kernels_of_their_family() -> None:
    samples = all_samples(is_tiny=True)
    assert len({sample.name for sample in samples}) == len(samples)
    with FakeSession() as session:
        for sample in samples:
            if sample.is_quick:
                found = sample_kernels(sample, sample.precisions[0], session)
                assert sample.family in {kernel.family for kernel in found}, sample.name


def test_copies_are_a_line_and_a_shortest_one() -> None:
    samples = [
        MeasuredSample(
            name=f"copy pinned {size}",
            precision=Precision.FP32,
            time_ns=max(9_000.0, 5_000.0 + size / 10),
            spread=1.0,
            num_calls=10,
        )
        for size in (4_096, 1 << 20, 1 << 23, 1 << 26)
    ]
    (copy,) = fit_copies(samples)
    assert copy.is_pinned
    assert copy.least_ns == 9_000
    assert copy.bytes_per_s == pytest.approx(10e9, rel=0.01)
    assert copy.time_ns(1 << 25) == pytest.approx(5_000 + (1 << 25) / 10, rel=0.02)
    assert copy.time_ns(0) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_is_measured_runs_as_on_cuda() -> None:
    with fake_gpus():
        device = find_gpu("auto")
        assert device == torch.device("cuda", 0)
        machine = describe_machine(device)
        assert machine.gpu == "NVIDIA A100-SXM4-80GB"
        timer = DeviceTimer(device)
        launch = measure_launch(timer)
        assert min(launch.queued_ns, launch.waited_ns, launch.sync_ns, launch.period_ns) > 0
        copies = measure_copies(timer, is_tiny=True)
        assert {copy.name.split()[1] for copy in copies} == {"pageable", "pinned"}
        for sample in all_samples(is_tiny=True):
            if sample.is_quick:
                found = calibrating.time_sample(sample, sample.precisions[0], timer)
                assert found.time_ns > 0, sample.name
        assert time_step(all_steps(is_tiny=True)[0], timer).time_ns > 0
        with pytest.raises(BreakevenError, match="there is no cuda:3"):
            find_gpu("cuda:3")


@pytest.mark.parametrize("name", ["tpu", "", "cpu", "meta", "cuda:x"])
def test_names_of_no_gpu_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no GPU"):
        find_gpu(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_said_to_be_absent() -> None:
    with pytest.raises(BreakevenError, match="torch sees no cuda device here"):
        find_gpu("cuda:0")


def test_sharing_is_a_link_to_an_issue_whose_whole_text_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What Python knows of the user and of the machine's name, from wherever it is taken.
    monkeypatch.setattr(platform, "node", lambda: "janes-laptop")
    monkeypatch.setattr(socket, "gethostname", lambda: "janes-laptop")
    for name in ("USER", "LOGNAME", "HOME"):
        monkeypatch.setenv(name, "/home/jane")
    calibration = msgspec.structs.replace(calibrated(), machine=describe_machine(CPU))
    text = sharing_text(Path("/home/jane/t4.json"), calibration)
    link = next(line for line in text.splitlines() if line.startswith("https://"))
    address, _, query = link.partition("?")
    assert address == f"{ISSUES}/new"
    issue = dict(parse_qsl(query, strict_parsing=True))
    assert issue["title"] == f"Calibration of {calibration.machine.gpu}"
    assert text.endswith(issue["body"])
    assert "attach /home/jane/t4.json" in text
    assert "Attach t4.json here" in issue["body"]
    assert '"torch_version"' in issue["body"]
    # A server refuses much longer addresses.
    assert len(link) < 4_000
    assert "jane" not in issue["body"]


def test_the_issues_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["urls"]["Issues"] == ISSUES


def test_what_a_calibration_was_fitted_to_is_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is fitted again, without its GPU, when the model has changed."""
    (known,) = (one for one in load_calibrations().values() if one.device == "h200-sxm-141gb")
    folder = Path(__file__).parents[3] / "benchmarks" / "gpu"
    monkeypatch.syspath_prepend(str(folder))
    measured = load_script(folder / "again.py", "gpu_again").measured_of(known)
    wanted = {sample_name(sample, precision) for sample in all_samples() for precision in Precision}
    assert set(measured.samples) <= wanted
    assert len(measured.samples) + len(measured.copies) == len(known.samples)
    assert set(map(case_of, measured.steps.values())) <= set(map(case_of, all_steps()))
    assert measured.launch == known.launch

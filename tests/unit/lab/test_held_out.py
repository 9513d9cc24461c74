"""Predictions by what ships, and by calibrations that have not seen the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from breakeven.calibrate.step_fit import StepSample
from breakeven.cost import StepEffects, load_efficiencies, load_step_effects
from breakeven.device import find_device
from breakeven.errors import BreakevenError, WorkloadError
from breakeven.progress import SilentProgress
from breakeven.report import LeaveOut, RowPrediction, Unpredictable
from breakeven.simulate import MultiGpuTable, load_multi_gpu_table
from breakeven.trace import Op, Phase, ScaledTrace, StepCase, StepTrace
from breakeven.validate import MeasuredRow, fingerprint, model_family_of, read_table, traced_rows
from breakeven.validate.traced_rows import Calibration, TracedRows
from factories.accuracy import write_table
from factories.steps import tensor
from lab import held_out
from lab.fit import multi_gpu_document, step_effects_document
from lab.held_out import gpu_of
from lab.multi_gpu import MultiGpuRow, calibrate_on_shared_steps
from lab.step_effects import calibrate_on_steps
from lab.step_parts import RowParts
from lab.validate import predictor_for

DEVICES = ("T4", "V100 SXM2 16GB", "V100 PCIe 32GB", "A100 SXM4 40GB", "RTX 2080 Ti")
WORKLOADS = ("torchvision:resnet18", "torchvision:resnet50", "torchvision:vgg11")


def traced(width: int, batch_size: int) -> StepTrace:
    batch = tensor(64 * batch_size, width, device="cuda:0", storage=1)
    weight = tensor(width, width, device="cuda:0", storage=2)
    product = tensor(64 * batch_size, width, device="cuda:0", storage=3)
    return StepTrace(
        events=tuple(
            event
            for phase in (Phase.FORWARD, Phase.BACKWARD)
            for event in (
                Op(name="aten.mm.default", inputs=(batch, weight), outputs=(product,), phase=phase),
                Op(name="aten.relu.default", inputs=(product,), outputs=(product,), phase=phase),
            )
        ),
        batch_size=batch_size,
        num_parameters=width * width,
    )


@pytest.fixture(autouse=True)
def _traces_without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_up(
        cases: Iterable[StepCase], **_: object
    ) -> dict[StepCase, ScaledTrace | WorkloadError]:
        return {
            case: ScaledTrace(
                traced(256 * (1 + WORKLOADS.index(case.workload)), 2),
                traced(256 * (1 + WORKLOADS.index(case.workload)), 3),
            )
            if case.workload in WORKLOADS
            else WorkloadError("no such model", hint="there are others")
            for case in cases
        }

    monkeypatch.setattr("breakeven.validate.traced_rows.trace_cases", made_up)


def table(tmp_path: Path, *more: Mapping[str, str], num_devices: int = 2) -> list[MeasuredRow]:
    """Return each model on each GPU, alone and on several; every row took a time of its own."""
    cells: list[dict[str, str]] = [
        {
            "workload": workload,
            "device": device,
            "num_devices": str(count),
            "note": ("DDP" if d % 2 else "nn.DataParallel") if count > 1 else "",
            "h2d": "none",
        }
        for workload in WORKLOADS
        for d, device in enumerate(DEVICES)
        for count in range(1, num_devices + 1)
    ]
    rows: list[MeasuredRow] = []
    everything = [*cells, *more]
    for start in range(0, len(everything), 20):
        some = [
            {"value_ms": str(5 + index / 8), **own}
            for index, own in enumerate(everything[start : start + 20], start)
        ]
        rows += read_table(write_table(tmp_path / f"{start}.csv", *some))
    return rows


class Seen:
    """What each fold learned from, and what it was asked to predict with that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.learned_ns: list[set[float]] = []
        self.predicted: list[tuple[set[float], Calibration, set[float]]] = []
        fit, fit_shared, predict = (
            held_out.fit_step_effects,
            held_out.fit_multi_gpu_costs,
            TracedRows.predict,
        )
        learned: set[float] = set()

        def spy_fit(samples: Sequence[StepSample], **given: object) -> StepEffects:
            learned.clear()
            learned.update(sample.measured_ns for sample in samples)
            return fit(samples, **given)  # pyright: ignore[reportArgumentType]

        def spy_fit_shared(rows: Sequence[MultiGpuRow]) -> MultiGpuTable:
            for row in rows:
                learned.update((row.measured_ns, row.measured_single_ns))
            return fit_shared(rows)

        def spy_predict(
            steps: TracedRows, positions: Iterable[int], calibration: Calibration
        ) -> object:
            positions = list(positions)
            values_ns = {steps.rows[position].value_ns for position in positions}
            self.predicted.append((values_ns, calibration, set(learned)))
            return predict(steps, positions, calibration)

        monkeypatch.setattr(held_out, "fit_step_effects", spy_fit)
        monkeypatch.setattr(held_out, "fit_multi_gpu_costs", spy_fit_shared)
        monkeypatch.setattr(TracedRows, "predict", spy_predict)


@pytest.mark.parametrize("protocol", [LeaveOut.GPU, LeaveOut.MODEL])
def test_no_calibration_has_seen_a_row_that_it_predicts(
    protocol: LeaveOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(tmp_path)
    assert len({row.value_ns for row in rows}) == len(rows)
    seen = Seen(monkeypatch)
    outcomes = predictor_for(protocol, progress=SilentProgress()).predict(rows)
    assert all(isinstance(outcome, RowPrediction) for outcome in outcomes)
    assert not any(outcome.is_calibrated_on for outcome in outcomes)
    assert len(seen.predicted) == (4 if protocol is LeaveOut.GPU else 2)
    by_time = {row.value_ns: row for row in rows}
    left_out = (
        (lambda row: gpu_of(find_device(row.device)))
        if protocol is LeaveOut.GPU
        else (lambda row: model_family_of(row.workload))
    )
    for predicted_ns, calibration, learned_ns in seen.predicted:
        assert predicted_ns.isdisjoint(learned_ns)
        # Everything else was learned from, on several GPUs too.
        assert predicted_ns | learned_ns == set(by_time)
        names = {left_out(by_time[value_ns]) for value_ns in predicted_ns}
        assert names.isdisjoint(left_out(by_time[value_ns]) for value_ns in learned_ns)
        if protocol is LeaveOut.GPU:
            gpus = {gpu_of(find_device(d.device)) for d in calibration.efficiencies.devices}
            assert names.isdisjoint(gpus)
        else:
            assert calibration.efficiencies == load_efficiencies()
        assert calibration.multi_gpu != load_multi_gpu_table()
        assert calibration.effects.spread == load_step_effects().spread


def test_steps_of_others_are_taken_apart_without_the_benchmarks_of_the_gpu_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[set[str]] = []
    take_apart = RowParts.samples

    def spy(parts: RowParts, efficiencies, positions=None):
        used.append({gpu_of(find_device(entry.device)) for entry in efficiencies.devices})
        return take_apart(parts, efficiencies, positions)

    monkeypatch.setattr(RowParts, "samples", spy)
    predictor_for(LeaveOut.GPU, progress=SilentProgress()).predict(table(tmp_path, num_devices=1))
    whole, *folds = used
    # Of the RTX 2080 Ti no benchmarks are known.
    assert [whole - kept for kept in folds] == [{"A100"}, {"T4"}, {"V100"}]


def test_benchmarks_of_the_source_left_out_are_left_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(tmp_path, num_devices=1)
    rows = [replace(row, source="neusight" if row.device == "T4" else "lab") for row in rows]
    seen = Seen(monkeypatch)
    predictor_for(LeaveOut.SOURCE, progress=SilentProgress()).predict(rows)
    benchmarks = {}
    for predicted_ns, calibration, _ in seen.predicted:
        (source,) = {row.source for row in rows if row.value_ns in predicted_ns}
        benchmarks[source] = {
            word.split()[0]
            for entry in calibration.efficiencies.devices
            for word in entry.source.split("; ")
        }
    assert "neusight" not in benchmarks["neusight"]
    assert benchmarks["lab"] >= {"neusight", "deepbench"}


@pytest.mark.parametrize("protocol", [LeaveOut.GPU, LeaveOut.MODEL])
def test_rows_that_only_teach_teach_as_much_as_rows_that_are_predicted_too(
    protocol: LeaveOut, tmp_path: Path
) -> None:
    rows = table(tmp_path)
    everything = predictor_for(protocol, progress=SilentProgress()).predict(rows)
    first = predictor_for(protocol, progress=SilentProgress()).predict(rows[:3], training=rows[3:])
    assert first == everything[:3]
    untaught = predictor_for(protocol, progress=SilentProgress()).predict(rows[:3])
    assert untaught != first


def test_what_cannot_be_learned_is_not_predicted(tmp_path: Path) -> None:
    rows = read_table(
        write_table(
            tmp_path / "t.csv",
            {"workload": WORKLOADS[0], "device": "T4"},
            {"workload": WORKLOADS[0], "device": "A100 SXM4 40GB", "num_devices": "2"},
            {"workload": "torchvision:none", "device": "A100 SXM4 40GB"},
        )
    )
    alone, shared, unknown = predictor_for(LeaveOut.GPU, progress=SilentProgress()).predict(rows)
    assert isinstance(alone, RowPrediction)  # by benchmarks alone
    assert isinstance(shared, Unpredictable)
    assert shared.code == "not-calibrated"
    assert "ddp" in shared.reason
    assert unknown == Unpredictable(code="no-trace", reason="no such model; there are others")


def test_a_compiled_step_is_predicted_as_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    modes = [{"compile": mode} for mode in ("none", "default", "default+cudagraphs", "aot_eager")]
    write_table(path, *({"workload": WORKLOADS[0], **mode} for mode in modes))
    outcomes = predictor_for(LeaveOut.NONE, progress=SilentProgress()).predict(read_table(path))
    *predicted, refused = outcomes
    times = [row.estimate.value_ns for row in predicted if isinstance(row, RowPrediction)]
    assert len(times) == 3
    eager_ns, compiled_ns, graph_ns = times
    # Four small kernels take less than to enter two compiled graphs.
    assert eager_ns < compiled_ns
    assert graph_ns < compiled_ns
    assert isinstance(refused, Unpredictable)
    assert refused.code == "compiled"
    assert "aot_eager" in refused.reason


def test_rows_that_what_ships_was_made_from_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(tmp_path, {"workload": "torchvision:none"})
    seen = (rows[0], rows[1], rows[-1])
    assert (rows[0].num_devices, rows[1].num_devices) == (1, 2)
    effects = msgspec.structs.replace(
        load_step_effects(), calibrated_on=(fingerprint(rows[0]), fingerprint(rows[-1]))
    )
    shared = msgspec.structs.replace(load_multi_gpu_table(), calibrated_on=(fingerprint(rows[1]),))
    monkeypatch.setattr(traced_rows, "load_step_effects", lambda: effects)
    monkeypatch.setattr(traced_rows, "load_multi_gpu_table", lambda: shared)
    outcomes = predictor_for(LeaveOut.NONE, progress=SilentProgress()).predict(rows)
    for row, outcome in zip(rows[:-1], outcomes[:-1], strict=True):
        assert isinstance(outcome, RowPrediction)
        assert outcome.is_calibrated_on == (row in seen)
    assert isinstance(outcomes[-1], Unpredictable)


def test_a_table_calibrates_effects_with_their_spread_and_fingerprints(tmp_path: Path) -> None:
    rows = table(tmp_path, {"device": "No such GPU"}, {"workload": "torchvision:none"})
    effects = calibrate_on_steps(rows, command="make it", progress=SilentProgress())
    used = [row for row in rows[:-2] if row.num_devices == 1]
    assert effects.calibrated_on == tuple(sorted(fingerprint(row) for row in used))
    assert effects.provenance == (
        "Fitted by `make it` to 15 measured steps of published tables: lab (15)."
    )
    assert {effect.of for effect in effects.effects if effect.kind == "device"} == {
        (find_device(name).id,) for name in DEVICES
    }
    assert effects.spread.calibrated.compute > 0
    document = step_effects_document(effects)
    assert msgspec.json.decode(document, type=StepEffects) == effects
    lines = document.decode().splitlines()
    assert sum(line.startswith('  {"kind":') for line in lines) == len(effects.effects)
    with pytest.raises(BreakevenError, match="no step on one GPU"):
        calibrate_on_steps(rows[-2:-1], command="make it", progress=SilentProgress())


def test_a_table_calibrates_costs_of_several_gpus(tmp_path: Path) -> None:
    rows = table(tmp_path, num_devices=3)
    shared = calibrate_on_shared_steps(rows, command="make it", progress=SilentProgress())
    used = [row for row in rows if row.num_devices > 1]
    assert shared.calibrated_on == tuple(sorted(fingerprint(row) for row in used))
    assert sum(error.num_rows for error in shared.held_out) == 2 * len(used)
    assert msgspec.json.decode(multi_gpu_document(shared), type=MultiGpuTable) == shared
    alone = [row for row in rows if row.num_devices == 1 or "DDP" in row.note]
    with pytest.raises(BreakevenError, match="on several GPUs by data_parallel"):
        calibrate_on_shared_steps(alone, command="make it", progress=SilentProgress())

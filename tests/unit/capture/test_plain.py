"""What is told of timed steps besides their time; and the steps after them on fewer threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from breakeven.capture.messages import LoaderUse, PlainRun
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.capture.sessions.in_process import _repeat, _request
from breakeven.capture.sessions.interleaved_runs import Turns
from breakeven.capture.sessions.plain import FeedingLoader, PlainSession, caveats_of_run
from breakeven.capture.sessions.thread_trials import ThreadTrials
from breakeven.capture.sessions.trained import Trained
from breakeven.errors import has_caveat
from breakeven.measure import EnergyMeter
from breakeven.timing import EMULATED_ON_CPU, TurnKind
from breakeven.trace import Configuration

USE = LoaderUse(batch_size=8, batches_per_step=1, num_samples=64, num_workers=0, wait_ns=5.0)


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({}, []),
        ({"load_fraction": 0.5}, ["busy-beside"]),
        ({"load_fraction": 0.5, "is_disturbed": True}, ["busy-machine"]),
        ({"num_threads": 4}, ["cpu-quota", "own-threads"]),
        ({"cpu_precisions": ("fp16",)}, ["emulated-on-cpu"]),
        ({"cpu_precisions": ("fp32", "fp16")}, ["emulated-on-cpu"]),
        ({"cpu_precisions": ("bf16", "fp32")}, []),
        ({"ignores_compile": True, "ignores_graphs": True}, ["compile-ignored", "graph-eager"]),
    ],
)
def test_there_is_a_caveat_for_each_reason(
    changed: dict[str, Any], codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breakeven.capture.sessions.plain.cpu_quota", lambda: 2.0)
    hardware = "breakeven.capture.sessions.plain.has_half_hardware"
    monkeypatch.setattr(hardware, lambda precision: precision == "bf16")
    request = replace(_request("made up"), configuration=Configuration(num_threads=2))
    told = {
        "load_fraction": 0.0, "is_disturbed": False, "num_threads": 2,
        "ignores_compile": False, "ignores_graphs": False,
        "cpu_precisions": ("fp32",), **changed,
    }  # fmt: skip
    assert [caveat.code for caveat in caveats_of_run(request, **told)] == codes


def test_the_loader_that_feeds_most_steps_is_the_typical_one() -> None:
    first, other = replace(USE, wait_ns=900.0), replace(USE, num_workers=2, wait_ns=7.0)
    uses = [first, USE, other, replace(USE, wait_ns=6.0)]
    # The wait of the first is left out; three of five steps took a batch of this loader.
    expected = replace(USE, wait_ns=6.0, alone_ns=3.0, taking_ns=1.0, fetching_fraction=0.6)
    feeding = FeedingLoader()
    assert feeding.use(5) is None
    assert not feeding.has_workers
    feeding.uses += uses
    feeding.alone_ns, feeding.taking_ns = 3.0, 1.0
    assert feeding.use(5) == expected
    assert feeding.has_workers


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        (("cpu", torch.bfloat16), "bf16"),
        (("cpu", torch.float16), "fp16"),
        (("cpu", torch.bfloat16, False), "fp32"),
        (("cuda", torch.bfloat16), "fp32"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_a_region_of_autocast_is_the_arithmetic_of_what_it_reaches(
    region: tuple[Any, ...], expected: str
) -> None:
    trained = Trained(OptimizerHooks(lambda _: None), "")
    with trained, torch.autocast(*region):
        assert trained.precision() == expected
    with torch.autocast("cpu", torch.float16):  # not watched any more
        assert trained.precision() == expected


@pytest.mark.parametrize("has_hardware", [False, True])
@pytest.mark.parametrize("has_grad", [False, True])
def test_a_run_says_that_layers_are_emulated_which_it_does_not_train(
    *, has_hardware: bool, has_grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = "breakeven.capture.sessions.plain.has_half_hardware"
    monkeypatch.setattr(hardware, lambda _: has_hardware)
    session = PlainSession(_request("made up", 0.01), lambda: None)
    first, frozen = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).bfloat16().requires_grad_(False)
    optimizer = torch.optim.SGD(first.parameters())
    with session:
        for _ in range(60):
            optimizer.zero_grad()
            x = torch.ones(4, 8)
            layers = (first, frozen) if has_grad else (frozen, first)
            for layer in layers:
                x = layer(x.to(layer.weight.dtype))
            x.float().sum().backward()
            optimizer.step()
            # The first step is looked at, and no other one slowed down.
            assert not torch.nn.modules.module._global_forward_pre_hooks
        run = session.result()
    assert run is not None
    assert run.precision == "fp32"
    assert has_caveat(run.caveats, EMULATED_ON_CPU) is not has_hardware


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_layers_of_a_script_are_called_as_they_are() -> None:
    class Own(torch.nn.Linear):
        def parameters(self) -> Any:
            pytest.fail("it is the script's, not to be asked")

    session = PlainSession(_request("made up", 0.01), lambda: None)
    with session:
        layers = torch.nn.LazyLinear(4), Own(4, 4), torch.jit.script(torch.nn.Linear(4, 1))
        x = torch.ones(2, 8)
        for layer in layers:
            x = layer(x)
        x.sum().backward()
    assert [type(layer.weight.grad) for layer in layers] == [torch.Tensor] * 3


def test_no_hook_stays_where_no_backward_pass_was_seen() -> None:
    with PlainSession(_request("made up", 0.01), lambda: None):
        assert torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


MS = 1_000_000


class HeldUp(IterableDataset[torch.Tensor]):
    """Takes 1 ms for a sample on one thread, and 8 ms on more, as beside other work."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(0.001 if torch.get_num_threads() == 1 else 0.008)
            yield torch.ones(4)


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.timing
@pytest.mark.usefixtures("_two_threads")
def test_each_number_of_threads_has_its_own_time_for_batches() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    batches: list[Iterator[torch.Tensor]] = []

    def step() -> None:
        if not batches:
            batches.append(iter(DataLoader(HeldUp(), batch_size=1)))
        optimizer.zero_grad()
        model(next(batches[0])).sum().backward()
        optimizer.step()

    run = _repeat(step, PlainSession, replace(_request("step", 0.1), tries_threads=True))
    assert isinstance(run, PlainRun)
    assert run.loader is not None
    assert run.loader.wait_ns > 8 * MS
    (trial,) = run.trials
    assert trial.num_threads == 1
    assert trial.loader_wait_ns is not None
    assert MS < trial.loader_wait_ns < 8 * MS


def test_the_power_of_the_steps_comes_with_them_and_with_each_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "name").write_text("package-0")
    (zone / "max_energy_range_uj").write_text("1000000000000")
    energy = zone / "energy_uj"
    energy.write_text("0")
    meter = partial(EnergyMeter, folder=tmp_path)
    monkeypatch.setattr("breakeven.capture.sessions.plain.EnergyMeter", meter)
    monkeypatch.setattr("breakeven.capture.sessions.thread_trials.EnergyMeter", meter)
    monkeypatch.setattr(ThreadTrials, "counts_to_try", lambda *_: [1])
    joules = [0]

    def step() -> None:
        joules[0] += 1
        energy.write_text(str(joules[0] * 10**6))
        time.sleep(0.005)

    run = _repeat(step, PlainSession, replace(_request("step", 0.05), tries_threads=True))
    assert isinstance(run, PlainRun)
    (trial,) = run.trials
    for power in (run.power, trial.power):
        assert power is not None
        (part,) = power.parts
        assert part.counter == "RAPL package-0"
        # A joule in at least 5 ms.
        assert 0 < part.watts <= 200


def test_steps_that_take_turns_have_no_power(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[EnergyMeter] = []
    monkeypatch.setattr(EnergyMeter, "stop", stopped.append)
    turns = Turns(-1, lambda _: None, TurnKind.SHORT)
    monkeypatch.setattr(turns, "wait", lambda: None)
    monkeypatch.setattr(turns, "end_step", lambda *_: None)
    kind = partial(PlainSession, turns=turns)
    run = _repeat(lambda: time.sleep(0.001), kind, _request("step", 0.02))  # type: ignore[arg-type]
    assert isinstance(run, PlainRun)
    assert run.power is None
    assert stopped == []

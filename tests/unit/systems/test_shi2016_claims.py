"""When the order of devices and the threads agree with the published ones."""

from __future__ import annotations

import pytest

from breakeven.errors import Caveat
from breakeven.systems.published import networks
from breakeven.systems.shi2016_claims import (
    claims,
    frameworks_in_order,
    order_outcome,
    order_table,
    our_order,
    published_order,
    thread_outcome,
    thread_table,
)
from breakeven.timing import BUSY_MACHINE
from breakeven.verdict import ClaimOutcome
from factories.networks import estimate, network_runs


@pytest.mark.parametrize("network", networks())
def test_the_published_order_is_the_same_for_all_networks(network: str) -> None:
    assert published_order(network) == ("GTX 1080", "GTX 980", "K80", "CPU")


def test_tensorflow_has_another_order_for_one_network() -> None:
    # 0.227 s on the GTX 980, 0.317 s on the GTX 1080.
    assert frameworks_in_order("AlexNet-R") == (4, 5)
    assert frameworks_in_order("LSTM") == (4, 4)


def test_the_order_agrees() -> None:
    runs = network_runs()
    assert our_order(runs.today, runs.best_cpu) == ("GTX 1080", "GTX 980", "K80", "CPU")
    assert order_outcome(runs) is ClaimOutcome.AGREES


def test_places_changed_within_the_intervals_are_open() -> None:
    runs = network_runs(gpus={"GTX 980": 0.029, "GTX 1080": 0.03, "K80": 0.07})
    assert order_outcome(runs) is ClaimOutcome.OPEN


def test_places_changed_beyond_the_intervals_disagree() -> None:
    runs = network_runs(gpus={"GTX 980": 0.02, "GTX 1080": 0.03, "K80": 0.07})
    assert order_outcome(runs) is ClaimOutcome.DISAGREES


def test_a_cpu_that_beats_a_gpu_disagrees() -> None:
    assert order_outcome(network_runs(cpu={1: 0.05})) is ClaimOutcome.DISAGREES


def test_the_software_of_2016_must_agree_too() -> None:
    runs = network_runs(of_2016={"GTX 980": 0.01, "GTX 1080": 0.03, "K80": 0.07})
    assert order_outcome(runs) is ClaimOutcome.DISAGREES


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [
        ({1: 2.0, 2: 1.0, 4: 0.5}, ClaimOutcome.AGREES),
        ({1: 2.0, 2: 1.9}, ClaimOutcome.OPEN),  # intervals of ±10 % overlap
        ({1: 2.0, 2: 1.0, 4: 1.5}, ClaimOutcome.DISAGREES),
        ({1: 2.0}, ClaimOutcome.OPEN),
    ],
)
def test_threads(seconds: dict[int, float], outcome: ClaimOutcome) -> None:
    assert thread_outcome({n: estimate(time) for n, time in seconds.items()}) is outcome


def test_claims_of_networks_that_agree() -> None:
    order, threads = claims([network_runs(), network_runs("LSTM")])
    assert order.outcome is threads.outcome is ClaimOutcome.AGREES
    assert order.ours == "so in 2 of 2 networks"
    # FCN-S and LSTM: MXNet has no GTX 980 for the first, Caffe nothing for the second.
    assert "9 of 9" in order.published
    assert threads.ours == "so in 2 of 2 networks, up to 2 threads"
    assert "Not so" not in order.because + threads.because


def test_one_network_that_disagrees_makes_the_claim_disagree_and_is_named() -> None:
    order, threads = claims(
        [network_runs(cpu={1: 0.05, 2: 0.2}), network_runs("LSTM"), network_runs("FCN-R")]
    )
    assert order.outcome is threads.outcome is ClaimOutcome.DISAGREES
    assert order.ours == "so in 2 of 3 networks"
    assert "Not so for FCN-S, " in order.because
    assert "Not so for FCN-S, " in threads.because


def test_a_cpu_of_one_core_leaves_the_threads_open() -> None:
    _, threads = claims([network_runs(cpu={1: 2.0})])
    assert threads.outcome is ClaimOutcome.OPEN
    assert "one core" in threads.because
    assert "interval" not in threads.because


def test_tables_have_a_row_for_each_network_and_fit_their_columns() -> None:
    all_runs = [network_runs(name) for name in networks()]
    for table in (order_table(all_runs), thread_table(all_runs)):
        assert [row.cells[0] for row in table.rows] == list(networks())
        assert all(len(row.cells) == len(table.columns) for row in table.rows)


def test_the_thread_table_shows_both_gains() -> None:
    (row,) = thread_table([network_runs("FCN-R", cpu={1: 2.0, 2: 1.0, 4: 0.5})]).rows
    # Of 10 curves, from 1.31 (Caffe, server) to 1.90 (CNTK, desktop).
    assert row.cells[1:] == ("1.3 to 1.9×", "10 of 10", "2× (1 → 2), 2× (2 → 4)", "yes")


def test_a_busy_machine_is_named_beside_the_threads() -> None:
    busy = Caveat(code=BUSY_MACHINE, message="other processes used this machine")
    _, threads = claims([network_runs(cpu={1: 2.0, 2: 3.0}, caveats=(busy,))])
    assert threads.outcome is ClaimOutcome.DISAGREES
    assert "Other processes" in threads.because
    _, threads = claims([network_runs(cpu={1: 2.0, 2: 3.0})])
    assert "Other processes" not in threads.because

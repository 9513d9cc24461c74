from __future__ import annotations

import msgspec
import pytest

from breakeven.systems import Bench
from breakeven.systems.matvec import Calls, Product, _fastest, _product, floor_claim
from breakeven.systems.published import MATVEC_TIMES
from breakeven.verdict import ClaimOutcome


def _calls(num_rows: int, num_columns: int, call_ns: float, num_threads: int = 1) -> Calls:
    return Calls(
        num_rows=num_rows,
        num_columns=num_columns,
        num_threads=num_threads,
        calls_ns=(call_ns, call_ns * 1.1, call_ns * 0.9),
    )


@pytest.fixture(scope="module")
def products() -> list[Product]:
    sizes = ((100, 3), (100, 100), (1_000, 1_000), (10_000, 10_000))
    with Bench() as bench:
        return [_product(bench, _calls(*size, 1e3)) for size in sizes]


def test_faster_number_of_threads_is_taken_for_each_size() -> None:
    found = _fastest(
        [_calls(9, 9, 5e3, 1), _calls(9, 9, 4e3, 2), _calls(9, 3, 1e3, 1), _calls(9, 3, 2e3, 2)]
    )
    assert [(c.num_columns, c.num_threads) for c in found] == [(3, 1), (9, 2)]


def test_small_products_take_the_floor_and_large_ones_their_work(products: list[Product]) -> None:
    for column, _ in enumerate(products[0].predictions):
        calls = [product.predictions[column].estimate.value_ns for product in products]
        kernels = [product.kernels_ns[column] for product in products]
        assert calls[0] == min(calls)
        assert calls[1] < 1.5 * calls[0]
        assert calls[2] < 5 * calls[0]
        assert kernels[0] < 0.5 * calls[0]
        assert calls[3] > 10 * calls[0]
        # 400 MB from memory, at no more than the datasheet's bandwidth.
        device = products[3].predictions[column].device
        assert kernels[3] >= 4e8 / device.memory_bytes_per_s * 1e9


def test_claim_follows_the_predictions(products: list[Product]) -> None:
    assert floor_claim(products).outcome is ClaimOutcome.AGREES
    with_work = [products[0], products[3]]
    assert floor_claim(with_work).outcome is ClaimOutcome.DISAGREES


def test_published_figures_are_those_of_the_source() -> None:
    found = {(t.num_rows, t.num_columns): (t.cpu_ns, t.gpu_ns) for t in MATVEC_TIMES}
    assert found == {(100, 3): (251.695, 12_212.0), (100, 100): (56_299.0, 12_499.0)}


def test_line_of_the_script_is_read() -> None:
    line = '{"num_rows": 2, "num_columns": 3, "num_threads": 1, "calls_ns": [10.5, 11.0, 9.0]}'
    estimate = msgspec.json.decode(line, type=Calls).estimate
    assert estimate.low_ns <= estimate.value_ns <= estimate.high_ns
    assert estimate.value_ns == pytest.approx(10, abs=1)

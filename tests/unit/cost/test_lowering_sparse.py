"""Sparse tensors: described by their values, costed by what is stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from breakeven.capture.record.device_map import HOST, DeviceMap, bytes_of, sparse_values
from breakeven.capture.record.operators import describe
from breakeven.cost import Kernel, lower
from breakeven.trace import Op, Settings, TensorSpec

ROWS, COLUMNS, STORED = 100_000, 64, 256


def dense(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0")


def stored(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0", layout="sparse")


def only_kernel(name: str, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec) -> Kernel:
    lowering = lower(Op(name=name, inputs=inputs, outputs=outputs), Settings())
    assert lowering.caveat is not None
    assert lowering.caveat.code == "sparse-op"
    (kernel,) = lowering.kernels
    return kernel


# torch says so of every such tensor.
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("compress", ["to_sparse_coo", "to_sparse_csr"])
def test_a_sparse_tensor_is_described_by_its_values(compress: str) -> None:
    devices = DeviceMap(HOST)
    tensor = getattr(torch.eye(50), compress)()

    spec = describe(tensor, devices)

    assert (spec.shape, spec.layout) == ((50,), "sparse")
    assert spec.storage == describe(tensor.detach().values(), devices).storage


def test_bytes_of_a_sparse_tensor_are_those_of_values_and_positions() -> None:
    assert bytes_of(torch.zeros(50, 50)) == 50 * 50 * 4
    assert bytes_of(torch.eye(50).to_sparse()) == 50 * (4 + 2 * 8)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_look_at_the_values_is_not_recorded() -> None:
    tensors = (torch.eye(50).to_sparse(), torch.eye(50).to_sparse_csr())
    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Recorder():
        assert all(sparse_values(tensor) is not None for tensor in tensors)
    assert seen == []


def test_rows_of_a_sparse_gradient_are_its_values() -> None:
    table = torch.nn.Embedding(1000, 8, sparse=True)
    table(torch.tensor([3, 5, 3])).sum().backward()
    assert table.weight.grad is not None
    assert describe(table.weight.grad, DeviceMap(HOST)).shape == (3, 8)


def test_a_product_reads_a_row_per_stored_value() -> None:
    result = dense(ROWS, COLUMNS)
    kernel = only_kernel("aten.mm.default", (stored(STORED), dense(ROWS, COLUMNS)), result)

    assert kernel.flop == 2 * STORED * COLUMNS
    assert STORED * COLUMNS * 4 < kernel.read_bytes < 2 * STORED * COLUMNS * 4
    assert kernel.write_bytes == result.num_bytes


def test_a_dense_matrix_by_a_sparse_one_reads_a_column_per_stored_value() -> None:
    """A layer with a sparse weight and a batch of 64."""
    batch, result = dense(COLUMNS, ROWS), dense(COLUMNS, 7)
    kernel = only_kernel("aten.addmm.default", (dense(7), batch, stored(STORED)), result)
    assert kernel.flop == 2 * STORED * COLUMNS


def test_what_is_added_to_a_sparse_product_is_read_in_full() -> None:
    added, operands = dense(ROWS, COLUMNS), (stored(STORED), dense(ROWS, COLUMNS))
    product = only_kernel("aten.mm.default", operands, added)
    kernel = only_kernel("aten.addmm.default", (added, *operands), added)
    assert kernel.read_bytes == product.read_bytes + added.num_bytes


@pytest.mark.parametrize(
    ("name", "has_sparse_result"), [("aten.add_.Tensor", False), ("aten.sparse_mask.default", True)]
)
def test_a_dense_tensor_is_touched_only_where_values_are_stored(
    name: str, *, has_sparse_result: bool
) -> None:
    table, rows = dense(ROWS, COLUMNS), stored(STORED, COLUMNS)
    kernel = only_kernel(name, (table, rows), rows if has_sparse_result else table)
    assert kernel.read_bytes + kernel.write_bytes < 5 * rows.num_bytes


def test_a_new_dense_sum_is_written_in_full() -> None:
    table, rows = dense(ROWS, COLUMNS), stored(STORED, COLUMNS)
    kernel = only_kernel("aten.add.Tensor", (table, rows), table)
    assert kernel.read_bytes >= table.num_bytes
    assert kernel.write_bytes == table.num_bytes


def test_a_dense_tensor_is_searched_in_full_for_what_to_store() -> None:
    table, rows = dense(ROWS, COLUMNS), stored(STORED, COLUMNS)
    kernel = only_kernel("aten._to_sparse_csr.default", (table,), rows)
    assert kernel.read_bytes >= table.num_bytes


def test_a_dense_copy_is_written_in_full() -> None:
    kernel = only_kernel("aten._to_dense.default", (stored(STORED, COLUMNS),), dense(ROWS, COLUMNS))
    assert kernel.write_bytes == ROWS * COLUMNS * 4


def test_the_sparse_gradient_of_bags_is_the_rows_of_their_gradient() -> None:
    positions = TensorSpec(shape=(STORED,), dtype="int64", device="cuda:0")
    rows = stored(STORED, COLUMNS)
    kernel = only_kernel(
        "aten._embedding_bag_backward.default", (dense(8, COLUMNS), positions), rows
    )
    assert kernel.write_bytes == rows.num_bytes


def test_making_one_of_positions_and_values_runs_nothing() -> None:
    op = Op(
        name="aten._sparse_coo_tensor_with_dims_and_tensors.default",
        inputs=(dense(1, STORED), dense(STORED, COLUMNS)),
        outputs=(stored(STORED, COLUMNS),),
    )
    assert lower(op, Settings()).kernels == ()

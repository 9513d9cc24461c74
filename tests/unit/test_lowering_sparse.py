"""Sparse tensors: described by their values, costed by what is stored."""

from __future__ import annotations

import pytest
import torch

from breakeven.capture._device_map import HOST, DeviceMap
from breakeven.capture._eager_tensor import describe
from breakeven.cost import Kernel, lower
from breakeven.trace import Op, Settings, TensorSpec

ROWS, COLUMNS, STORED = 100_000, 64, 256


def dense(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0")


def stored(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0", layout="sparse")


def only_kernel(name: str, inputs: tuple[TensorSpec, ...], *outputs: TensorSpec) -> Kernel:
    lowering = lower(Op(name=name, inputs=inputs, outputs=outputs), Settings())
    assert lowering.caveat is None
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


def test_what_is_added_to_a_sparse_product_is_read_in_full() -> None:
    added, operands = dense(ROWS, COLUMNS), (stored(STORED), dense(ROWS, COLUMNS))
    product = only_kernel("aten.mm.default", operands, added)
    kernel = only_kernel("aten.addmm.default", (added, *operands), added)
    assert kernel.read_bytes == product.read_bytes + added.num_bytes


@pytest.mark.parametrize("name", ["aten.add_.Tensor", "aten.sparse_mask.default"])
def test_a_dense_tensor_is_touched_only_where_values_are_stored(name: str) -> None:
    table, rows = dense(ROWS, COLUMNS), stored(STORED, COLUMNS)
    kernel = only_kernel(name, (table, rows), table)
    assert kernel.read_bytes + kernel.write_bytes < 5 * rows.num_bytes


def test_a_dense_copy_is_written_in_full() -> None:
    kernel = only_kernel("aten._to_dense.default", (stored(STORED, COLUMNS),), dense(ROWS, COLUMNS))
    assert kernel.write_bytes == ROWS * COLUMNS * 4


def test_making_one_of_positions_and_values_runs_nothing() -> None:
    op = Op(
        name="aten._sparse_coo_tensor_with_dims_and_tensors.default",
        inputs=(dense(1, STORED), dense(STORED, COLUMNS)),
        outputs=(stored(STORED, COLUMNS),),
    )
    assert lower(op, Settings()).kernels == ()

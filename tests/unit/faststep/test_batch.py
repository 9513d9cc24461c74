"""Whole steps with a sparse matrix in the batch, such as a graph's: as stock steps, or refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from faststep import FastStepError, fast_step
from faststep.fast import FastStep

NODES, WIDTH = 9, 4


def make_graph(num_edges: int = 30, *, is_coalesced: bool = True) -> Tensor:
    """Return a matrix that has some places twice where it is not coalesced."""
    graph = torch.sparse_coo_tensor(
        torch.randint(0, NODES, (2, num_edges)),
        torch.rand(num_edges),
        (NODES, NODES),
        check_invariants=True,
    )
    return graph.coalesce() if is_coalesced else graph


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(WIDTH, 6) / 2)
        self.second = nn.Parameter(torch.randn(6, 3) / 2)

    def forward(self, graph: Tensor, features: Tensor) -> Tensor:
        hidden = torch.relu(torch.spmm(graph, features @ self.first))
        return torch.sparse.mm(graph, hidden @ self.second) + graph @ features[:, :3]


def make_step(model: nn.Module) -> FastStep:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return fast_step(model, nn.MSELoss(), optimizer, engine="generated")


@pytest.mark.parametrize("is_coalesced", [True, False])
def test_steps_on_a_graph_are_the_stock_ones(is_coalesced: bool) -> None:
    stock, model = GraphNet(), GraphNet()
    model.load_state_dict(copy.deepcopy(stock.state_dict()))
    optimizer = torch.optim.Adam(stock.parameters(), lr=0.01)
    step = make_step(model)
    features, targets = torch.randn(NODES, WIDTH), torch.randn(NODES, 3)
    graph = make_graph(is_coalesced=is_coalesced)
    graphs = [graph, graph, graph, graph * 2, make_graph(20), graph * 3]  # the same edges, others
    for one in graphs:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(stock(one, features), targets)
        loss.backward()
        optimizer.step()
        assert step((one, features), targets).item() == pytest.approx(loss.item(), rel=1e-5)
    assert step.engine == "generated C"
    for param, expected in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(param, expected)


class Weighted(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(NODES, 3))
        self._kind = kind

    def forward(self, graph: Tensor) -> Tensor:
        if self._kind == "transposed":
            return graph.t() @ self.weight
        if self._kind == "scaled":
            return torch.sparse.mm(torch.mul(graph, 2.0), self.weight)
        return torch.mv(graph, self.weight[:, 0])


@pytest.mark.parametrize("kind", ["transposed", "scaled", "vector"])
def test_what_is_not_covered_of_a_sparse_tensor_is_refused_by_name(kind: str) -> None:
    model = Weighted(kind)
    step = make_step(model)
    graph, targets = make_graph(), torch.zeros(NODES, 3)[:, : 1 if kind == "vector" else 3]
    targets = targets.flatten() if kind == "vector" else targets
    step(graph, targets)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(FastStepError, match=r"of a sparse tensor is not covered"):
        step(graph, targets)
    torch.testing.assert_close(model.state_dict(), before)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_other_sparse_tensors_are_refused() -> None:
    step = make_step(Weighted("scaled"))
    for graph in (make_graph().to_sparse_csr(), make_graph().requires_grad_()):
        with pytest.raises(FastStepError, match="a tensor of the batch is sparse"):
            step(graph, torch.zeros(NODES, 3))


class Multiplied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(NODES, 3))

    def forward(self, graph: Tensor) -> Tensor:
        return graph @ self.weight


def test_a_sparse_matrix_in_place_of_a_dense_one_is_noticed() -> None:
    """The fast path of a dense batch must not read the memory of a sparse one."""
    model = Multiplied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = fast_step(model, nn.MSELoss(), optimizer, engine="generated")
    graph, targets = make_graph(), torch.randn(NODES, 3)
    expected = nn.functional.mse_loss(graph @ model.weight, targets).item()
    for _ in range(4):
        assert step(graph.to_dense(), targets).item() == pytest.approx(expected, rel=1e-5)
    for _ in range(6):
        assert step(graph, targets).item() == pytest.approx(expected, rel=1e-5)
        assert step(graph.to_dense(), targets).item() == pytest.approx(expected, rel=1e-5)


def test_samples_of_a_sparse_tensor_are_refused() -> None:
    step = make_step(Multiplied())
    with pytest.raises(FastStepError, match="samples cannot be taken from a sparse tensor"):
        step.run(make_graph(), torch.zeros(NODES, 3), torch.zeros(2, 3, dtype=torch.int64))

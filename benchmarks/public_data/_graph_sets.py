"""Graph data sets in the raw files that torch_geometric reads."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from public_data._registry import kind


@kind
def planetoid(
    to: Path,
    *,
    name: str = "cora",
    num_nodes: int = 2708,
    num_features: int = 1433,
    num_classes: int = 7,
    num_edges: int = 5429,
) -> None:
    """Write the eight files ``ind.NAME.*`` of a citation graph to a folder."""
    from scipy.sparse import csr_matrix

    to.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    features = csr_matrix((random.random((num_nodes, num_features)) < 0.012).astype(np.float32))
    classes = np.eye(num_classes, dtype=np.int32)[random.integers(0, num_classes, num_nodes)]
    num_labelled, num_tested = 20 * num_classes, 1000
    kept = num_nodes - num_tested
    graph: dict[int, list[int]] = {node: [] for node in range(num_nodes)}
    for first, second in random.integers(0, num_nodes, (num_edges, 2)).tolist():
        graph[first].append(second)
        graph[second].append(first)
    parts = {
        "x": features[:num_labelled],
        "y": classes[:num_labelled],
        "allx": features[:kept],
        "ally": classes[:kept],
        "tx": features[kept:],
        "ty": classes[kept:],
        "graph": graph,
    }
    for part, value in parts.items():
        (to / f"ind.{name}.{part}").write_bytes(pickle.dumps(value))
    tested = random.permutation(np.arange(kept, num_nodes))
    (to / f"ind.{name}.test.index").write_text("\n".join(map(str, tested.tolist())) + "\n")


@kind
def tu_dataset(
    to: Path,
    *,
    name: str,
    num_graphs: int = 188,
    num_nodes: int = 18,
    num_classes: int = 2,
    num_node_labels: int = 7,
) -> None:
    """Write small graphs, their classes and their nodes' labels as TU Dortmund's text files."""
    to.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    sizes = random.integers(num_nodes // 2, 3 * num_nodes // 2, num_graphs)
    starts = np.cumsum(sizes) - sizes
    edges = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        ring = [(start + node, start + (node + 1) % size) for node in range(size)]
        edges += ring + [(second, first) for first, second in ring]
    columns = {
        "A": [f"{first + 1}, {second + 1}" for first, second in edges],
        "graph_indicator": np.repeat(np.arange(1, num_graphs + 1), sizes).tolist(),
        "graph_labels": random.integers(0, num_classes, num_graphs).tolist(),
        "node_labels": random.integers(0, num_node_labels, sizes.sum()).tolist(),
    }
    for column, values in columns.items():
        (to / f"{name}_{column}.txt").write_text("\n".join(map(str, values)) + "\n")

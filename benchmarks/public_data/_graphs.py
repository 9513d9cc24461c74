"""Graphs in the files of citation networks."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from public_data._registry import kind

TOPICS = ("Case_Based", "Genetic_Algorithms", "Neural_Networks", "Theory")


@kind
def cora(
    to: Path, *, num_nodes: int = 2708, num_features: int = 1433, num_edges: int = 5429
) -> None:
    """Write cora.content and cora.cites to a folder, or, named .tgz, to an archive of it."""
    random = np.random.default_rng(0)
    features = (random.random((num_nodes, num_features)) < 0.012).astype(int)
    features[:, 0] = 1  # no node without a word
    topics = random.choice(TOPICS, num_nodes)
    content = [
        "\t".join([str(node), *map(str, features[node]), topics[node]]) for node in range(num_nodes)
    ]
    # Each pair once and none with itself, as in the real one.
    pairs = random.integers(0, num_nodes, (2 * num_edges, 2))
    edges = list(dict.fromkeys((min(pair), max(pair)) for pair in pairs.tolist()))
    cites = [f"{cited}\t{citing}" for cited, citing in edges if cited != citing][:num_edges]
    files = {
        "cora.content": "\n".join(content) + "\n",
        "cora.cites": "\n".join(cites) + "\n",
    }
    if to.suffix != ".tgz":
        to.mkdir(parents=True, exist_ok=True)
        for name, written in files.items():
            (to / name).write_text(written)
        return
    with tarfile.open(to, "w:gz") as archive:
        for name, written in files.items():
            member = tarfile.TarInfo(f"cora/{name}")
            member.size = len(written.encode())
            archive.addfile(member, io.BytesIO(written.encode()))

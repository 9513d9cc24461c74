"""What tests of whole steps share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from factories.traced_steps import run_as_traced

ENGINES = {"generated": "generated C", "inductor": "Inductor"}


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Draw the same random numbers in each test, with as many threads as before."""
    num_threads = torch.get_num_threads()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name an engine; what Inductor would get is run as traced, since compiling takes seconds."""
    run_as_traced(monkeypatch)
    return request.param

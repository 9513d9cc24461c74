"""The code of docs/fast-step-recipes.md runs, and its steps are generated."""

from __future__ import annotations

import pickle
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faststep import FastStep

PAGE = Path(__file__).parents[3] / "docs" / "fast-step-recipes.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def name_of(block: str) -> str:
    found = re.search(r"^(?:class|def) (\w+)|from (\w+) import", block, re.MULTILINE)
    assert found is not None
    return found[2] or found[1]


@pytest.mark.slow
# Lightning's own.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The 'train_dataloader'")
@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_the_code_of_the_page_runs(
    block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where trainers put their checkpoints
    for name in ("stable_baselines3", "skorch", "lightning"):
        if f"import {name}" in block or f"from {name}" in block:
            pytest.importorskip(name)
    page = types.ModuleType("page")  # of which pickle finds the classes again
    monkeypatch.setitem(sys.modules, "page", page)
    names: dict[str, Any] = vars(page)
    exec(compile(block.replace("100_000", "5_000"), str(PAGE), "exec"), names)
    steps = [one for one in names.values() if isinstance(one, FastStep)]
    if "trainer" in names:
        steps.append(names["trainer"].lightning_module.fast_step)
        # Counted by Lightning, and kept.
        assert names["trainer"].global_step == 300
        assert Path(names["trainer"].checkpoint_callback.best_model_path).is_file()
    if "net" in names:
        steps.append(names["net"].fast_step)
        again = pickle.loads(pickle.dumps(names["net"]))
        assert np.array_equal(again.predict(names["x"]), names["net"].predict(names["x"]))
        assert names["net"].history[-1]["valid_loss"] < names["net"].history[0]["valid_loss"] / 1.2
    assert all(step.engine == "generated C" for step in steps)

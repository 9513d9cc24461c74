"""The operators that are recorded of a step, against those that torch's profiler sees natively."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from check_process import SCRIPTS

from breakeven.capture import Launcher

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def _load() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("recorded_ops")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


RECORDED_OPS: Any = _load()


@pytest.mark.parametrize(
    ("script", "differences"),
    [
        (ROOT / "examples" / "small_cnn.py", {"loader", "dropout", "lists of tensors", "copies"}),
        (SCRIPTS / "compiled_autograd.py", {"lists of tensors"}),
        (SCRIPTS / "lstm_on_cpu.py", {"loader"}),
        (SCRIPTS / "masks_and_classes.py", {"classes", "masks", "lists of tensors"}),
        (SCRIPTS / "threads.py", {"beside", "loader", "lists of tensors", "copies"}),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_what_differs_from_the_profiler_has_a_name(
    launcher: Launcher, script: Path, differences: set[str]
) -> None:
    found = RECORDED_OPS.compare_script(launcher, script)
    assert found.unexplained == {}
    assert set(found.named) == differences
    assert found.num_equal > 10

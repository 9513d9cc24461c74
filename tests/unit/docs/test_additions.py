"""What CONTRIBUTING.md says that an addition touches, added to a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_FILES = {"rule": 2, "setting": 2, "operator": 1, "device": 1, "kind": 2, "command": 3}
ASKED = """
from pathlib import Path

from rich.console import Console

from breakeven.cli import main
from breakeven.cost import lower, reference_host
from breakeven.device import find_device
from breakeven.report import read_document, show, to_json
from breakeven.report.stock import StockReport
from breakeven.settings import SETTINGS
from breakeven.simulate import predict_steps
from breakeven.trace import Configuration, Op, Settings, StepTrace, TensorSpec

assert main(["rules", "HOST901"]) == 0

setting = SETTINGS["skips_math_attention"]
assert Configuration(skips_math_attention=True).changes == {setting.name: True}

x = TensorSpec(shape=(8, 8, 8, 8), dtype="float32", device="cuda:0")
pool = Op(name="aten.roi_pool2d.default", inputs=(x,), outputs=(x,))
lowering = lower(pool, Settings())
assert lowering.kernels
assert lowering.caveat is None

device = find_device("Example 100")
(prediction,) = predict_steps(StepTrace(events=(pool,)), [device], reference_host())
assert prediction.estimate.value_ns > 0

stock = StockReport(schema_version=1, num_in_stock={"T4": 3})
Path("stock.json").write_bytes(to_json(stock))
assert read_document("stock.json") == stock
show(stock, Console())
assert main(["report", "stock.json", "-o", "stock.html"]) == 0

assert main(["hello", "you"]) == 0
"""


@pytest.fixture(scope="module")
def diffs() -> Mapping[str, str]:
    """Return the diffs of CONTRIBUTING.md by what they add."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return dict(re.findall(r"^\*\*An? (\w+).*?```diff\n(.*?)```", text, re.M | re.S))


def test_each_addition_is_shown_and_touches_few_files(diffs: Mapping[str, str]) -> None:
    touched = {name: set(re.findall(r"^\+\+\+ b/(.+)", diff, re.M)) for name, diff in diffs.items()}
    assert touched.keys() == MOST_FILES.keys()
    for name, files in touched.items():
        assert len(files) <= MOST_FILES[name], name
        assert all(file.startswith("src/breakeven/") for file in files)


@pytest.mark.skipif(shutil.which("git") is None, reason="applies diffs by git")
def test_what_is_added_works_in_a_copy(tmp_path: Path, diffs: Mapping[str, str]) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "scripts")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    apply = ("git", "apply", "-")
    apart = {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    for diff in diffs.values():
        subprocess.run(apply, cwd=tmp_path, input=diff.encode(), env=os.environ | apart, check=True)

    done = subprocess.run(
        (sys.executable, "-c", ASKED),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "HOST901" in done.stdout
    assert "T4" in done.stdout
    assert "hello, you" in done.stdout
    assert b"in stock" in (tmp_path / "stock.html").read_bytes()

"""The examples of the API's pages run as they are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from breakeven.report import CheckReport, to_json
from breakeven.studies import Report
from factories import normals

PAGES = Path(__file__).parents[3] / "docs" / "api"
# They measure, train by a framework, or compile.
SLOW = {
    "ask", "auto", "accelerator", "fast_step", "fast_sb3", "record_steps",
    "measure_step", "verdict_callback", "verdict_tracker", "training_arguments",
    "sky_candidates",
}  # fmt: skip
NEEDS = {
    "fast_sb3": "stable_baselines3", "verdict_callback": "lightning", "sky_candidates": "sky",
    "verdict_tracker": "accelerate", "training_arguments": "transformers",
}  # fmt: skip


def examples() -> list[object]:
    return [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else [])
        for page in sorted(PAGES.glob("*.md"))
        if page.stem not in ("index", "types")
    ]


@pytest.fixture
def run() -> CheckReport:
    return normals.stored_run(normals.small_step())


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\):FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("page", examples())
def test_example_runs(
    page: Path, run: CheckReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    needed = NEEDS.get(page.stem)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    if '"run.json"' in code and 'save("run.json")' not in code:
        (tmp_path / "run.json").write_bytes(to_json(run, with_recording=True))
    exec(compile(code, str(page), "exec"), {"__name__": "example"})
    shown = capsys.readouterr().out
    assert shown or "print(" not in code
    if page.stem == "verdict_callback":
        (log,) = tmp_path.rglob("metrics.csv")
        assert "breakeven/verdict" in log.read_text("utf-8")
    if page.stem == "report":
        assert repr(Report(run))[:40] in " ".join(shown.split())
        assert (tmp_path / "report.html").is_file()


def test_each_public_name_has_a_page_with_an_example() -> None:
    listed = re.findall(r"^\| \[`\w+`\]\((\w+)\.md\)", (PAGES / "index.md").read_text(), re.M)
    assert sorted(listed) == sorted(page.stem for page in PAGES.glob("*.md") if page.stem not in (
        "index", "types"
    ))  # fmt: skip

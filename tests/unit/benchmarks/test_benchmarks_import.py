"""Every benchmark can be imported: what it takes from the package is there under that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories.loaded_scripts import load_script

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SCRIPTS = [*BENCHMARKS.glob("*.py"), *(BENCHMARKS / "gpu").glob("*.py")]


@pytest.mark.parametrize("script", sorted(SCRIPTS), ids=lambda script: script.stem)
def test_it_finds_what_it_imports(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(script.parent))
    try:
        load_script(script, f"benchmark_{script.stem}")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "breakeven":
            raise
        pytest.skip(f"needs {error.name}")

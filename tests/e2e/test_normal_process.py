"""``breakeven normal`` as a user starts it, with a script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from check_process import BREAKEVEN, SCRIPTS

pytestmark = pytest.mark.slow


def test_a_script_is_recorded_and_its_speed_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAKEVEN_CALIBRATIONS", str(tmp_path / "calibrations"))
    script = tmp_path / "train.py"
    script.write_text((SCRIPTS / "tiny_training.py").read_text() + "\n\ntrain(400)\n")
    command = [BREAKEVEN, "normal", script, "--measured", "T4: 20 s", "--json", "-q"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    (speed,) = json.loads(done.stdout)["speeds"]
    assert (speed["device"], speed["pace"], speed["is_explained"]) == ("T4", "slow", False)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU here would be measured")
def test_a_script_without_a_speed_is_refused_before_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("open('ran', 'w').close()")
    command = [BREAKEVEN, "normal", script, "-q"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert b"no speed to judge" in done.stderr
    assert not (tmp_path / "ran").exists()

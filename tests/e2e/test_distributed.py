"""Scripts of several processes: what breakeven records of one, against a real job of two."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from check_process import SCRIPTS, CheckRun

pytestmark = pytest.mark.slow
RunCheck = Callable[..., CheckRun]


@pytest.mark.parametrize(
    ("model", "cap_mb"), [("linear", 0), ("transformer", 1), ("convolution", 3)]
)
def test_recorded_buckets_are_those_of_a_real_job(
    model: str, cap_mb: int, run_check: RunCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, script = tmp_path / "exchanged.json", SCRIPTS / "distributed_buckets.py"
    stored = tmp_path / "run.json"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    arguments = (model, str(cap_mb), str(file))
    subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script), *arguments], check=True, timeout=300
    )
    real = json.loads(file.read_text(encoding="utf-8"))
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    run = run_check(script, "-o", str(stored), arguments=arguments)
    assert run.returncode == 0, run.stderr
    group = json.loads(stored.read_bytes())["recording"]["trace"]["group"]
    buckets = [each["num_bytes"] for each in group["collectives"] if each["is_bucket"]]
    assert group["num_processes"] == 2
    assert buckets == real
    assert len(buckets) > 1


def test_script_for_torchrun_is_checked_without_it(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "distributed.py")
    assert run.returncode == 0, run.stderr
    (caveat,) = (one for one in run.document["caveats"] if one["code"] == "one-process")
    assert "5.39 kB by all_reduce of gradients" in caveat["message"]
    assert run.document["step"]["batch_size"] == 32

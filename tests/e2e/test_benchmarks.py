"""Every benchmark runs to its end, at its smallest size; some are tests by themselves."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from check_process import SCRIPTS

from breakeven.capture import Launcher
from factories.loaded_scripts import load_script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
DATA = "benchmarks/data"
# Tables that are no part of the repository, a row or two each, and a script for the public ones.
TABLES = {
    "apple.csv": """\
source,device,backend,op,args,dtype,phase,latency_ms,src
mlx,M1 Max (64GB) mlx 0.2.0,torch mps,MatMul,dim=1000000x64 dim=64x1024,fp32,fw,40.33,
mlx,M1 Max (64GB) mlx 0.2.0,torch cpu,MatMul,dim=1000000x64 dim=64x1024,fp32,fw,372,
""",
    "attention.csv": """\
device,provider,causal,batch,seq,heads,head_dim,mode,ms
A100,flash2,1,4,2048,16,64,fwd,1.0
""",
    "insights.csv": "workload,compile,memory_format,optimizer\nvit_b16,none,any,sgd\n",
    "measured.csv": """\
case_id,source,workload,device,num_devices,precision,batch_size,phase,optimizer,host,framework,\
value_ms,split,note
1,lambda,breakeven:resnet,RTX 4090,1,fp32,8,train,sgd,EPYC 7763,torch 2.4.0,9,,
2,other,breakeven:resnet,RTX 4090,1,fp32,8,train,sgd,EPYC 7763,torch 2.4.0,9,,
""",
    "pairs.csv": """\
workload,device,precision,phase,framework,batch_eager,batch_compiled,eager_ms,compiled_ms
timm:test_resnet?img=64,A100,fp32,inference,torch 2.4,8,8,4.0,2.0
""",
    "recurrent.csv": """\
source,device,op,hidden,batch,timesteps,dtype,phase,latency_ms,suite,env
deepbench,GTX 1080 Ti,rnn_lstm,256,16,150,fp32,fw,3.714,,CUDA 8.0.88 cuDNN 6.0.21
deepbench,P100 PCIe 16GB,rnn_lstm,256,16,150,fp32,fw,4.311,,CUDA 8.0.88 cuDNN 6.0.21
""",
    "steps.csv": """\
workload,family,device,framework,memory_format,compile,value_ms
timm:wide,wide,RTX 4090,torch 2.4.0 cu124,contiguous,,1.5
""",
    "rows.toml": '[[script]]\nname = "one"\nrepository = "o/n"\nscript = "train.py"\n',
    "o/n/train.py": (SCRIPTS / "tiny_training.py").read_text() + "\n\ntrain(20)\n",
}
# Arguments of the smallest run; TMP is a folder with the tables.
SMALLEST = {
    "absent_cpu": f"report {DATA}/absent_cpu_2026-11-26.csv",
    "apple_ops": "TMP/apple.csv.gz",
    "attention_rates": "TMP/attention.csv",
    "auto_regret": "--only mlp-small --budget 0.05 --oracle 0.1",
    "busy_machine": "--neighbours 1 --runs 1 examples/disc_mlp.py",
    "check_speed": "--only simulation",
    "compiled_pairs": "TMP/pairs.csv",
    "cpu_sizes": "measure -o TMP/sizes.csv --rounds 1 --only transformer",
    "explain_speed": "100",
    "fast_step": "--rounds 2 --steps-per-call 2 --only disc",
    "fit_vector_math": "",
    "framework_steps": "",
    "host_kinds": "",
    "insights_networks": "TMP/insights.csv -o TMP/specs.csv",
    "kill_harness": "--runs 12 --commands check",
    "normal": "TMP/measured.csv",
    "normal_table": "-o TMP/normal.csv",
    "own_rows": "TMP/steps.csv -o TMP/own.csv",
    "peak_memory": "--only breakeven:mlp",
    "protection": "--runs 2",
    "public_scripts": "TMP --table TMP/rows.toml",
    "recorded_ops": "tests/e2e/scripts/threads.py",
    "recurrent_order": "TMP/recurrent.csv",
    "resnet50": "--batch 1 --images 2",
    "setup_phases": "--only load_checkpoint --runs 1",
    "short_runs": "--only smoke --pairs 1",
    "small_steps": "--only 'two towers'",
    "sweep_speed": "--over batch_size=10,100 --devices 1",
    "tune_workloads": "--only mnist_mlp --budget 1s --pairs 2",
    "gpu/again": f"{DATA}/h200_host_2026-11-27.json {DATA}/h200_calibration_2026-11-28.json "
    f"{DATA}/h200_steps_2026-11-28.csv",
    "gpu/compile_ahead": "--only 0",
    "gpu/pairs": f"--summary {DATA}/pairs_h200_2026-11-28.csv",  # test_gpu_pairs.py tries the rest
    "gpu/run": "--out TMP/gpu --device cpu --tiny --quick --dry-run",
}
# They judge what they measure, which means nothing at such a size.
JUDGES = {"auto_regret", "short_runs", "tune_workloads"}
NEEDS = {
    "absent_cpu": "timm", "compiled_pairs": "timm", "fit_vector_math": "mpmath",
    "framework_steps": "lightning", "normal_table": "torchvision",
}  # fmt: skip
# In `.ci/run`: what tells of any process or file that is left, and what must not be forgotten.
SAMPLE = ("kill_harness", "explain_speed", "host_kinds", "attention_rates")


def run(tmp_path: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_benchmark_is_left_out() -> None:
    """A module that others import has no main part."""
    paths = [*BENCHMARKS.glob("*.py"), *(BENCHMARKS / "gpu").glob("*.py")]
    programs = {path for path in paths if '__name__ == "__main__"' in path.read_text("utf-8")}
    # It runs the parts of `pairs.py`.
    programs -= {BENCHMARKS / "gpu" / "pair_steps.py"}
    assert programs == {BENCHMARKS / f"{name}.py" for name in SMALLEST}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.full) for n in SMALLEST],
)
def test_benchmark_at_its_smallest(name: str, tmp_path: Path) -> None:
    # To import timm needs the operators of torchvision, which the benchmark declares itself.
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    if name == "gpu/compile_ahead" and not find_gpu():
        pytest.skip("compiles for a GPU")
    for file, text in TABLES.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "apple.csv.gz").write_bytes(gzip.compress(TABLES["apple.csv"].encode()))
    done = run(tmp_path, name, *shlex.split(SMALLEST[name].replace("TMP", str(tmp_path))))
    assert done.returncode in ({0, 1} if name in JUDGES else {0}), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout or name in (
        "own_rows",
        "insights_networks",
        "cpu_sizes",
        "resnet50",
        "normal_table",
    )


def find_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.mark.full
@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this system does not count waiting"
)
def test_other_work_does_not_turn_the_answer(tmp_path: Path) -> None:
    found = tmp_path / "answers.json"
    options = ("--neighbours", "4", "--runs", "3", "--json", str(found), "examples/disc_mlp.py")
    assert run(tmp_path, "busy_machine", *options).returncode == 0
    rows = json.loads(found.read_text())
    assert all(row["choice"] for row in rows), "a check gave no answer"
    quiet, busy = ([row for row in rows if row["beside"] == count] for count in (0, 4))
    # Without a clock of its own a step took 2 to 800 times as long here.
    for key, most in (("cpu_ns", 1.8), ("gpu_ns", 1.6)):
        ratio = median(row[key] for row in busy) / median(row[key] for row in quiet)
        assert 1 / most < ratio < most, key
    assert len({row["choice"] for row in rows} & {"cpu", "gpu"}) < 2


# The same optimizer's path on CPU and GPU, and hardly any arithmetic.
SAME_PATH = ("MLP, SGD foreach", "MLP, Adam fused", "pointwise chain")
OTHERS = ("disc, depth 2", "two towers", "Q-learning", "language model")


@pytest.mark.full
def test_small_steps_take_a_gpu_no_less_than_the_host(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    names = [option for name in (*SAME_PATH, *OTHERS) for option in ("--only", name)]
    assert run(tmp_path, "small_steps", "--csv", str(table), *names).returncode == 0
    with table.open(newline="") as file:
        rows = {row["network"]: row for row in csv.DictReader(file)}
    ratios = [float(row["step_predicted_us"]) / float(row["step_us"]) for row in rows.values()]
    # Far wider than on a quiet machine, since others may disturb one of the two.
    assert 0.5 < median(ratios) < 2.0
    on_gpu = [float(rows[name]["gpu_us"]) / float(rows[name]["step_us"]) for name in SAME_PATH]
    assert median(on_gpu) > 1.0


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
def test_recorded_operators_are_those_that_the_profiler_sees_but_for_what_has_a_name(
    launcher: Launcher, script: Path, differences: set[str]
) -> None:
    found = load_script(BENCHMARKS / "recorded_ops.py").compare_script(launcher, script)
    assert found.unexplained == {}
    assert set(found.named) == differences
    assert found.num_equal > 10

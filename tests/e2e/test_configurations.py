"""Whole scripts under configurations, each in a process of its own."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breakeven.capture import Launcher, PlainRun, RunRequest, find_target
from breakeven.trace import Configuration

TRAINING = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    {before}
    data = TensorDataset(torch.randn(640, 4), torch.randint(0, 3, (640,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    {model}
    optimizer = torch.optim.Adam(model.parameters())
    {optimizer}
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            with {around}:
                loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
"""
PROCESSES = Path("/proc")
Run = Callable[..., PlainRun]


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., RunRequest]:
    """Return a function that writes the script and returns the request to run it."""

    def write(configuration: Configuration, *, keeps_compile: bool = False, **lines: str) -> Any:
        parts = {"before": "", "model": "", "optimizer": "", "around": "torch.enable_grad()"}
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(TRAINING).format_map(parts | lines))
        return RunRequest(
            target=find_target(str(path)), is_traced=False, budget_s=0.05,
            # torch's first compilation on a machine also tries its compiler: minutes if it is busy.
            time_limit_s=400.0,
            configuration=configuration, keeps_compile=keeps_compile,
        )  # fmt: skip

    return write


@pytest.fixture
def run(launcher: Launcher, request_of: Callable[..., RunRequest]) -> Run:
    """Return a function that runs the script under a configuration."""

    def start(configuration: Configuration, **options: Any) -> PlainRun:
        answer = launcher.run(request_of(configuration, **options))
        assert isinstance(answer, PlainRun), (answer, launcher.output)
        return answer

    return start


def test_all_quick_settings_at_once_take_hold(run: Run) -> None:
    wanted = Configuration(
        num_threads=2, flushes_denormals=True, optimizer="fused",
        autocast="bfloat16", gathers_batches=True, num_workers=1,
        loader_batch_size=32, new_batch_size=64,
    )  # fmt: skip
    answer = run(wanted)
    assert answer.effects == dict.fromkeys(wanted.changes, 1)
    assert answer.num_threads == 2
    assert answer.loader is not None
    assert (answer.loader.batch_size, answer.loader.num_workers) == (64, 1)
    assert answer.startup_ns > 0
    # The next run knows nothing of it.
    plain = run(Configuration())
    assert plain.effects == {}
    assert plain.loader is not None
    assert (plain.loader.batch_size, plain.loader.num_workers) == (32, 0)


def test_settings_of_the_script_win(run: Run) -> None:
    wanted = Configuration(
        num_threads=2, flushes_denormals=True, autocast="bfloat16",
        optimizer="fused", channels_last=True,
    )  # fmt: skip
    answer = run(
        wanted,
        before="torch.set_num_threads(3); torch.set_flush_denormal(False)",
        optimizer="optimizer = torch.optim.Adam(model.parameters(), fused=True)",
        around="torch.autocast('cpu', torch.bfloat16)",
    )
    # The first of the two optimizers leaves the choice, the one that trains does not.
    assert answer.effects == dict.fromkeys(wanted.changes, 0) | {"optimizer": 1}
    assert answer.num_threads == 3
    assert [caveat.code for caveat in answer.caveats if caveat.code == "own-threads"]


def test_startup_ends_with_the_first_step_and_warnings_are_told(run: Run) -> None:
    waits = "import time, warnings; time.sleep(0.5); warnings.warn('slow data', stacklevel=1)"
    answer = run(Configuration(), before=waits, optimizer="warnings.warn('slow data\\nindeed')")
    assert 0.5e9 < answer.startup_ns < 60e9
    assert answer.startup_ns > 5 * answer.measurement.median_ns
    assert answer.warnings == ("UserWarning: slow data",)


@pytest.mark.full
@pytest.mark.timeout(1_200)
@pytest.mark.timing
def test_compiled_code_is_kept_for_the_next_run_of_the_same_launcher(
    request_of: Callable[..., RunRequest],
) -> None:
    request = request_of(Configuration(compile_mode="default"))
    with Launcher() as cold_launcher:
        cold, warm = cold_launcher.run(request), cold_launcher.run(request)
    assert isinstance(cold, PlainRun)
    assert isinstance(warm, PlainRun)
    for answer in (cold, warm):
        assert answer.effects == {"compile_mode": 1}
        assert len(answer.measurement.steady_ns) >= 5
        assert not answer.warnings
    assert cold.startup_ns > warm.startup_ns


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(not PROCESSES.exists(), reason="needs /proc")
def test_compiling_leaves_no_process_behind(request_of: Callable[..., RunRequest]) -> None:
    request = request_of(
        Configuration(compile_mode="default", autocast="bfloat16"),
        # What inductor starts ahead of time on machines with a GPU.
        before="from torch._inductor.async_compile import AsyncCompile; AsyncCompile.warm_pool()",
    )
    with Launcher() as started:
        started.ready()
        ends_s = time.monotonic() + 5.0
        # What asks for the machine's GPU and tries the overlay ends soon after the start.
        while len(before := processes_with(started)) > 1 and time.monotonic() < ends_s:
            time.sleep(0.05)
        answer = started.run(request)
        assert isinstance(answer, PlainRun), (answer, started.output)
        assert answer.effects == {"compile_mode": 1, "autocast": 1}
        ends_s = time.monotonic() + 5.0
        while (left := processes_with(started) - before) and time.monotonic() < ends_s:
            time.sleep(0.05)
        assert not left
        assert len(before) == 1


def processes_with(launcher: Launcher) -> set[str]:
    """Return the processes that know the launcher's folder of temporary files."""
    name = os.fsencode(launcher._scratch.name)
    found: set[str] = set()
    for file in PROCESSES.glob("[0-9]*/environ"):
        try:
            is_ours = b"TMPDIR=" + name + b"\0" in file.read_bytes()
        except OSError:
            continue
        if is_ours and file.parent.name != str(os.getpid()):
            found.add(file.parent.name)
    return found


@pytest.mark.full
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    "line",
    ["model = torch.compile(model)", "model.compile()"],
)
def test_compilation_of_the_script_is_kept_or_ignored(run: Run, line: str) -> None:
    ignored = run(Configuration(), model=line)
    assert [caveat.code for caveat in ignored.caveats if caveat.code == "compile-ignored"]
    kept = run(Configuration(), model=line, keeps_compile=True)
    assert not [caveat for caveat in kept.caveats if caveat.code == "compile-ignored"]
    assert kept.startup_ns > 2 * ignored.startup_ns
    both = run(Configuration(compile_mode="max-autotune", autocast="bfloat16"), model=line)
    assert both.effects == {"compile_mode": 0, "autocast": 1}

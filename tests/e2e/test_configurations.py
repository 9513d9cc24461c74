"""Whole scripts under configurations, each in a process of its own, and what a plain run tells."""

from __future__ import annotations

import hashlib
import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from script_runs import timed

from breakeven.capture import Launcher, PlainRun
from breakeven.trace import Configuration

TRAINING = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from own import width

    {before}
    data = TensorDataset(torch.randn(640, width), torch.randint(0, 3, (640,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(width, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
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
# torch's first compilation on a machine also tries its compiler: minutes if it is busy.
_LIMIT_S = 400.0
PROCESSES = Path("/proc")
Run = Callable[..., PlainRun]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the script."""

    def write(**lines: str) -> Path:
        parts = {"before": "", "model": "", "optimizer": "", "around": "torch.enable_grad()"}
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(TRAINING).format_map(parts | lines))
        (tmp_path / "own.py").write_text("width = 4\n")
        return path

    return write


@pytest.fixture
def run(launcher: Launcher, script: Callable[..., Path]) -> Run:
    """Return a function that runs the script under a configuration."""

    def start(
        configuration: Configuration, *, keeps_compile: bool = False, **lines: str
    ) -> PlainRun:
        return timed(
            launcher, script(**lines), time_limit_s=_LIMIT_S, configuration=configuration,
            keeps_compile=keeps_compile,
        )  # fmt: skip

    return start


def codes(run: PlainRun) -> set[str]:
    return {caveat.code for caveat in run.caveats}


def test_all_quick_settings_at_once_take_hold(run: Run, tmp_path: Path) -> None:
    wanted = Configuration(
        num_threads=2, flushes_denormals=True, optimizer="fused",
        autocast="bfloat16", gathers_batches=True, num_workers=1,
        loader_batch_size=32, new_batch_size=64,
    )  # fmt: skip
    answer = run(wanted)
    assert answer.effects == dict.fromkeys(wanted.changes, 1)
    assert answer.num_threads == 2
    assert "own-threads" not in codes(answer)
    assert answer.loader is not None
    assert (answer.loader.batch_size, answer.loader.num_workers) == (64, 1)
    assert answer.startup_ns > 0
    # The next run knows nothing of it.
    plain = run(Configuration())
    assert plain.effects == {}
    assert plain.loader is not None
    assert (plain.loader.batch_size, plain.loader.num_workers) == (32, 0)
    # Files of libraries are not the user's.
    assert {source.path: source.sha256 for source in plain.sources} == {
        str(file.resolve()): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (tmp_path / "own.py", tmp_path / "script.py")
    }


def test_settings_of_the_script_win(run: Run) -> None:
    wanted = Configuration(
        num_threads=2, flushes_denormals=True, autocast="bfloat16",
        optimizer="fused", channels_last=True,
    )  # fmt: skip
    own = {
        "before": "torch.set_num_threads(3); torch.set_flush_denormal(False)",
        "optimizer": "optimizer = torch.optim.Adam(model.parameters(), fused=True)",
        "around": "torch.autocast('cpu', torch.bfloat16)",
    }
    answer = run(wanted, **own)
    # The first of the two optimizers leaves the choice, the one that trains does not.
    assert answer.effects == dict.fromkeys(wanted.changes, 0) | {"optimizer": 1}
    assert answer.num_threads == 3
    assert "own-threads" in codes(answer)
    assert "own-threads" not in codes(run(Configuration(), **own))


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
    script: Callable[..., Path],
) -> None:
    wanted = {"configuration": Configuration(compile_mode="default"), "time_limit_s": _LIMIT_S}
    with Launcher() as cold_launcher:
        cold, warm = (timed(cold_launcher, script(), **wanted) for _ in range(2))
    for answer in (cold, warm):
        assert answer.effects == {"compile_mode": 1}
        assert len(answer.measurement.steady_ns) >= 5
        assert not answer.warnings
    assert cold.startup_ns > warm.startup_ns


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.skipif(not PROCESSES.exists(), reason="needs /proc")
def test_compiling_leaves_no_process_behind(script: Callable[..., Path]) -> None:
    wanted = Configuration(compile_mode="default", autocast="bfloat16")
    # What inductor starts ahead of time on machines with a GPU.
    path = script(
        before="from torch._inductor.async_compile import AsyncCompile; AsyncCompile.warm_pool()"
    )
    with Launcher() as started:
        started.ready()
        # What asks for the machine's GPU and tries the overlay ends soon after the start.
        before = processes_after(started, lambda found: len(found) <= 1)
        answer = timed(started, path, configuration=wanted, time_limit_s=_LIMIT_S)
        assert answer.effects == {"compile_mode": 1, "autocast": 1}
        assert not processes_after(started, lambda found: not found - before) - before
        assert len(before) == 1


def processes_after(launcher: Launcher, is_done: Callable[[set[str]], bool]) -> set[str]:
    """Return the processes that know the launcher's folder, once that is so, or 5 s later."""
    tag = b"TMPDIR=" + os.fsencode(launcher._scratch.name) + b"\0"
    ends_s = time.monotonic() + 5.0
    while True:
        found: set[str] = set()
        for file in PROCESSES.glob("[0-9]*/environ"):
            try:
                is_ours = tag in file.read_bytes()
            except OSError:
                continue
            if is_ours and file.parent.name != str(os.getpid()):
                found.add(file.parent.name)
        if is_done(found) or time.monotonic() > ends_s:
            return found
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("line", ["model = torch.compile(model)", "model.compile()"])
def test_compilation_of_the_script_is_kept_or_ignored(run: Run, line: str) -> None:
    ignored = run(Configuration(), model=line)
    assert "compile-ignored" in codes(ignored)
    kept = run(Configuration(), model=line, keeps_compile=True)
    assert "compile-ignored" not in codes(kept)
    assert kept.startup_ns > 2 * ignored.startup_ns
    both = run(Configuration(compile_mode="max-autotune", autocast="bfloat16"), model=line)
    assert both.effects == {"compile_mode": 0, "autocast": 1}

"""Cases traced in child processes."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from breakeven.errors import BreakevenError, WorkloadError
from breakeven.trace import NumberFormat, ScaledTrace, StepCase, TimedPhase
from breakeven.workloads import trace_case, trace_cases, trace_pool
from factories.processes import is_running, wait_until

SMALL = "breakeven:mlp?input=4&width=4&depth=2&classes=2"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(folder))
    return folder / "traces"


def case(workload=SMALL, **changes) -> StepCase:
    given = {"phase": TimedPhase.FORWARD_BACKWARD, "workload": workload, **changes}
    return StepCase(**given)


def no_process(*_):
    raise AssertionError("a process was started for what is known")


def test_cases_are_traced_once_and_remembered(cache, monkeypatch):
    cases = [
        case(),
        case(number_format=NumberFormat.TF32, h2d="pinned"),
        case(phase=TimedPhase.BACKWARD),
        case("breakeven:nothing"),
        case("no spec at all"),
        case(),
    ]
    seen: list[tuple[int, int]] = []
    found = trace_cases(cases, num_processes=1, progress=lambda *counts: seen.append(counts))
    assert list(found) == cases[:5]
    for wanted in cases[:3]:
        trace = found[wanted]
        assert isinstance(trace, ScaledTrace)
        assert trace.first == trace_case(wanted).first
        assert trace.at(50) == trace_case(wanted).at(50)
    assert isinstance(found[cases[3]], WorkloadError)
    assert "names no workload" in str(found[cases[4]])
    # Three bases, one of which is refused before any process starts.
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(trace_pool, "TraceWorker", no_process)
    again = trace_cases(cases[:3])
    assert [again[one].first for one in cases[:3]] == [found[one].first for one in cases[:3]]


def test_windows_says_that_it_cannot(monkeypatch):
    monkeypatch.delattr(os, "fork", raising=False)
    with pytest.raises(BreakevenError, match="on Windows"):
        trace_cases([case()])


def test_a_users_file_is_traced_each_time(cache, tmp_path, capfd):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def step(n):\n"
        "    print('on stdout', flush=True)\n"
        "    return torch.nn.Linear(3, 2), torch.rand(n, 3)\n"
    )
    found = trace_cases([case(f"{file}:step")])
    (trace,) = found.values()
    assert isinstance(trace, ScaledTrace)
    assert not cache.exists()
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "on stdout" in printed.err


def test_a_process_that_dies_takes_one_case_with_it(tmp_path):
    file = tmp_path / "deadly.py"
    file.write_text("import os\ndef step(n):\n    os.kill(os.getpid(), 9)\n")
    deadly, good = case(f"{file}:step"), case()
    found = trace_cases([deadly, good], num_processes=1)
    assert "was killed by signal 9" in str(found[deadly])
    assert isinstance(found[deadly], BreakevenError)
    assert isinstance(found[good], ScaledTrace)


def test_the_script_that_asks_is_not_run_again(tmp_path):
    # On standard input there is no file that could be, and no guard.
    script = textwrap.dedent(f"""
        import sys
        from breakeven.trace import StepCase, TimedPhase
        from breakeven.workloads import trace_cases

        print("run", flush=True)
        sys.path.append({str(tmp_path)!r})
        case = StepCase(workload={f"{tmp_path}/mine.py:step"!r}, phase=TimedPhase.INFERENCE)
        print(trace_cases([case])[case].first.num_parameters)
    """)
    (tmp_path / "beside.py").write_text("WIDTH = 2\n")
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom beside import WIDTH\n"
        "def step(n):\n    return torch.nn.Linear(3, WIDTH), torch.rand(n, 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr, done.returncode) == ("run\n8\n", "", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_leaves_no_process_behind(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "def step(n):\n"
        f"    Path({str(tmp_path)!r}, f'pid-{{os.getpid()}}').touch()\n"
        "    time.sleep(600)\n"
    )
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            from breakeven.trace import StepCase, TimedPhase
            from breakeven.workloads import trace_cases

            assert "torch" not in sys.modules
            name = {str(tmp_path / "mine.py")!r} + ":step"
            phases = (TimedPhase.TRAIN, TimedPhase.INFERENCE)
            trace_cases([StepCase(workload=name, phase=p) for p in phases], num_processes=2)
        """)
    )
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)
    wait_until(lambda: len([*tmp_path.glob("pid-*")]) == 2)
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("pid-*")]
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert not [pid for pid in pids if is_running(pid)]

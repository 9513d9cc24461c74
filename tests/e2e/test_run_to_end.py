"""``breakeven run``: the script's run is the one that plain Python makes, but for the settings."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from check_process import BREAKEVEN, TAG_NAME, end_leftovers

from breakeven.errors import Caveat
from breakeven.store import this_machine, write_tuned
from breakeven.trace import Configuration
from breakeven.verdict import Numerics, TuneReport

CONFIGURATION = Configuration(num_threads=1, optimizer="fused")
TRAINING = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(model.parameters())
x = torch.ones(2, 4)
def train(num_steps):
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


def tune_report(target: str, **changes: Any) -> TuneReport:
    values: dict[str, Any] = {
        "target": target,
        "device": "cpu",
        "machine": this_machine(gpu=""),
        "num_steps": 1000,
        "baseline_step_ns": 300e3,
        "tuned_step_ns": 200e3,
        "speedup": 1.5,
        "low": 1.4,
        "high": 1.6,
        "configuration": CONFIGURATION,
        "numerics": Numerics.REORDERED,
        "pays_off_after_steps": 0,
        "trials": (),
        "code_change": None,
        "duration_ns": 1,
    }
    return TuneReport(**{**values, **changes})


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "cache"
    # Buffered, as it is for users.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**kept, "XDG_CACHE_HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a script, and the file of its configuration beside it."""

    def write(text: str, *, target: str = "train.py", **changes: Any) -> Path:
        folder = tmp_path / "work"
        path = folder / "train.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        write_tuned(folder / "breakeven.toml", tune_report(target, **changes), force=False)
        return path

    return write


Ended = subprocess.CompletedProcess[bytes]


@pytest.fixture
def run_both(variables: dict[str, str]) -> Callable[..., tuple[Ended, Ended]]:
    """Return a function that runs a script by plain Python, and by ``breakeven run``."""

    def run(
        folder: Path,
        arguments: Sequence[str | bytes] = (),
        *,
        target: Sequence[str] = ("train.py",),
        stdin: bytes = b"",
        program: Sequence[str] = (str(BREAKEVEN),),
    ) -> tuple[Ended, Ended]:
        def start(command: Sequence[str | bytes]) -> Ended:
            return subprocess.run(
                command, cwd=folder, env=variables, input=stdin, capture_output=True, timeout=120
            )

        plain = start([sys.executable, *target, *arguments])
        ours = start([*program, "run", "-q", *target, "--", *arguments])
        return plain, ours

    return run


def assert_same(plain: Ended, ours: Ended) -> None:
    """Assert that neither output nor ending tells who ran the script."""
    assert ours.stderr.decode() == plain.stderr.decode()
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode


ENDINGS = {
    "end": "print('done')",
    "status": "import sys; sys.exit(5)",
    "message": "import sys; sys.exit('a last word')",
    "hard": "import os; os._exit(7)",
    "exception": "def f():\n    raise ValueError('é')\nf()",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "group": "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])",
    "syntax": "def f(:\n    pass",
    "killed": "import os, signal; print('now', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "raise KeyboardInterrupt",
    "hook": "import sys\nsys.excepthook = lambda kind, *_: print('own', kind)\nraise ValueError",
    "orderly": """
import atexit, sys, threading, time
atexit.register(print, 'atexit', __name__)
file = open('left_open.txt', 'w')
file.write('kept')
def work():
    time.sleep(0.1)
    print('thread', VALUE, sys.modules['__main__'].VALUE)
VALUE = 3
threading.Thread(target=work).start()
try:
    sys.exit(4)
finally:
    print('finally')
""",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_ends_as_plain_python(
    name: str, script: Callable[..., Path], run_both: Callable[..., tuple[Ended, Ended]]
) -> None:
    path = script(ENDINGS[name], configuration=Configuration())
    assert_same(*run_both(path.parent))
    if name == "orderly":
        assert (path.parent / "left_open.txt").read_text() == "kept"


SURROUNDINGS = """
import inspect, os, pickle, signal, sys
print(sys.flags, sys.stdout.errors, sys.stderr.errors)
print(*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
print(__name__, __file__, __spec__, __package__, sorted(globals()))
print(sys.argv, sys.path, sys.orig_argv[1:], os.getcwd(), sorted(os.environ))
print(sys.stdin.read(), sys.flags.dev_mode)
import beside
print(beside.__file__)
class Own:
    pass
print(pickle.loads(pickle.dumps(Own())).__class__ is Own, inspect.getsource(Own))
"""


@pytest.mark.parametrize("configuration", [CONFIGURATION, Configuration()])
@pytest.mark.parametrize("program", [(str(BREAKEVEN),), (sys.executable, "-m", "breakeven")])
def test_surroundings_are_those_of_plain_python(
    program: Sequence[str],
    configuration: Configuration,
    script: Callable[..., Path],
    run_both: Callable[..., tuple[Ended, Ended]],
    variables: dict[str, str],
) -> None:
    variables["CUDA_VISIBLE_DEVICES"] = ""  # the one that is set where the step runs on the CPU
    folder = script(SURROUNDINGS, configuration=configuration).parent
    (folder / "beside.py").write_text("")
    # Takes the place of no module that breakeven needs.
    (folder / "msgspec.py").write_text("raise SystemExit('the wrong one')")
    arguments = ["--lr", "0.1", "", "--", b"\xff", "-q", "ä b"]
    plain, ours = run_both(folder, arguments, stdin=b"typed\n", program=program)
    assert_same(plain, ours)
    assert b"typed" in ours.stdout


def test_module_as_plain_python(
    script: Callable[..., Path], run_both: Callable[..., tuple[Ended, Ended]]
) -> None:
    folder = script("", target="package.train").parent
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "other.py").write_text("VALUE = 3")
    (folder / "package" / "train.py").write_text(
        "import sys\nfrom package import other as top\nfrom . import other\n"
        "print(other.VALUE, top is other, __name__, __file__, __package__, __spec__.name)\n"
        "print(sys.argv, sys.path, sys.orig_argv[1:])\nsys.exit(6)"
    )
    plain, ours = run_both(folder, ["--lr", "1"], target=("-m", "package.train"))
    assert_same(plain, ours)
    assert ours.returncode == 6


IMPORTED = """
import sys
print(*(name for name in sys.modules if name.partition('.')[0] in ('torch', 'numpy', 'rich')))
import torch
print(*(name for name in sys.modules if name.startswith(('breakeven.', 'faststep.'))))
"""


def test_script_waits_for_what_its_start_needs(
    script: Callable[..., Path], run_both: Callable[..., tuple[Ended, Ended]]
) -> None:
    _, ours = run_both(script(IMPORTED, configuration=Configuration()).parent)
    slow, own = (set(line.split()) for line in ours.stdout.decode().splitlines())
    assert not slow
    # It is the process of the command, which knows of no other one.
    commands = own & {f"breakeven.cli.{name}" for name in ("check", "explain", "run", "tune")}
    assert commands == {"breakeven.cli.run"}
    assert {name for name in own if name.startswith("faststep.")} == {"faststep.errors"}
    packages = {name.split(".")[1] for name in own if name.startswith("breakeven.")}
    assert not packages & {"configure", "measure", "rewrite", "settings"}


PROCESSES = """
import multiprocessing as mp, os, sys
def work(number):
    return number + 1, __name__
if __name__ == '__main__':
    os.chdir('..')
    for method in ('fork', 'spawn'):
        with mp.get_context(method).Pool(1) as pool:
            print(method, pool.map(work, [1]), flush=True)
    if os.fork() == 0:
        print('child', flush=True)
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_processes_of_the_script(
    script: Callable[..., Path], run_both: Callable[..., tuple[Ended, Ended]]
) -> None:
    plain, ours = run_both(script(PROCESSES).parent)
    assert_same(plain, ours)
    assert ours.stdout.decode().splitlines()[-2:] == ["child", "3"]


def test_training_runs_under_the_configuration(
    script: Callable[..., Path], variables: dict[str, str]
) -> None:
    workers = """
from torch.utils.data import DataLoader, TensorDataset
if __name__ == '__main__':
    batches = [b for b, in DataLoader(TensorDataset(torch.arange(8)), 2, num_workers=2)]
    print(torch.cat(batches).tolist())
    train(20)
    print(optimizer.param_groups[0]['fused'], torch.get_num_threads())
"""
    # Before torch: a setting that it reads when it is imported, and the look of libraries for it.
    first = (
        "import importlib.util, os, sys\nos.environ['OMP_NUM_THREADS'] = '2'\n"
        "assert importlib.util.find_spec('torch') and 'torch' not in sys.modules\n"
    )
    path = script(first + TRAINING + workers)
    before = path.read_bytes()
    ended = subprocess.run(
        [str(BREAKEVEN), "run", "train.py"],
        cwd=path.parent,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [str(list(range(8))), "True 1"]
    first, last = ended.stderr.splitlines()
    assert first.startswith("breakeven: num_threads=1, optimizer=fused (from breakeven.toml of ")
    assert re.fullmatch(
        r"breakeven: 20 steps at \S+ it/s, .* in all, on cpu: num_threads=1, optimizer=fused", last
    )
    assert path.read_bytes() == before


def test_script_for_cuda_runs_on_the_cpu_that_was_chosen(
    script: Callable[..., Path], variables: dict[str, str]
) -> None:
    text = TRAINING.replace("nn.Linear(8, 4))", "nn.Linear(8, 4)).cuda()") + (
        "x = x.to('cuda')\ntrain(3)\nprint(x.device, torch.cuda.is_available())"
    )
    path = script(
        text,
        configuration=Configuration(num_threads=1, num_workers=0),
        # How the tuning has measured it.
        caveats=(Caveat(code="needs-cuda", message="it refuses to run without a GPU"),),
    )
    command = [str(BREAKEVEN), "run", "train.py"]
    ended = subprocess.run(command, cwd=path.parent, env=variables, capture_output=True, text=True)
    assert ended.stdout == "cpu True\n", ended.stderr
    # A setting that found nothing to change is not passed over in silence.
    assert ended.stderr.splitlines()[-1].endswith("(without effect: num_workers)")


def test_traceback_through_a_changed_optimizer(
    script: Callable[..., Path], run_both: Callable[..., tuple[Ended, Ended]]
) -> None:
    plain, ours = run_both(script("import torch\ntorch.optim.Adam([])").parent)
    assert_same(plain, ours)
    assert b"empty parameter list" in ours.stderr


def test_read_only_folder(script: Callable[..., Path], variables: dict[str, str]) -> None:
    folder = script("print('done')").parent
    before = sorted(folder.iterdir())
    folder.chmod(0o555)
    try:
        command = [str(BREAKEVEN), "run", "train.py"]
        ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    finally:
        folder.chmod(0o755)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "done\n"
    assert sorted(folder.iterdir()) == before


WAITS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print('ready', flush=True)
time.sleep(60)
"""
INTERRUPTIONS = {
    # All of it is tried: the signal may come as soon as the word is out.
    "handled": f"try:{textwrap.indent(WAITS, '    ')}except KeyboardInterrupt:\n    sys.exit(9)",
    "unhandled": WAITS,
}


@pytest.mark.parametrize(("name", "status"), [("handled", 9), ("unhandled", -signal.SIGINT)])
def test_interrupt_reaches_the_script_and_its_children(
    name: str, status: int, script: Callable[..., Path], variables: dict[str, str]
) -> None:
    path = script(INTERRUPTIONS[name])
    tag = variables[TAG_NAME] = f"run-{name}-{os.getpid()}"
    process = subprocess.Popen(
        [str(BREAKEVEN), "run", "train.py"],
        cwd=path.parent,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        # The process of the command is the script's own.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == status
        errors = process.stderr.read()
    assert end_leftovers(tag) == []
    assert "breakeven/" not in errors
    assert "breakeven: no optimizer step, " in errors


def run_at_terminal(
    command: Sequence[str], folder: Path, variables: dict[str, str], typed: bytes = b""
) -> tuple[bytes, int]:
    """Run at a terminal of 80 columns; return all that it received, and the status."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe(command[0], list(command), variables)
    received, deadline = b"", time.monotonic() + 120
    if typed:
        os.write(terminal, typed)
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # what Linux says once nobody has it open
            break
        if not data:
            break
        received += data
    os.close(terminal)
    return received, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def screen_of(received: bytes) -> list[str]:
    """Return the lines that a terminal shows in the end, with no more than it is sent here."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[2K|\r|\n|[^\x1b\r\n]+", received.decode()):
        if part == "\n":
            lines.append("")
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            lines[-1] = ""
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
        column = 0 if part == "\n" else column
    return lines


AT_TERMINAL = (
    TRAINING
    + """
import logging, os, sys, time
logging.basicConfig(format='%(message)s')
for epoch in range(4):
    for _ in range(3):
        train(10)
        time.sleep(0.1)
    print('epoch', epoch)
    logging.warning('logged %d', epoch)
    if os.fork() == 0:
        print('forked', epoch)
        os._exit(sys.stdout.flush() or 0)
    os.wait()
for part in range(6):
    sys.stderr.write(f'\\rown bar {part}')
    sys.stderr.flush()
    train(10)
    time.sleep(0.1)
print(' end')
train(10); time.sleep(0.3); train(10)
print('hello', input('name? '))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("buffering", ["", "1"])
def test_live_line_leaves_the_output_of_the_script_alone(
    buffering: str, script: Callable[..., Path], variables: dict[str, str]
) -> None:
    path = script(AT_TERMINAL)
    command = [str(BREAKEVEN), "run", "train.py", "--steps", "1000"]
    variables |= {"TERM": "xterm", "COLUMNS": "80", "PYTHONUNBUFFERED": buffering}
    received, status = run_at_terminal(command, path.parent, variables, typed=b"me\n")
    assert status == 0, received
    drawn = re.findall(
        r"breakeven: \S+ it/s \| cpu \| [\d,]+ of 1,000 steps \| \S+ left", received.decode()
    )
    assert len(drawn) >= 4
    shown = [line for line in screen_of(received) if not line.startswith("breakeven: ")]
    expected = [line for n in range(4) for line in (f"epoch {n}", f"logged {n}", f"forked {n}")]
    # What is typed early is echoed at once, wherever that is.
    shown = [line for line in shown if line not in ("", "me")]
    assert shown == [*expected, "own bar 5 end", "name? hello me"]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"TERM": "dumb"}, {"quiet": "yes"}])
def test_no_live_line_where_it_is_not_wanted(
    change: dict[str, str], script: Callable[..., Path], variables: dict[str, str]
) -> None:
    path = script(TRAINING + "import time\nfor _ in range(5):\n    train(5)\n    time.sleep(0.1)")
    options = ["-q"] if "quiet" in change else []
    variables |= {"TERM": "xterm", **change}
    command = [str(BREAKEVEN), "run", "train.py", *options]
    received, status = run_at_terminal(command, path.parent, variables)
    assert status == 0, received
    assert b"\x1b" not in received
    assert b"it/s |" not in received
    assert (received == b"") == bool(options)


LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(32, 4), torch.randn(32, 1)
def train():
    running = 0.0
    for i in range(30):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running
"""
FAST = Configuration(fast_step=True)


def test_the_loop_runs_with_a_fast_step_and_the_lines_of_its_file(
    script: Callable[..., Path], variables: dict[str, str]
) -> None:
    text = LOOP + (
        "import inspect\n"
        "source = inspect.getsource(train)\n"
        "print(f'{train():.3f}', source.count('backward'), 'breakeven' in globals())\n"
        "1 / 0\n"
    )
    path = script(text, configuration=FAST)
    ended = subprocess.run(
        [str(BREAKEVEN), "run", "train.py"],
        cwd=path.parent,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    plain = subprocess.run(
        [sys.executable, "-c", f"{LOOP}\nprint(f'{{train():.3f}}')"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout.split() == [plain.stdout.strip(), "1", "True"]
    assert f"line {text.splitlines().index('1 / 0') + 1}, in <module>\n    1 / 0\n" in ended.stderr
    assert "fast_step: each step is one compiled call" in ended.stderr
    assert "--no-fast-step" in ended.stderr
    assert "30 steps" in ended.stderr
    assert "without effect" not in ended.stderr
    assert ended.returncode == 1
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("change", "after", "options", "said"),
    [
        (("loss.backward()", "loss.backward(); 1"), "", [], "holds more than one statement"),
        (("", ""), "", ["--no-fast-step"], ""),
        (
            ("", ""),
            "model.register_forward_hook(lambda *_: None)\nprint(f'{train():.4f}')\n",
            [],
            "never again",
        ),
    ],
    ids=["loop that has changed", "left out", "hooks in the middle"],
)
def test_a_loop_without_its_fast_step_runs_as_it_is(
    change: tuple[str, str],
    after: str,
    options: list[str],
    said: str,
    script: Callable[..., Path],
    variables: dict[str, str],
) -> None:
    text = LOOP.replace(*change) + "print(f'{train():.4f}')\n" + after
    path = script(text, configuration=FAST)
    ended, plain = (
        subprocess.run(
            command, cwd=path.parent, env=variables, capture_output=True, text=True, timeout=120
        )
        for command in ([str(BREAKEVEN), "run", "train.py", *options], [sys.executable, "train.py"])
    )
    assert plain.returncode == ended.returncode == 0
    assert ended.stdout == plain.stdout
    is_said = "fast_step is left out, and the loop runs as it is: " in ended.stderr
    assert is_said == bool(said)
    assert said in ended.stderr
    assert said == "" or "(without effect: fast_step)" in ended.stderr
    assert said != "" or "less fast_step" in ended.stderr


TWO_UPDATES = """
import torch
from torch import nn
torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))
discriminator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
data = torch.randn(32, 4)
def train():
    told, fooled = 0.0, 0.0
    for real in [data] * 30:
        fake = generator(torch.randn(real.size(0), 2))
        d_loss = criterion(discriminator(real), torch.ones(32, 1))
        d_loss = d_loss + criterion(discriminator(fake.detach()), torch.zeros(32, 1))
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        told += d_loss.item()
        g_loss = criterion(discriminator(fake), torch.ones(32, 1))
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        fooled += g_loss.item()
    return told, fooled
print(*(f"{value:.3f}" for value in (*train(), torch.randn(1).item())))
"""


def test_a_loop_with_two_updates_runs_with_one_call_for_both(
    script: Callable[..., Path], variables: dict[str, str]
) -> None:
    path = script(TWO_UPDATES, configuration=FAST)
    ended, plain = (
        subprocess.run(
            command, cwd=path.parent, env=variables, capture_output=True, text=True, timeout=120
        )
        for command in ([str(BREAKEVEN), "run", "train.py"], [sys.executable, "train.py"])
    )
    assert ended.returncode == plain.returncode == 0, ended.stderr
    assert ended.stdout == plain.stdout
    assert "fast_step: each step is one compiled call" in ended.stderr
    assert "30 steps" in ended.stderr
    assert "left out" not in ended.stderr
    assert "without effect" not in ended.stderr


SHORT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(64, 32), torch.randn(64, 1)
for _ in range(100):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def test_step_that_waits_until_it_pays_imports_no_compiler(
    script: Callable[..., Path], run_both: Callable[..., tuple[Ended, Ended]]
) -> None:
    path = script(
        LOOP + "train()\nimport sys\nprint(*sys.modules)",
        configuration=FAST,
        pays_off_after_steps=12_000_000,
        is_length_known=False,
    )
    _, ours = run_both(path.parent)
    imported = ours.stdout.decode().split()
    assert "faststep.fallback" in imported
    assert "faststep.fast" not in imported
    assert not [name for name in imported if name.startswith("faststep.codegen.")]


@pytest.mark.full
def test_run_that_is_too_short_to_compile_is_as_quick_as_python(
    script: Callable[..., Path], variables: dict[str, str]
) -> None:
    folder = script(
        SHORT,
        configuration=Configuration(fast_step=True),
        # An hour of them.
        pays_off_after_steps=12_000_000,
        num_steps=90,
        is_length_known=False,
    ).parent

    def run(*command: str) -> tuple[float, Ended]:
        begun_s = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, check=True, timeout=120
        )
        return time.perf_counter() - begun_s, done

    pairs = [
        (run(sys.executable, "train.py"), run(str(BREAKEVEN), "run", "train.py")) for _ in range(3)
    ]
    for (_, plain), (_, ours) in pairs:
        assert ours.stdout == plain.stdout
        assert b"begins after" in ours.stderr
        assert b"(without effect: fast_step)" in ours.stderr
    # Half a second of our own imports, and compiling, would each be more.
    assert median(ours_s / plain_s for (plain_s, _), (ours_s, _) in pairs) <= 1.15

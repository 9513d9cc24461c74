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
from factories import tuned

CONFIGURATION = Configuration(num_threads=1, optimizer="fused")
FAST = Configuration(fast_step=True)
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
Ended = subprocess.CompletedProcess[str]
Script = Callable[..., Path]
Start = Callable[..., Ended]
RUN = (str(BREAKEVEN), "run", "train.py")
PLAIN = (sys.executable, "train.py")


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    # Buffered, as it is for users.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**kept, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def script(folder: Path) -> Script:
    """Return a function that writes ``train.py``, and the file of its configuration beside it."""

    def write(
        text: str,
        configuration: Configuration = CONFIGURATION,
        *,
        target: str = "train.py",
        **changes: Any,
    ) -> Path:
        report = tuned.report(
            target=target,
            machine=this_machine(gpu=""),
            configuration=configuration,
            **changes,
        )
        write_tuned(folder / "breakeven.toml", report, force=False)
        (folder / "train.py").write_text(text)
        return folder / "train.py"

    return write


@pytest.fixture
def start(folder: Path, variables: dict[str, str]) -> Start:
    """Return a function that runs a command in the folder of the script, to its end."""

    def run(*command: str | bytes, stdin: str = "") -> Ended:
        return subprocess.run(
            command, cwd=folder, env=variables, input=stdin, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def assert_same(start: Start) -> Callable[..., Ended]:
    """Return a function that asserts that neither output nor ending tells who ran the script."""

    def run_both(
        *arguments: str | bytes,
        target: Sequence[str] = ("train.py",),
        program: Sequence[str] = (str(BREAKEVEN),),
        stdin: str = "",
    ) -> Ended:
        plain = start(sys.executable, *target, *arguments, stdin=stdin)
        ours = start(*program, "run", "-q", *target, "--", *arguments, stdin=stdin)
        assert ours.stderr == plain.stderr
        assert ours.stdout == plain.stdout
        assert ours.returncode == plain.returncode
        return ours

    return run_both


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
def test_ends_as_plain_python(name: str, script: Script, assert_same: Callable[..., Ended]) -> None:
    path = script(ENDINGS[name], Configuration())
    assert_same()
    if name == "orderly":
        assert (path.parent / "left_open.txt").read_text() == "kept"


SURROUNDINGS = """
import inspect, os, pickle, signal, sys
print(sys.flags, sys.stdout.errors, sys.stderr.errors)
print(*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
print(__name__, __file__, __spec__, __package__, sorted(globals()))
print(list(map(ascii, sys.argv)), sys.path, list(map(ascii, sys.orig_argv[1:])), os.getcwd())
print(sorted(os.environ), sys.stdin.read(), sys.flags.dev_mode)
import beside
print(beside.__file__)
class Own:
    pass
print(pickle.loads(pickle.dumps(Own())).__class__ is Own, inspect.getsource(Own))
"""


@pytest.mark.parametrize(
    ("configuration", "program"),
    [(CONFIGURATION, (str(BREAKEVEN),)), (Configuration(), (sys.executable, "-m", "breakeven"))],
)
def test_surroundings_are_those_of_plain_python(
    configuration: Configuration,
    program: Sequence[str],
    script: Script,
    assert_same: Callable[..., Ended],
    variables: dict[str, str],
) -> None:
    variables["CUDA_VISIBLE_DEVICES"] = ""  # the one that is set where the step runs on the CPU
    folder = script(SURROUNDINGS, configuration).parent
    (folder / "beside.py").write_text("")
    # Takes the place of no module that breakeven needs.
    (folder / "msgspec.py").write_text("raise SystemExit('the wrong one')")
    arguments = ["--lr", "0.1", "", "--", b"\xff", "-q", "ä b"]
    assert "typed" in assert_same(*arguments, program=program, stdin="typed\n").stdout


def test_module_as_plain_python(
    folder: Path, script: Script, assert_same: Callable[..., Ended]
) -> None:
    script("", target="package.train")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "other.py").write_text("VALUE = 3")
    (folder / "package" / "train.py").write_text(
        "import sys\nfrom package import other as top\nfrom . import other\n"
        "print(other.VALUE, top is other, __name__, __file__, __package__, __spec__.name)\n"
        "print(sys.argv, sys.path, sys.orig_argv[1:])\nsys.exit(6)"
    )
    assert assert_same("--lr", "1", target=("-m", "package.train")).returncode == 6


IMPORTED = """
import sys
print(*(name for name in sys.modules if name.partition('.')[0] in ('torch', 'numpy', 'rich')))
import torch
print(*(name for name in sys.modules if name.startswith(('breakeven.', 'faststep.'))))
"""


def test_script_waits_for_what_its_start_needs(script: Script, start: Start) -> None:
    script(IMPORTED, Configuration())
    slow, own = (set(line.split()) for line in start(*RUN).stdout.splitlines())
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


@pytest.mark.parametrize(
    ("text", "told"),
    [(PROCESSES, "child\n3\n"), ("import torch\ntorch.optim.Adam([])", "empty parameter list\n")],
    ids=["processes", "traceback through a changed optimizer"],
)
def test_configured_script_as_plain_python(
    text: str, told: str, script: Script, assert_same: Callable[..., Ended]
) -> None:
    script(text)
    ours = assert_same()
    assert (ours.stdout + ours.stderr).endswith(told)


def test_training_runs_under_the_configuration(script: Script, start: Start) -> None:
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
    ended = start(*RUN)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [str(list(range(8))), "True 1"]
    first, last = ended.stderr.splitlines()
    assert first.startswith("breakeven: num_threads=1, optimizer=fused (from breakeven.toml of ")
    assert re.fullmatch(
        r"breakeven: 20 steps at \S+ it/s, .* in all, on cpu: num_threads=1, optimizer=fused", last
    )
    assert path.read_bytes() == before


def test_script_for_cuda_runs_on_the_cpu_that_was_chosen(script: Script, start: Start) -> None:
    script(
        TRAINING.replace("nn.Linear(8, 4))", "nn.Linear(8, 4)).cuda()")
        + "x = x.to('cuda')\ntrain(3)\nprint(x.device, torch.cuda.is_available())",
        Configuration(num_threads=1, gathers_batches=True),
        # How the tuning has measured it.
        caveats=(Caveat(code="needs-cuda", message="it refuses to run without a GPU"),),
    )
    ended = start(*RUN)
    assert ended.stdout == "cpu True\n", ended.stderr
    # A setting that found nothing to change is not passed over in silence.
    assert ended.stderr.splitlines()[-1].endswith("(without effect: gathers_batches)")


def test_read_only_folder(folder: Path, script: Script, start: Start) -> None:
    script("print('done')")
    before = sorted(folder.iterdir())
    folder.chmod(0o555)
    try:
        ended = start(*RUN)
    finally:
        folder.chmod(0o755)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert sorted(folder.iterdir()) == before


WAITS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print('ready', flush=True)
time.sleep(60)
"""
# All of it is tried: the signal may come as soon as the word is out.
HANDLES = f"try:{textwrap.indent(WAITS, '    ')}except KeyboardInterrupt:\n    sys.exit(9)"


@pytest.mark.parametrize(
    ("text", "status"), [(HANDLES, 9), (WAITS, -signal.SIGINT)], ids=["handled", "unhandled"]
)
def test_interrupt_reaches_the_script_and_its_children(
    text: str, status: int, tmp_path: Path, script: Script, variables: dict[str, str]
) -> None:
    path = script(text)
    with subprocess.Popen(
        RUN, cwd=path.parent, env={**variables, TAG_NAME: str(tmp_path)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        # The process of the command is the script's own.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) == status
        errors = process.stderr.read()
    assert end_leftovers(str(tmp_path)) == []
    assert "breakeven/" not in errors
    assert "breakeven: no optimizer step, " in errors


def run_at_terminal(
    command: Sequence[str], folder: Path, variables: dict[str, str], typed: bytes = b""
) -> str:
    """Run at a terminal of 80 columns, to the end; return all that it received."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe(command[0], list(command), variables)
    received, deadline = b"", time.monotonic() + 120
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
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, received
    return received.decode()


def screen_of(received: str) -> list[str]:
    """Return the lines that a terminal shows in the end, with no more than it is sent here."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[2K|\r|\n|[^\x1b\r\n]+", received):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            lines[-1] = ""
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


AT_TERMINAL = f"""{TRAINING}
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
    sys.stderr.write('\\rown bar %d' % part)
    sys.stderr.flush()
    train(10)
    time.sleep(0.1)
print(' end')
train(10); time.sleep(0.3); train(10)
print('hello', input('name? '))
"""


@pytest.mark.slow
@pytest.mark.parametrize("buffering", ["", "1"])
def test_live_line_leaves_the_output_of_the_script_alone(
    buffering: str, folder: Path, script: Script, variables: dict[str, str]
) -> None:
    script(AT_TERMINAL)
    variables |= {"TERM": "xterm", "COLUMNS": "80", "PYTHONUNBUFFERED": buffering}
    received = run_at_terminal((*RUN, "--steps", "1000"), folder, variables, typed=b"me\n")
    drawn = re.findall(r"breakeven: \S+ it/s \| cpu \| [\d,]+ of 1,000 steps \| \S+ left", received)
    assert len(drawn) >= 4
    # What is typed early is echoed at once, wherever that is.
    shown = [
        line
        for line in screen_of(received)
        if line not in ("", "me") and not line.startswith("breakeven: ")
    ]
    expected = [line for n in range(4) for line in (f"epoch {n}", f"logged {n}", f"forked {n}")]
    assert shown == [*expected, "own bar 5 end", "name? hello me"]


@pytest.mark.slow
@pytest.mark.parametrize(("term", "options"), [("dumb", ()), ("xterm", ("-q",))])
def test_no_live_line_where_it_is_not_wanted(
    term: str, options: tuple[str, ...], folder: Path, script: Script, variables: dict[str, str]
) -> None:
    script(TRAINING + "import time\nfor _ in range(5):\n    train(5)\n    time.sleep(0.1)")
    received = run_at_terminal((*RUN, *options), folder, {**variables, "TERM": term})
    assert "\x1b" not in received
    assert "it/s |" not in received
    assert (received == "") == bool(options)


# Loops whose step becomes one compiled call.

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
"""
PRINT_ALL = "print(*(f'{value:.3f}' for value in (*train(), torch.randn(1).item())))\n"


def test_the_loop_runs_with_a_fast_step_and_the_lines_of_its_file(
    script: Script, start: Start
) -> None:
    text = LOOP + (
        "import inspect\n"
        "source = inspect.getsource(train)\n"
        "print(f'{train():.3f}', source.count('backward'), 'breakeven' in globals())\n"
        "1 / 0\n"
    )
    path = script(text, FAST)
    ended = start(*RUN)
    plain = start(sys.executable, "-c", f"{LOOP}\nprint(f'{{train():.3f}}')")
    assert ended.stdout.split() == [plain.stdout.strip(), "1", "True"]
    assert f"line {text.splitlines().index('1 / 0') + 1}, in <module>\n    1 / 0\n" in ended.stderr
    for said in ("fast_step: each step is one compiled call", "--no-fast-step", "30 steps"):
        assert said in ended.stderr
    assert "without effect" not in ended.stderr
    assert ended.returncode == 1
    assert path.read_text() == text


LEFT_OUT = "fast_step is left out, and the loop runs as it is: "
NO_EFFECT = "(without effect: fast_step)"


@pytest.mark.parametrize(
    ("text", "options", "said", "not_said"),
    [
        (
            LOOP.replace("loss.backward()", "loss.backward(); 1") + "print(f'{train():.4f}')",
            (),
            [LEFT_OUT, "holds more than one statement", NO_EFFECT],
            [],
        ),
        (LOOP + "print(f'{train():.4f}')", ("--no-fast-step",), ["less fast_step"], [LEFT_OUT]),
        (
            LOOP + "print(f'{train():.4f}')\nmodel.register_forward_hook(lambda *_: None)\n"
            "print(f'{train():.4f}')",
            (),
            [LEFT_OUT, "never again", NO_EFFECT],
            [],
        ),
        (
            TWO_UPDATES + PRINT_ALL,
            (),
            ["fast_step: each step is one compiled call", "30 steps"],
            ["left out", "without effect"],
        ),
    ],
    ids=["loop that has changed", "left out", "hooks in the middle", "two updates in one call"],
)
def test_a_loop_prints_what_it_prints_without_a_fast_step(
    text: str,
    options: tuple[str, ...],
    said: list[str],
    not_said: list[str],
    script: Script,
    start: Start,
) -> None:
    script(text, FAST)
    ended, plain = start(*RUN, *options), start(*PLAIN)
    assert plain.returncode == ended.returncode == 0, ended.stderr
    assert ended.stdout == plain.stdout
    assert all(part in ended.stderr for part in said), ended.stderr
    assert not any(part in ended.stderr for part in not_said), ended.stderr


def test_step_that_waits_until_it_pays_imports_no_compiler(script: Script, start: Start) -> None:
    script(
        LOOP + "train()\nimport sys\nprint(*sys.modules)", FAST,
        pays_off_after_steps=12_000_000, is_length_known=False,
    )  # fmt: skip
    imported = start(*RUN).stdout.split()
    assert "faststep.fallback" in imported
    assert "faststep.fast" not in imported
    assert not [name for name in imported if name.startswith("faststep.codegen.")]


@pytest.mark.full
def test_run_that_is_too_short_to_compile_is_as_quick_as_python(
    script: Script, start: Start
) -> None:
    script(
        LOOP.replace("range(30)", "range(100)") + "print(train())", FAST,
        # An hour of them.
        pays_off_after_steps=12_000_000, num_steps=90, is_length_known=False,
    )  # fmt: skip
    ratios: list[float] = []
    for _ in range(3):
        begun_s = time.perf_counter()
        plain = start(*PLAIN)
        between_s = time.perf_counter()
        ours = start(*RUN)
        ratios.append((time.perf_counter() - between_s) / (between_s - begun_s))
        assert ours.stdout == plain.stdout
        assert "begins after" in ours.stderr
        assert NO_EFFECT in ours.stderr
    # Half a second of our own imports, and compiling, would each be more.
    assert median(ratios) <= 1.15

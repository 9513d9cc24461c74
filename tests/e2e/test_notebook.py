"""Notebooks: one as a script, and breakeven's magics in a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from check_process import BREAKEVEN, CheckRun

from factories.notebooks import write_notebook
from factories.processes import is_running, wait_until

pytestmark = [
    pytest.mark.slow,
    # Libraries of the kernel, not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

MODEL = """\
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loss_of(x):
    return model(x).pow(2).mean()
"""
STEP = """\
loss = loss_of(torch.randn(32, 64))
optimizer.zero_grad()
loss.backward()
optimizer.step()
last = loss.item()
"""


def indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


LOOP = f"for number in range(2_000):\n{indented(STEP)}"


class Kernel:
    """Runs cells in a kernel, one after another."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.notebook = nbformat.v4.new_notebook()
        self.client = nbclient.NotebookClient(
            self.notebook, timeout=240, allow_errors=True, resources={"metadata": {"path": folder}}
        )
        self.client.create_kernel_manager()
        self.client.start_new_kernel(env=environment)
        self.client.start_new_kernel_client()

    def run(self, source: str) -> list[Any]:
        """Return the outputs of a cell."""
        cell = nbformat.v4.new_code_cell(source)
        self.notebook.cells.append(cell)
        number = len(self.notebook.cells)
        self.client.execute_cell(cell, number - 1, execution_count=number)
        return cell.outputs

    def error(self, source: str) -> str:
        """Return the error of a cell, without colours."""
        (found,) = (one for one in self.run(source) if one.output_type == "error")
        return "\n".join(found.traceback)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    # Colours are the notebook's choice; `PYDEVD_...` is about the debugger of kernels.
    return {
        **os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_COLOR": "1",
        "XDG_CONFIG_HOME": str(tmp_path / "config"), "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }  # fmt: skip


@pytest.fixture
def kernel(tmp_path: Path, environment: dict[str, str]) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path, environment)
    yield kernel
    kernel.client._cleanup_kernel()


@pytest.mark.full
@pytest.mark.parametrize("protection", ["overlay", "redirected"])
def test_a_notebook_is_checked_as_a_script(
    run_check: Callable[..., CheckRun],
    tmp_path: Path,
    protection: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BREAKEVEN_WRITE_PROTECTION", protection)
    path = write_notebook(
        tmp_path / "train.ipynb",
        f"!pip install torch\n%matplotlib inline\nimport asyncio\n{MODEL}",
        "%%bash\nexit 1",
        "from __future__ import annotations\nawait asyncio.sleep(0)\ndisplay(model)",
        f"%%time\n{LOOP}",
    )
    run = run_check(path, arguments=())
    assert run.returncode == 0, run.stderr
    # Containers of hosted notebooks have no overlay: that is no reason for a warning.
    assert "warning" not in run.stderr.lower()
    (skipped,) = (
        one["message"] for one in run.document["caveats"] if one["code"] == "notebook-magics"
    )
    assert skipped == (
        "lines of the notebook that are not Python did not run: cell 1, line 1: `!pip install "
        "torch`; cell 1, line 2: `%matplotlib inline`; cell 2, line 1: `%%bash`"
    )
    lines = {one["code"]: one["line"] for one in run.document["findings"]}
    assert lines["SYNC001"] == 4007  # cell 4, line 7


@pytest.mark.full
def test_an_error_names_the_cell(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "a.ipynb", "import torch", "x = 1\nn = int(input('n? '))")
    done = subprocess.run(
        [BREAKEVEN, "check", "-q", path], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 3
    first, place, *_ = done.stderr.splitlines()
    assert "asks for input at a.ipynb cell 2, line 2: `n = int(input('n? '))`" in first
    assert place == f"  at {path} cell 2, line 2"


def test_the_magics_answer_in_a_kernel(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%load_ext breakeven\nimport sys\nassert 'torch' not in sys.modules")
    kernel.run(f"{MODEL}first = model[0].weight.detach().clone()")
    line, answer = kernel.run(f"%%breakeven --device T4 --host colab\n{STEP}")
    assert line.data["text/plain"].startswith("cell 3 ran ")
    assert answer.data["text/html"].startswith('<div class="breakeven-report">')
    assert len(answer.data["text/plain"]) < 210
    # The weights and names are as before.
    (same,) = kernel.run("print(torch.equal(first, model[0].weight), 'last' in globals())")
    assert same.text == "True False\n"
    (places,) = kernel.run("print({f'{one.file} {one.line}' for one in _.value.findings})")
    assert "notebook.ipynb 3006" in places.text
    # A loop of the cell is left once its steps suffice; lines of other cells have their numbers.
    _, explained = kernel.run(f"%%breakeven explain --device T4\n{LOOP.replace('2_000', '10**9')}")
    assert explained.output_type == "execute_result"
    shown = "".join(one.text for one in kernel.run("_.show()"))
    assert "notebook.ipynb cell 2, line 6" in shown
    assert "notebook.ipynb cell 6, line 5" in shown
    (tmp_path / "train.py").write_text(MODEL + LOOP)
    line, checked = kernel.run("%breakeven check train.py --device T4 --no-fast-step")
    assert line.data["text/plain"] == ""
    assert "T4" in checked.data["text/plain"]
    assert kernel.error("%breakeven check tain.py") == (
        "error: there is no file 'tain.py'\nhint: nearest there: train.py"
    )


# Interrupts a kernel as its front end does, once the script sleeps; prints its descendants.
INTERRUPT = """
import os, signal, sys, time
from pathlib import Path
def below(pid):
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from below(child)
while not Path("sleeps").exists():
    time.sleep(0.05)
kernel = int(sys.argv[1])
print(*below(kernel))
os.kill(kernel, signal.SIGINT)
"""


def test_the_example_for_colab_answers(tmp_path: Path, environment: dict[str, str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "colab.ipynb"
    install, *rest = [
        cell.source for cell in nbformat.read(example, 4).cells if cell.cell_type == "code"
    ]
    assert install.startswith("%pip install -q git+https://")
    # Containers of hosted notebooks have no overlay: that is no reason for a warning.
    kernel = Kernel(tmp_path, {**environment, "BREAKEVEN_WRITE_PROTECTION": "redirected"})
    try:
        (script,), (_, answer) = map(kernel.run, rest)
    finally:
        kernel.client._cleanup_kernel()
    assert script.text == "rnn_stream.py\n"
    assert answer.data["text/plain"].startswith("Train this on ")


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found by /proc")
def test_an_interrupt_leaves_nothing(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%load_ext breakeven")
    (pid,) = kernel.run("import os; print(os.getpid())")
    (tmp_path / "train.py").write_text("import time; open('sleeps', 'w'); time.sleep(600)")
    command = [sys.executable, "-c", INTERRUPT, pid.text.strip()]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as interrupting:
        error = kernel.error("%breakeven check train.py --keep-writes")
        out, _ = interrupting.communicate(timeout=60)
    assert error == "interrupted"
    descendants = [int(child) for child in out.split()]
    assert len(descendants) >= 2  # the process with torch, and the script's
    wait_until(lambda: not any(map(is_running, descendants)), limit_s=20)
    assert kernel.run("print(1 + 1)")[0].text == "2\n"


@pytest.mark.full
def test_a_kernel_without_torch_says_so(tmp_path: Path, environment: dict[str, str]) -> None:
    hidden = tmp_path / "hidden" / "torch"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    kernel = Kernel(tmp_path, {**environment, "PYTHONPATH": str(hidden.parent)})
    try:
        kernel.run("%load_ext breakeven")
        assert kernel.error("%%breakeven\nx = 1").startswith(
            "error: torch could not be imported: No module named 'torch'\nhint: "
        )
        (tmp_path / "train.py").write_text("import torch")
        assert "torch could not be imported by" in kernel.error("%breakeven check train.py")
    finally:
        kernel.client._cleanup_kernel()

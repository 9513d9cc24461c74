"""The training step in a cell of a notebook, run in the notebook's own process."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import PurePath
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

from breakeven.capture import name_cells
from breakeven.cli.dispatch import HelpFormatter, Parser
from breakeven.errors import BreakevenError, ScriptError
from breakeven.source import Notebook, can_parse, notebook_of
from breakeven.trace import CELL_LINES, is_notebook

if TYPE_CHECKING:
    from breakeven.studies import Report

_DESCRIPTION = """\
Run the code of this cell as one training step, again and again, and show whether a GPU would be
faster. Then models, optimizers, random numbers and the notebook's names are as before. Other
effects remain: iterators and schedulers move on."""
_ALONE = "run the cell without %%breakeven first"


def parse_options(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of ``%%breakeven``.

    Args:
        words: The words after the magic.

    Raises:
        UsageError: There is no such option.
        SystemExit: After the help.
    """
    parser = Parser(
        prog="%%breakeven",
        description=_DESCRIPTION,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "command", nargs="?", choices=("check", "explain"), default="check",
        help="check (the default), or explain what costs time",
    )  # fmt: skip
    parser.add_argument(
        "--device", dest="devices", metavar="NAME", action="append", default=[],
        help="GPU to compare with; may be repeated (default: a choice of six)",
    )  # fmt: skip
    parser.add_argument(
        "--host", metavar="here|KIND|NAME", default="auto",
        help="machine that feeds the GPUs, such as colab (all: %%breakeven devices --hosts)",
    )  # fmt: skip
    return parser.parse_args(words)


def answer_of_cell(shell: Any, options: argparse.Namespace, cell: str) -> tuple[Report, str]:
    """Return the report on a cell, and a sentence on its runs.

    Args:
        shell: The ``InteractiveShell`` with the notebook's variables.
        options: See `parse_options`.
        cell: The code.

    Raises:
        BreakevenError: The cell is no training step, fails, or torch cannot be imported.
    """
    # Versions of IPython differ in when they count a cell, but not in when they store it.
    number = len(shell.history_manager.input_hist_raw) - 1
    code = _compiled(shell, number, cell)
    try:
        import torch  # noqa: F401 - here, since `%load_ext` must not wait for it
    except ImportError as error:
        raise BreakevenError(
            f"torch could not be imported: {error}", hint="run `import torch` to see why"
        ) from None
    from breakeven.adapters import ask

    names = dict(shell.user_ns)
    step = _Step(code, shell.user_ns, f"cell {number}")
    try:
        shell.user_ns["input"] = _refuse_input
        report = ask(step, question=options.command, devices=options.devices, host=options.host)
    finally:
        for name in shell.user_ns.keys() - names.keys():
            del shell.user_ns[name]
        shell.user_ns.update(names)
    return report, (
        f"cell {number} ran {step.num_runs:,} times; the model and all names are as before, "
        "iterators and schedulers are not"
    )


def _compiled(shell: Any, number: int, cell: str) -> CodeType:
    """Return the code of a cell, and let its lines be found in the whole notebook.

    Raises:
        BreakevenError: The cell is not Python alone.
    """
    name = PurePath(os.environ.get("JPY_SESSION_NAME", "")).name
    name = name if is_notebook(name) else "notebook.ipynb"
    ran = enumerate(shell.history_manager.input_hist_raw)
    # Cells that are too long to be numbered are no part of this step.
    cells = {at: text for at, text in ran if text.strip() and text.count("\n") < CELL_LINES - 1}
    # The first line is that of the magic.
    notebook = notebook_of({**cells, number: f"%%breakeven\n{cell}"}, name)
    for skipped in notebook.skipped:
        if skipped.startswith(f"cell {number}, "):
            raise BreakevenError(
                f"a step is Python alone, and this is not: {skipped}",
                hint="move it to a cell of its own",
            )
    # Newer kernels know the number of each cell; the code of others keeps its own names.
    parsed = Notebook({at: code for at, code in notebook.cells.items() if can_parse(code)}, ())
    name_cells(name, getattr(shell.compile, "_filename_map", {}), parsed.text)
    text = "\n" * (number * CELL_LINES) + notebook.cells[number]
    try:
        return compile(text, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ScriptError(
            f"cell {number} is not a step in Python: {error.msg}", hint=_ALONE, file=name,
            line=error.lineno,
        ) from None  # fmt: skip


def _refuse_input(*_: object) -> NoReturn:
    raise BreakevenError("the cell asks for input in each run", hint="ask in an earlier cell")


def _error_of(error: Exception, cell: str) -> ScriptError:
    """Return an exception of the user's code as the error of its cell."""
    from breakeven.capture import failure_of

    found = failure_of(error, 0)
    at = found.location
    return ScriptError(
        f"{cell} raised {found.exception}: {found.message}" + (f": `{found.source}`" if at else ""),
        hint=_ALONE,
        file=at and at.file,
        line=at and at.line,
    )


class _Step:
    """A cell as a function that runs it.

    Args:
        code: The compiled cell.
        variables: The notebook's variables.
        name: Name of the cell, for the report.
    """

    def __init__(self, code: CodeType, variables: dict[str, Any], name: str) -> None:
        self.__qualname__ = name
        self.num_runs = 0
        self._code = code
        self._variables = variables

    def __call__(self) -> None:
        """Run the cell.

        Raises:
            BreakevenError: The cell fails.
        """
        self.num_runs += 1
        try:
            exec(self._code, self._variables)
        except BreakevenError:
            raise
        except Exception as error:
            raise _error_of(error, self.__qualname__) from None

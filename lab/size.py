"""How large the code is, by room, against its budget.

    python lab/size.py                       sizes of src, and of each room
    python lab/size.py --ref 7facb23         the same, as they were in a commit
    python lab/size.py --check               end with 1 if a room grew beyond its limit
    python lab/size.py --lower               lower the limits to today's sizes
    python lab/size.py --calls SCRIPT        functions between `main` and the verdict of `check`

`lab/budget.toml` names the rooms, their limits, and what they are to shrink to.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import tomlkit

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "lab" / "budget.toml"
# Name of the room with all of src, in the budget and in the output.
ALL = "src"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# The function whose first call gives the verdict, and its folder.
_VERDICT = ("verdict", "decide")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of code in one or more files.

    Args:
        code_lines: Lines that are not blank, comment or docstring. Imports count.
        tokens: Tokens without comments and layout. A docstring is one.
        num_files: Python files. A link to a file is one.
        function_lines: Lines of each function from its ``def`` to its end.
        num_value_types: Dataclasses, msgspec structs and named tuples.
        num_private_once: Functions with a leading underscore that their file names at most once.
    """

    code_lines: int = 0
    tokens: int = 0
    num_files: int = 0
    function_lines: tuple[int, ...] = ()
    num_value_types: int = 0
    num_private_once: int = 0

    def __add__(self, other: Size) -> Size:
        """Add two sizes."""
        return Size(
            code_lines=self.code_lines + other.code_lines,
            tokens=self.tokens + other.tokens,
            num_files=self.num_files + other.num_files,
            function_lines=self.function_lines + other.function_lines,
            num_value_types=self.num_value_types + other.num_value_types,
            num_private_once=self.num_private_once + other.num_private_once,
        )


def size_of(source: str) -> Size:
    """Measure one Python file.

    Raises:
        SyntaxError: If ``source`` is no Python.
    """
    tree = ast.parse(source)
    words = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
    ]
    lines = {line for word in words for line in range(word.start[0], word.end[0] + 1)}
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    named = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    named.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
    return Size(
        code_lines=len(lines.difference(*map(_docstring_lines, nodes))),
        tokens=len(words),
        num_files=1,
        function_lines=tuple(_num_lines(node) for node in functions),
        num_value_types=sum(map(_is_value_type, nodes)),
        num_private_once=sum(_is_private(one.name) and named[one.name] <= 1 for one in functions),
    )


def _docstring_lines(node: ast.AST) -> range:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return range(0)
    if ast.get_docstring(node, clean=False) is None:
        return range(0)
    return range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def _num_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _is_value_type(node: ast.AST) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    decorators = (ast.unparse(one) for one in node.decorator_list)
    bases = [ast.unparse(one) for one in node.bases]
    return any("dataclass" in one for one in decorators) or any(
        word in base for base in bases for word in ("Struct", "NamedTuple")
    )


def room_sizes(root: Path, rooms: Mapping[str, Mapping[str, Any]]) -> dict[str, Size]:
    """Measure each room, and all of ``src`` under that name.

    Args:
        root: Root of a checkout.
        rooms: Rooms by name, each with its folders and modules as ``paths`` from ``root``.

    Raises:
        ValueError: If a file is in no room.
    """
    room_of = {root / path: name for name, room in rooms.items() for path in room["paths"]}
    sizes = dict.fromkeys((ALL, *rooms), Size())
    for file in sorted(path for top in ("src", "lab") for path in (root / top).rglob("*.py")):
        # Use the innermost path: a folder may have its room within another.
        place = next((one for one in (file, *file.parents) if one in room_of), None)
        if place is None:
            raise ValueError(f"{file.relative_to(root)} is in no room of the budget")
        size = size_of(file.read_text(encoding="utf-8"))
        sizes[room_of[place]] += size
        if file.is_relative_to(root / "src"):
            sizes[ALL] += size
    return sizes


def sizes_at(ref: str, rooms: Mapping[str, Mapping[str, Any]]) -> dict[str, Size]:
    """Measure the rooms as they were in a commit."""
    archive = subprocess.run(["git", "archive", ref], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    with tempfile.TemporaryDirectory() as folder:
        # Extract everything, since src links to examples.
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        return room_sizes(Path(folder), rooms)


def grown(sizes: Mapping[str, Size], budget: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each exceeded limit."""
    for name, limits in budget.items():
        for unit in ("code_lines", "tokens"):
            size, limit = getattr(sizes[name], unit), limits[unit]
            if size > limit:
                words = unit.replace("_", " ")
                yield f"{name} has {size:,} {words}, {size - limit:,} above its limit of {limit:,}"


def lower(file: Path, sizes: Mapping[str, Size]) -> None:
    """Lower the limits in a file to the sizes; a smaller limit stays."""
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    for name, limits in document.items():
        for unit in ("code_lines", "tokens"):
            limits[unit] = min(limits[unit], getattr(sizes[name], unit))
    file.write_text(tomlkit.dumps(document), encoding="utf-8")


class Calls:
    """A profile function that records own functions up to a depth, until the verdict.

    It skips calls during imports, lambdas and comprehensions.

    Args:
        package: The folder of own functions.
        max_depth: Depth of nested own calls; the first is at 1.
    """

    def __init__(self, package: Path, max_depth: int) -> None:
        self.has_verdict = False
        # Function names by file, both in the order of the first call.
        self.functions: dict[str, list[str]] = {}
        self._package = package
        self._max_depth = max_depth
        self._depth = 0
        self._num_imports = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Handle one event of `sys.setprofile`."""
        change = {"call": 1, "return": -1}.get(event, 0)
        code = frame.f_code
        if code.co_name == "<module>":
            self._num_imports += change
        if not change or self._num_imports or code.co_name.startswith("<"):
            return
        file = Path(code.co_filename)
        if not file.is_relative_to(self._package):
            return
        self._depth += change
        if change < 0:
            return
        if self._depth <= self._max_depth:
            names = self.functions.setdefault(str(file.relative_to(self._package)), [])
            if code.co_qualname not in names:
                names.append(code.co_qualname)
        if (file.parent.name, code.co_name) == _VERDICT:
            self.has_verdict = True
            sys.setprofile(None)


def calls_of_check(script: str, max_depth: int) -> dict[str, list[str]]:
    """Run ``breakeven check`` here, and return the functions that it calls until the verdict.

    Raises:
        SystemExit: If the check ended without a verdict.
    """
    import breakeven
    from breakeven.cli.dispatch import main as check

    calls = Calls(Path(breakeven.__file__).parent, max_depth)
    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(calls)
        try:
            check(["check", script, "--quiet"])
        finally:
            sys.setprofile(None)
    if not calls.has_verdict:
        raise SystemExit("the check ended without a verdict")
    return calls.functions


def _report(sizes: Mapping[str, Size], budget: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the output of ``--json``: sizes of each room, and its budget."""
    return {
        name: {
            "code_lines": size.code_lines,
            "tokens": size.tokens,
            "num_files": size.num_files,
            "num_functions": len(size.function_lines),
            "median_function_lines": statistics.median(size.function_lines or (0,)),
            "num_value_types": size.num_value_types,
            "num_private_once": size.num_private_once,
            "at_most": budget[name]["at_most"],
            "is_over": size.code_lines > budget[name]["at_most"],
        }
        for name, size in sizes.items()
    }


def _print_report(report: Mapping[str, Mapping[str, Any]]) -> None:
    whole = report[ALL]
    print(f"{whole['code_lines']:,} code lines, {whole['tokens']:,} tokens, ", end="")
    print(f"{whole['num_files']:,} files, {whole['num_functions']:,} functions ", end="")
    print(f"with a median of {whole['median_function_lines']:g} lines,")
    print(f"{whole['num_value_types']:,} value types, ", end="")
    print(f"{whole['num_private_once']:,} private functions that are named at most once\n")
    print(f"{'room':12}{'code lines':>12}{'at most':>10}{'over':>10}{'tokens':>10}{'files':>8}")
    for name, room in report.items():
        over = f"{room['code_lines'] - room['at_most']:,}" if room["is_over"] else "-"
        print(f"{name:12}{room['code_lines']:>12,}{room['at_most']:>10,}{over:>10}", end="")
        print(f"{room['tokens']:>10,}{room['num_files']:>8,}")


def main() -> int:
    """Print the requested figures; return 1 if a room grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ref", metavar="GIT_REF", help="measure this commit, not the checkout")
    for option, does in (
        ("--check", "end with 1 if a room is above its limits in FILE"),
        ("--lower", "lower the limits in FILE to the sizes of today"),
    ):
        what.add_argument(option, metavar="FILE", type=Path, nargs="?", const=BUDGET, help=does)
    what.add_argument("--calls", metavar="SCRIPT", help="count calls of a check of SCRIPT")
    parser.add_argument("--depth", metavar="N", type=int, default=6, help="of --calls (6)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.calls:
        files = calls_of_check(args.calls, args.depth)
        for file, names in files.items():
            if not args.json:
                print(f"{file}: {', '.join(names)}")
        counts = {"num_functions": sum(map(len, files.values())), "num_files": len(files)}
        print(
            json.dumps(counts | {"functions": files}, indent=2)
            if args.json
            else f"{counts['num_functions']} functions in {counts['num_files']} files"
        )
        return 0
    file = args.check or args.lower or BUDGET
    budget = tomllib.loads(file.read_text(encoding="utf-8"))
    sizes = sizes_at(args.ref, budget) if args.ref else room_sizes(ROOT, budget)
    if args.lower:
        lower(file, sizes)
    if args.check:
        failures = list(grown(sizes, budget))
        print("\n".join(failures) or "no room grew")
        return int(bool(failures))
    report = _report(sizes, budget)
    print(json.dumps(report, indent=2)) if args.json else _print_report(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a package exports is documented; what it keeps to itself need not repeat its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import breakeven

_ROOT = Path(breakeven.__file__).parents[1]
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_PACKAGES = sorted(
    file.parent for file in _ROOT.rglob("__init__.py") if "scripts" not in file.parent.parts
)


def exports(package: Path) -> Iterator[tuple[str, _Definition]]:
    """Yield the functions and classes that a package hands on, each with its module."""
    for node in ast.walk(ast.parse((package / "__init__.py").read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
            ("breakeven.", "faststep.")
        ):
            continue
        module = _ROOT.joinpath(*(node.module or "").split("."))
        file = module.with_suffix(".py") if module.with_suffix(".py").is_file() else None
        names = {alias.name for alias in node.names if alias.asname == alias.name}
        for found in ast.parse(file.read_text()).body if file is not None else ():
            if isinstance(found, _Definition) and found.name in names:
                yield node.module or "", found


def undocumented(module: str, found: _Definition) -> Iterator[str]:
    """Yield what has no docstring: a function, or a class and what of it others call."""
    if ast.get_docstring(found) is None:
        yield f"{module}.{found.name}"
    if isinstance(found, ast.ClassDef):
        for member in found.body:
            if (
                isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
                and not member.name.startswith("_")
                and ast.get_docstring(member) is None
            ):
                yield f"{module}.{found.name}.{member.name}"


@pytest.mark.parametrize(
    "package", _PACKAGES, ids=lambda folder: folder.relative_to(_ROOT).as_posix()
)
def test_what_a_package_exports_is_documented(package: Path) -> None:
    assert [name for export in exports(package) for name in undocumented(*export)] == []


def test_exports_are_found() -> None:
    names = {found.name for _, found in exports(_ROOT / "breakeven" / "timing")}
    assert {"Measurement", "Estimate"} <= names

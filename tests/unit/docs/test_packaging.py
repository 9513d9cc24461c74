"""The files around the code say the same things as the code and as one another."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import breakeven
from breakeven.systems import SYSTEMS

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "breakeven"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirement_name(requirement: str) -> str:
    matched = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert matched is not None
    return _normalized(matched.group())


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {_normalized(name): version for name, version in pairs}


def _setup_commands() -> list[str]:
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if "pip install" in line]


def test_the_version_is_the_same_in_code_and_metadata() -> None:
    assert PROJECT["version"] == breakeven.__version__


def test_every_requirement_is_pinned_once() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = [_normalized(line.split("==")[0]) for line in lines if not line.startswith("#")]
    assert len(pinned) == len(set(pinned))
    requirements = [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["dev"],
        *PYPROJECT["build-system"]["requires"],
    ]
    assert {_requirement_name(requirement) for requirement in requirements} <= set(pinned)


def test_pins_match_any_build_of_torch() -> None:
    # A local version such as +cpu would keep everyone with a GPU from using the file.
    assert all("+" not in version for version in _pins().values())
    assert _pins()["torch"] == "2.13.0"


def test_the_readme_has_exactly_two_set_up_commands_of_one_line() -> None:
    commands = _setup_commands()
    assert len(commands) == 2
    assert all(command.startswith("pip install -c constraints.txt ") for command in commands)
    assert not any(command.endswith("\\") for command in commands)
    main_job = commands[0].split(" && ")[1].split()
    assert main_job[:2] == ["breakeven", "check"]
    assert (ROOT / main_job[2]).is_file()
    assert "python -m pytest" in commands[1]


def test_links_of_the_readme_lead_to_files() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).is_file()] == []


def test_hooks_run_pinned_tools_of_the_environment_that_ci_runs_too() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert re.findall(r"repo: (\S+)", hooks) == ["local"]
    entries = re.findall(r"entry: (.+)", hooks)
    assert len(entries) == len(re.findall("language: system", hooks)) > 0
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    for entry in entries:
        # ruff is told the file names by pre-commit, and finds them itself in CI.
        assert entry.removesuffix(" --force-exclude") in ci


def test_imports_of_the_package_are_declared_dependencies() -> None:
    declared = {_requirement_name(requirement) for requirement in PROJECT["dependencies"]}
    extras = PROJECT["optional-dependencies"]
    optional = {
        _requirement_name(requirement)
        for extra in ("validate", "notebook", "plots", "prices", "ray")
        for requirement in extras[extra]
    }
    allowed = {*declared, *sys.stdlib_module_names, "breakeven", "faststep"}
    undeclared = {
        (path.relative_to(ROOT).as_posix(), name, is_in_function)
        for path in (ROOT / "src").rglob("*.py")
        for name, is_in_function in _imports(ast.parse(path.read_text("utf-8")))
        # What may not be installed is imported where it is needed, never with the module.
        if name not in allowed and not (is_in_function and name.lower() in optional)
    }
    assert undeclared == set()


def _imports(tree: ast.AST, *, is_in_function: bool = False) -> set[tuple[str, bool]]:
    """Return the packages that are imported, and whether inside a function."""
    found: set[tuple[str, bool]] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name.partition(".")[0], is_in_function) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add((node.module.partition(".")[0], is_in_function))
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        found |= _imports(node, is_in_function=is_in_function or is_function)
    return found


def test_every_folder_has_its_place_in_the_layers() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = {name for layer in layers for name in layer.split(" | ")}
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert folders | modules <= placed


def test_the_wheel_tells_type_checkers_that_it_is_typed() -> None:
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["src/breakeven", "src/faststep"]
    assert all((ROOT / package / "py.typed").is_file() for package in packages)


def test_paths_of_the_strict_type_checks_exist() -> None:
    assert [
        path for path in PYPROJECT["tool"]["pyright"]["strict"] if not (ROOT / path).exists()
    ] == []


def test_the_wheel_has_the_scripts_of_the_systems() -> None:
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    places = {
        Path(place, path.name) if path != ROOT / source else Path(place)
        for source, place in included.items()
        for path in ([ROOT / source] if (ROOT / source).is_file() else (ROOT / source).iterdir())
        if path.suffix == ".py"
    }
    scripts = {script for entry in SYSTEMS for script in entry.scripts}
    assert places == {Path("breakeven/workloads/scripts", script) for script in scripts}


def test_importing_breakeven_imports_no_torch() -> None:
    program = "import sys, breakeven; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "LICENSE", "constraints.txt"])
def test_files_of_the_source_distribution_exist(name: str) -> None:
    assert name in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert (ROOT / name).is_file()

"""The action for GitHub and the hook for pre-commit, run with a made-up ``breakeven``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from breakeven.cli.dispatch import build_parser

ROOT = Path(__file__).parents[3]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
CHECK = next(step for step in STEPS if step.get("id") == "check")
DEFAULTS = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()}
# Records its arguments, writes the file of a check, and ends with $EXIT_CODE.
FAKE = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
words = sys.argv[1:]
if words[0] == "report" and "github" in words:
    print("::warning file=train.py::slow")
if "--output" in words and os.environ["EXIT_CODE"] != "3":
    open(words[words.index("--output") + 1], "x").close()
sys.exit(int(os.environ["EXIT_CODE"]) if words[0] == "check" else 0)
"""


class ActionRun(NamedTuple):
    """What a run of the action's check did."""

    exit_code: int
    stdout: str
    calls: list[list[str]]
    outputs: dict[str, str]

    @property
    def checked(self) -> list[str]:
        """Arguments of the check, without the file."""
        words = self.calls[0]
        position = words.index("--output")
        return words[:position] + words[position + 2 :]


@pytest.fixture
def run_action(tmp_path: Path) -> Callable[..., ActionRun]:
    if os.name != "posix" or shutil.which("bash") is None:
        pytest.skip("the made-up breakeven is a script with a shebang, run by bash")
    program = tmp_path / "bin" / "breakeven"
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)

    def run(inputs: Mapping[str, str], exit_code: int = 0) -> ActionRun:
        given = {**DEFAULTS, **inputs}
        calls, outputs = tmp_path / "calls", tmp_path / "outputs"
        calls.touch()
        outputs.touch()
        variables = {
            name: given[text.removeprefix("${{ inputs.").removesuffix(" }}")]
            for name, text in CHECK["env"].items()
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", CHECK["run"]],
            env={
                **variables,
                "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
                "RUNNER_TEMP": str(tmp_path),
                "GITHUB_OUTPUT": str(outputs),
                "CALLS": str(calls),
                "EXIT_CODE": str(exit_code),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return ActionRun(
            done.returncode,
            done.stdout,
            [json.loads(line) for line in calls.read_text().splitlines()],
            dict(line.split("=", 1) for line in outputs.read_text().splitlines()),
        )

    return run


def test_the_target_alone_is_checked_and_annotated(run_action: Callable[..., ActionRun]) -> None:
    done = run_action({"target": "train.py"})
    assert done.exit_code == 0
    assert done.checked == ["check", "train.py", "--quiet"]
    assert done.calls[1:] == [["report", done.outputs["run"], "--format", "github"]]
    assert done.stdout == "::warning file=train.py::slow\n"
    assert done.outputs.keys() == {"run"}


def test_each_line_is_a_condition_and_quotes_group_options(
    run_action: Callable[..., ActionRun],
) -> None:
    done = run_action(
        {
            "target": "my train.py",
            "fail-if": "step > 5 ms on T4\n\n  \nfinding SYNC001\n",
            "strict": "true",
            "options": "--device 'RTX 4090' --steps 100\n-- --lr \"1e-3\"",
        }
    )
    assert done.checked == [
        "check", "my train.py", "--quiet",
        "--fail-if", "step > 5 ms on T4", "--fail-if", "finding SYNC001", "--strict",
        "--device", "RTX 4090", "--steps", "100", "--", "--lr", "1e-3",
    ]  # fmt: skip


def test_no_input_is_run_as_a_command(run_action: Callable[..., ActionRun], tmp_path: Path) -> None:
    bad = f"$(touch {tmp_path}/bad); touch {tmp_path}/bad `touch {tmp_path}/bad`"
    done = run_action({"target": bad, "fail-if": bad, "options": bad})
    assert done.checked[:5] == ["check", bad, "--quiet", "--fail-if", bad]
    assert not (tmp_path / "bad").exists()
    # No step has an input in its script, where GitHub would paste it.
    assert not [step for step in STEPS if "${{" in step.get("run", "")]


@pytest.mark.parametrize("exit_code", [1, 2, 3])
def test_the_exit_code_is_that_of_the_check(
    exit_code: int, run_action: Callable[..., ActionRun]
) -> None:
    done = run_action({"target": "train.py", "sarif": "true"}, exit_code)
    assert done.exit_code == exit_code
    # Without a file, as for a script that failed, there is nothing to show.
    has_file = exit_code != 3
    assert len(done.calls) == (3 if has_file else 1)
    assert ("sarif" in done.outputs) == has_file


def test_findings_are_uploaded_if_asked(run_action: Callable[..., ActionRun]) -> None:
    done = run_action({"target": "train.py", "sarif": "true", "annotations": "false"})
    sarif = done.outputs["sarif"]
    assert done.calls[1:] == [
        ["report", done.outputs["run"], "--format", "sarif", "--output", sarif]
    ]
    assert Path(sarif).is_file()
    upload = next(step for step in STEPS if "uses" in step)
    assert upload["with"]["sarif_file"] == "${{ steps.check.outputs.sarif }}"
    assert upload["if"] == "always() && steps.check.outputs.sarif != ''"


def test_every_input_is_described_and_used() -> None:
    text = (ROOT / "action.yml").read_text("utf-8")
    for name, one in ACTION["inputs"].items():
        assert one["description"]
        assert f"${{{{ inputs.{name} }}}}" in text
    for name, one in ACTION["outputs"].items():
        assert one["value"] == f"${{{{ steps.check.outputs.{name} }}}}"
    assert [step["shell"] for step in STEPS if "run" in step] == ["bash", "bash"]


def test_the_commands_of_the_action_and_the_hook_parse() -> None:
    conditions = ["--fail-if", "step > 5 ms on T4", "--strict"]
    (hook,) = HOOKS
    assert hook["language"] == "python"
    assert hook["pass_filenames"] is False
    program, *words = hook["entry"].split()
    assert program == "breakeven"
    args = build_parser().parse_args([*words, "train.py", *conditions])
    assert args.command == "check"
    assert args.quiet
    assert args.strict
    for words in re.findall(r"breakeven (report .*?)(?:;|$)", CHECK["run"], re.MULTILINE):
        assert build_parser().parse_args(words.replace('"', "").split()).format


def test_the_page_shows_the_action_and_the_hook_with_inputs_that_they_have() -> None:
    page = (ROOT / "docs" / "ci.md").read_text("utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    used = [step for block in blocks if isinstance(block, list) for step in block]
    (action,) = (step for step in used if "with" in step and "target" in step["with"])
    assert action["with"].keys() <= ACTION["inputs"].keys()
    (hook,) = (hook for step in used for hook in step.get("hooks", ()))
    assert hook["id"] in [one["id"] for one in HOOKS]

"""What trackers are told, on small packages that stand for them; in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

# Each function tells what it got, as the tracker of that name would take it.
PACKAGES = {
    "wandb/__init__.py": """
        from wandb.sdk import agent, init, login
    """,
    "wandb/sdk.py": """
        import os
        def init(project=None, mode=None, **settings):
            return {"project": project, "mode": mode, "variable": os.environ["WANDB_MODE"]}
        def login():
            raise ConnectionError("no server")
        def agent(sweep_id, function=None):
            function()
    """,
    "mlflow/__init__.py": """
        import os
        class MlflowClient:
            def __init__(self, tracking_uri=None, registry_uri=None):
                self.uri = tracking_uri
            def log_metric(self, *_, **__):
                raise ConnectionError("no server")
        def set_tracking_uri(uri):
            global tracking_uri
            tracking_uri = uri
        def log_metric(key, value, step=None):
            raise ConnectionError("no server")
    """,
    "clearml/__init__.py": """
        import os
        class Task:
            is_offline = os.environ["CLEARML_OFFLINE_MODE"] == "1"
            @classmethod
            def init(cls, project_name):
                return cls.is_offline
            @classmethod
            def set_offline(cls, offline_mode=False):
                cls.is_offline = offline_mode
    """,
    "aim/__init__.py": """
        class Run:
            def __init__(self, run_hash=None, *, repo=None):
                self.repo = repo
    """,
    "trackio/__init__.py": """
        import importlib, os
        variable = os.environ.get("TRACKIO_SPACE_ID")
        def __getattr__(name):  # what is imported only when it is asked for
            return getattr(importlib.import_module("trackio.run"), name)
    """,
    "trackio/run.py": """
        def init(project, space_id=None):
            return space_id
    """,
}
START = """
import json, sys
from pathlib import Path
from breakeven.capture.protect.quiet_trackers import QuietTrackers

trackers = QuietTrackers(Path("/scratch"))
trackers.enter()
{script}
print(json.dumps([result, trackers.used()]))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return the folder in which the packages are installed."""
    folder = tmp_path / "site-packages"
    for name, text in PACKAGES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return folder


def results_of(script: str, packages: Path, **variables: str) -> list[Any]:
    """Return the ``result`` of a script, and the trackers that it was told to have used."""
    ended = subprocess.run(
        [sys.executable, "-c", START.format(script=textwrap.dedent(script))],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([*sys.path, str(packages)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_nothing_is_logged_whatever_the_script_says(packages: Path) -> None:
    script = """
        import os
        os.environ["WANDB_MODE"] = "online"
        import wandb
        from wandb import init
        from wandb.sdk import init as same_init
        assert wandb.login()
        result = [
            wandb.init("here", "online", tags=["a"]),
            init(mode="online"),
            same_init(),
        ]
    """
    quiet = {"mode": "disabled", "variable": "disabled"}
    assert results_of(script, packages) == [
        [{"project": "here", **quiet}, {"project": None, **quiet}, {"project": None, **quiet}],
        ["Weights & Biases"],
    ]


def test_a_server_is_replaced_by_a_folder(packages: Path) -> None:
    script = """
        import mlflow, aim
        mlflow.set_tracking_uri("http://server")
        mlflow.log_metric("loss", 1.0, step=1)
        client = mlflow.MlflowClient("http://server")
        client.log_metric("run", "loss", 1.0)
        result = [mlflow.tracking_uri, client.uri, aim.Run("hash", repo="aim://server").repo]
    """
    uri = "file:///scratch/mlflow"
    assert results_of(script, packages) == [[uri, uri, "/scratch/aim"], ["MLflow", "Aim"]]


def test_methods_of_classes_are_reached(packages: Path) -> None:
    script = """
        from clearml import Task
        Task.set_offline(False)
        class Own(Task):
            pass
        result = [Task.init("project"), Own.init("project")]
    """
    assert results_of(script, packages) == [[True, True], ["ClearML"]]


def test_variables_that_name_a_server_are_gone(packages: Path) -> None:
    script = """
        import trackio
        result = [trackio.variable, trackio.init("project", space_id="me/space")]
    """
    result = results_of(script, packages, TRACKIO_SPACE_ID="me/space")
    assert result == [[None, None], ["Trackio"]]


def test_a_tracker_that_is_only_imported_is_not_told(packages: Path) -> None:
    script = """
        import importlib.util, wandb, mlflow
        result = importlib.util.find_spec("aim") is not None
    """
    assert results_of(script, packages) == [True, []]


def test_what_is_nothing_without_the_server_says_what_to_do(packages: Path) -> None:
    script = """
        import wandb
        try:
            wandb.agent("me/sweep", function=print)
        except RuntimeError as error:
            result = str(error)
    """
    said, used = results_of(script, packages)
    assert "keeps wandb.agent from its server; --keep-trackers" in said
    assert used == ["Weights & Biases"]


def test_a_module_of_the_user_by_the_same_name_is_left_alone(
    packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "aim.py").write_text("def Run(repo):\n    return repo\n")
    (tmp_path / "wandb").mkdir()  # in which wandb keeps its runs
    for name in ("aim", "wandb"):
        (packages / name).rename(packages / f"no_{name}")
    script = f"""
        sys.path.insert(0, {str(tmp_path)!r})
        import aim, wandb
        result = aim.Run(repo="mine")
    """
    assert results_of(script, packages) == ["mine", []]

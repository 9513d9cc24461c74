"""Experiment trackers, and how each is told to log nothing, or to a folder that is thrown away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

FOLDER = "{folder}"
"""Stands in the text below for a folder that is thrown away."""

TELEMETRY = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Environment variables by which libraries report on their own use no more.

Source: https://consoledonottrack.com and Hugging Face Hub, "Environment variables".
"""


class Tracker(NamedTuple):
    """A tracker, or another service that a training script reports to.

    What a variable does not reach, since the script has the last word in its code, is reached
    through the functions that the script calls. Those that a version of the tracker does not have
    are left out. A method is written ``Class.method``, a class means its ``__init__``.

    Args:
        name: As its makers write it.
        module: Whose functions and classes these are.
        environment: Variables that it documents; None for one that must not be there.
        forced: Functions and classes whose call makes a run, each with the arguments that it gets
            whatever the script gives it; arguments that it does not take are left out.
        answered: Functions that are not called at all, each with what they return: those that
            ask, and those that log, where they take long although nobody listens.
        refused: Functions that are nothing without an answer of the server; they raise.
    """

    name: str
    module: str
    environment: Mapping[str, str | None] = {}
    forced: Mapping[str, Mapping[str, Any]] = {}
    answered: Mapping[str, Any] = {}
    refused: tuple[str, ...] = ()


_IN_FOLDER = f"file://{FOLDER}/mlflow"
_NOT_REMOTE = dict.fromkeys(("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url"))

TRACKERS = (
    Tracker(
        # Source: https://docs.wandb.ai/guides/track/environment-variables
        name="Weights & Biases",
        module="wandb",
        environment={
            "WANDB_MODE": "disabled",
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
        },
        forced={"init": {"mode": "disabled"}},
        answered={"login": True},
        refused=("agent", "controller", "sweep"),
    ),
    Tracker(
        # It has no mode in which it logs nothing.
        # Source: mlflow.environment_variables, 3.17.2
        name="MLflow",
        module="mlflow",
        environment={
            "MLFLOW_TRACKING_URI": _IN_FOLDER,
            "MLFLOW_REGISTRY_URI": _IN_FOLDER,
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
        },
        forced={
            "set_tracking_uri": {"uri": _IN_FOLDER},
            "set_registry_uri": {"uri": _IN_FOLDER},
            "MlflowClient": {"tracking_uri": _IN_FOLDER, "registry_uri": _IN_FOLDER},
        },
        # A line in a file for each value takes longer than many a step.
        answered={
            "login": None,
            "log_metric": None,
            "log_metrics": None,
            "MlflowClient.log_metric": None,
            "MlflowClient.log_batch": None,
        },
    ),
    Tracker(
        # Source: https://www.comet.com/docs/v2/guides/experiment-management/configure-sdk/
        name="Comet",
        module="comet_ml",
        environment={
            "COMET_AUTO_LOG_DISABLE": "true",
            "COMET_DISABLE_AUTO_LOGGING": "1",
            "COMET_START_ONLINE": "false",
            "COMET_OFFLINE_DIRECTORY": f"{FOLDER}/comet",
        },
        forced={
            "start": {"online": False},
            "Experiment": {"disabled": True},
            "ExistingExperiment": {"disabled": True},
            "OfflineExperiment": {"disabled": True},
            "ExistingOfflineExperiment": {"disabled": True},
        },
        answered={"init": None, "login": None},
    ),
    Tracker(
        # Source: https://docs.neptune.ai/api/connection_modes
        name="Neptune",
        module="neptune",
        environment={"NEPTUNE_MODE": "debug"},
        forced={name: {"mode": "debug"} for name in ("Run", "Model", "ModelVersion", "Project")},
        answered={"handler.Handler.append": None, "handler.Handler.log": None},
    ),
    Tracker(
        # Source: the docstring of Run, 0.30.0
        name="Neptune",
        module="neptune_scale",
        forced={"Run": {"mode": "disabled"}},
    ),
    Tracker(
        # Source: the docstring of Task.set_offline, 2.1.12
        name="ClearML",
        module="clearml",
        environment={
            "CLEARML_OFFLINE_MODE": "1",
            "CLEARML_CACHE_DIR": f"{FOLDER}/clearml",
            "CLEARML_LOG_MODEL": "FALSE",  # read by Transformers; it fails when offline
        },
        forced={
            "Task.init": {
                "auto_connect_frameworks": False,
                "auto_connect_streams": False,
                "auto_resource_monitoring": False,
            },
            "Task.set_offline": {"offline_mode": True},
        },
        answered={"Logger.report_scalar": None},
    ),
    Tracker(
        # It has no mode in which it logs nothing.
        # Source: the docstring of Run, 3.29.1
        name="Aim",
        module="aim",
        forced={
            "Run": {
                "repo": f"{FOLDER}/aim",
                "system_tracking_interval": None,
                "capture_terminal_logs": False,
            }
        },
        answered={"Run.track": None},
    ),
    Tracker(
        # Source: the docstring of init, 0.43.0
        name="Trackio",
        module="trackio",
        environment={
            "TRACKIO_DIR": f"{FOLDER}/trackio",
            "TRACKIO_SPACE_ID": None,
            "TRACKIO_SERVER_URL": None,
            "TRACKIO_WEBHOOK_URL": None,
        },
        forced={
            "init": {**_NOT_REMOTE, "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        },
        answered={"log": None, "Run.log": None},
    ),
    Tracker(
        # Source: https://docs.swanlab.cn/en/api/environment-variable.html
        name="SwanLab",
        module="swanlab",
        environment={"SWANLAB_MODE": "disabled"},
        forced={"init": {"mode": "disabled"}},
        answered={"login": None},
    ),
    # `push_to_hub=True` makes a repository before the first step.
    Tracker(
        name="Hugging Face Hub",
        module="transformers.trainer",
        answered={
            "Trainer.init_hf_repo": None,
            "Trainer._push_from_checkpoint": None,
            "Trainer.push_to_hub": None,
        },
    ),
    Tracker(
        name="Hugging Face Hub",
        module="transformers.utils.hub",
        answered={"PushToHubMixin.push_to_hub": None},
    ),
)

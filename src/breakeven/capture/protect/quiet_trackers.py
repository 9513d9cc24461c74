"""Keep experiment trackers quiet in runs that only measure, by the variables that they document."""

from __future__ import annotations

import os
from pathlib import Path

# "{folder}" stands for a folder that is thrown away with the run.
_VARIABLES = {
    # Source: https://docs.wandb.ai/guides/track/environment-variables
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    # Source: mlflow.environment_variables, 3.17.2
    "MLFLOW_TRACKING_URI": "file://{folder}/mlflow",
    "MLFLOW_REGISTRY_URI": "file://{folder}/mlflow",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    # Source: https://www.comet.com/docs/v2/guides/experiment-management/configure-sdk/
    "COMET_AUTO_LOG_DISABLE": "true",
    "COMET_DISABLE_AUTO_LOGGING": "1",
    "COMET_START_ONLINE": "false",
    "COMET_OFFLINE_DIRECTORY": "{folder}/comet",
    # Source: https://docs.neptune.ai/api/connection_modes
    "NEPTUNE_MODE": "debug",
    # Source: the docstring of Task.set_offline, 2.1.12
    "CLEARML_OFFLINE_MODE": "1",
    "CLEARML_CACHE_DIR": "{folder}/clearml",
    "CLEARML_LOG_MODEL": "FALSE",  # read by Transformers; it fails when offline
    # Source: the docstring of init, 0.43.0
    "TRACKIO_DIR": "{folder}/trackio",
    # Source: https://docs.swanlab.cn/en/api/environment-variable.html
    "SWANLAB_MODE": "disabled",
    # Source: https://consoledonottrack.com and Hugging Face Hub, "Environment variables".
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_SERVERS = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL")


def quiet_trackers(folder: Path) -> None:
    """Let trackers log nothing in this process, or to a folder, and those that it starts.

    A script that forces its tracker online, by an argument for instance, logs.
    """
    for name in _SERVERS:
        os.environ.pop(name, None)
    for name, value in _VARIABLES.items():
        os.environ[name] = value.replace("{folder}", str(folder))

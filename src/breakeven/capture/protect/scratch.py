"""Redirects a run's writes to a temporary folder, and reports them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from breakeven.capture.messages import HostRequest, Keep, RatesRequest, Request
from breakeven.capture.protect.overlay import Overlay, overlay_writes
from breakeven.capture.protect.redirected import redirected_writes
from breakeven.trace import FileWrites, WriteProtection
from faststep.codegen.toolchain import kept_steps

# Limit on the written files that are listed by name.
_MAX_FILES = 100
# Name of the variable that selects the protection; tests use it to select other systems' one.
_WANTED = "BREAKEVEN_WRITE_PROTECTION"
_BYTE_CODE = f"{os.sep}__pycache__{os.sep}"
# Shared caches of downloads and compiled code, by the variable that names their folder.
_CACHES = {
    "HF_HOME": "~/.cache/huggingface",
    "TORCH_HOME": "~/.cache/torch",
    "TORCH_EXTENSIONS_DIR": "~/.cache/torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
}


class Scratch:
    """Makes a new layer for each run.

    Args:
        folder: Folder of the runs' temporary files, and of the layers.
        keep: Side effects to keep.
        may_fork: Whether processes may fork; only then a layer catches the writes of all code.
    """

    def __init__(self, folder: Path, keep: Keep, *, may_fork: bool = True) -> None:
        self._folder = folder
        self._may_fork = may_fork
        self._kept = [*map(Path, map(os.fsdecode, keep.raw_folders)), *_caches()]
        self._num_layers = 0
        self._protection = WriteProtection.NONE if keep.writes else self._best_protection()

    def layer(self, more_kept: Iterable[Path] = (), used: Iterable[Path] = ()) -> Layer:
        """Return the layer of the next run.

        Args:
            more_kept: More folders in which this run's writes are real.
            used: Folders that the run is likely to write to.
        """
        self._num_layers += 1
        folder = self._folder / f"layer-{self._num_layers}"
        return Layer(folder, self._protection, (*self._kept, *more_kept), tuple(used))

    def layer_for(self, request: Request) -> Layer | None:
        """Return the layer for a request; None if the request runs no script.

        Args:
            request: The request, which may name a file that the run writes for us.
        """
        if isinstance(request, HostRequest | RatesRequest):
            return None
        numbers, target = os.fsdecode(request.raw_numbers_path), request.target
        # Folders in which scripts usually write, and those in the arguments.
        used: list[Path] = []
        named = [argument.rpartition("=")[2] for argument in target.arguments]
        for name in (os.curdir, target.path, self._folder, "~", *named):
            with suppress(OSError, RuntimeError, ValueError):  # too long, forbidden, or no path
                path = Path(name).expanduser().resolve()
                used.append(path if path.is_dir() else path.parent)
        return self.layer([Path(numbers).parent] if numbers else (), used)

    def _best_protection(self) -> WriteProtection:
        """Return the best protection that this system allows."""
        is_wanted = os.environ.get(_WANTED, WriteProtection.OVERLAY) == WriteProtection.OVERLAY
        if not (is_wanted and self._may_fork):
            return WriteProtection.REDIRECTED
        self._protection = WriteProtection.OVERLAY
        layer = self.layer()
        child = os.fork()
        if child == 0:
            with suppress(OSError, AttributeError):  # this system's library lacks the calls
                layer.enter()
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        layer.remove()
        return WriteProtection.REDIRECTED if status else WriteProtection.OVERLAY


@dataclass(frozen=True, slots=True)
class Layer:
    """The destination of one run's writes.

    Args:
        folder: The layer's own folder; created by `enter`.
        protection: Kind of protection.
        kept: Folders whose writes are real.
        used: Folders that the run is likely to write to.
    """

    folder: Path
    protection: WriteProtection
    kept: Sequence[Path]
    used: Sequence[Path] = ()

    def enter(self) -> None:
        """Redirect the writes of this process and of all that it starts to the layer.

        Raises:
            OSError: This system forbids it.
        """
        if self.protection is WriteProtection.OVERLAY:
            Overlay(self.folder, self.kept, self.used).enter()
        elif self.protection is WriteProtection.REDIRECTED:
            from breakeven.capture.protect.redirected import RedirectedFiles

            sys.dont_write_bytecode = True
            RedirectedFiles(self.folder, (*self.kept, self.folder.parent)).enter()

    def writes(self) -> FileWrites:
        """Return the writes of the run, whose processes have ended."""
        if self.protection is WriteProtection.NONE or not self.folder.exists():
            return FileWrites(protection=self.protection)
        is_overlay = self.protection is WriteProtection.OVERLAY
        of_kind = overlay_writes if is_overlay else redirected_writes
        ours = f"{self.folder.parent}{os.sep}"
        files = [
            write
            for write in of_kind(self.folder)
            if _BYTE_CODE not in write.path and not f"{write.path}{os.sep}".startswith(ours)
        ]
        files.sort(key=lambda write: (-write.num_bytes, write.path))
        return FileWrites(
            protection=self.protection,
            files=tuple(files[:_MAX_FILES]),
            num_files=len(files),
            num_bytes=sum(write.num_bytes for write in files),
        )

    def remove(self) -> None:
        """Remove the layer."""
        remove_tree(self.folder)


def _caches() -> list[Path]:
    # Create the folder: only an existing one can be kept. Otherwise compiled code would be lost to
    # other runs and reported as the script's file.
    with suppress(OSError):
        kept_steps().mkdir(parents=True, exist_ok=True, mode=0o700)
    named = (os.environ.get(name) or usual for name, usual in _CACHES.items())
    return [kept_steps(), *(Path(path).expanduser() for path in named if path)]


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if the kernel or the script made a part inaccessible to its owner."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    # These take paths that are too long, or thousands of folders deep.
    if os.name == "posix" and folder.exists():
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, "--", folder], stderr=subprocess.DEVNULL, check=False)


# "{folder}" is a folder that is removed with the run.
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
    """Disable trackers in this process and all that it starts, or redirect them to a folder.

    A script that forces its tracker online, for instance by an argument, still logs.
    """
    for name in _SERVERS:
        os.environ.pop(name, None)
    for name, value in _VARIABLES.items():
        os.environ[name] = value.replace("{folder}", str(folder))

"""Let what a run writes go to a folder that is thrown away, and tell what it was."""

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

# At most this number of the files that a run writes are listed by name.
_MAX_FILES = 100
# Names the protection, for tests of the one that is for other systems.
_WANTED = "BREAKEVEN_WRITE_PROTECTION"
_BYTE_CODE = f"{os.sep}__pycache__{os.sep}"
# What libraries download or compile once, for all programs, by the variable that names its folder.
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
        folder: Temporary files of the runs, which holds the layers too.
        keep: What is to be real.
        may_fork: Processes may be forked; only then a layer sees whatever writes.
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
            more_kept: Folders in which this run's writes are real too.
            used: Folders that it is likely to write to.
        """
        self._num_layers += 1
        folder = self._folder / f"layer-{self._num_layers}"
        return Layer(folder, self._protection, (*self._kept, *more_kept), tuple(used))

    def layer_for(self, request: Request) -> Layer | None:
        """Return the layer of the run that is asked for; None if that is not of a script.

        Args:
            request: Names the file that the run writes for us, if any.
        """
        if isinstance(request, HostRequest | RatesRequest):
            return None
        numbers, target = os.fsdecode(request.raw_numbers_path), request.target
        # The folders in which scripts usually write, and those that the arguments name.
        used: list[Path] = []
        named = [argument.rpartition("=")[2] for argument in target.arguments]
        for name in (os.curdir, target.path, self._folder, "~", *named):
            with suppress(OSError, RuntimeError, ValueError):  # too long, closed, or no path at all
                path = Path(name).expanduser().resolve()
                used.append(path if path.is_dir() else path.parent)
        return self.layer([Path(numbers).parent] if numbers else (), used)

    def _best_protection(self) -> WriteProtection:
        """Return what this system allows."""
        is_wanted = os.environ.get(_WANTED, WriteProtection.OVERLAY) == WriteProtection.OVERLAY
        if not (is_wanted and self._may_fork):
            return WriteProtection.REDIRECTED
        self._protection = WriteProtection.OVERLAY
        layer = self.layer()
        child = os.fork()
        if child == 0:
            with suppress(OSError, AttributeError):  # nothing like it in this system's library
                layer.enter()
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        layer.remove()
        return WriteProtection.REDIRECTED if status else WriteProtection.OVERLAY


@dataclass(frozen=True, slots=True)
class Layer:
    """Where the writes of one run go.

    Args:
        folder: Of its own; made by `enter`.
        protection: How.
        kept: Folders whose writes are real.
        used: Folders that the run is likely to write to.
    """

    folder: Path
    protection: WriteProtection
    kept: Sequence[Path]
    used: Sequence[Path] = ()

    def enter(self) -> None:
        """Let this process write to the layer, and all that it starts.

        Raises:
            OSError: That is not allowed here.
        """
        if self.protection is WriteProtection.OVERLAY:
            Overlay(self.folder, self.kept, self.used).enter()
        elif self.protection is WriteProtection.REDIRECTED:
            from breakeven.capture.protect.redirected import RedirectedFiles

            sys.dont_write_bytecode = True
            RedirectedFiles(self.folder, (*self.kept, self.folder.parent)).enter()

    def writes(self) -> FileWrites:
        """Return what the run wrote, whose processes are gone."""
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
        """Throw the layer away."""
        remove_tree(self.folder)


def _caches() -> list[Path]:
    # A folder that is not there cannot be kept: what one run compiles would be lost to all others,
    # and told as a file of the script.
    with suppress(OSError):
        kept_steps().mkdir(parents=True, exist_ok=True, mode=0o700)
    named = (os.environ.get(name) or usual for name, usual in _CACHES.items())
    return [kept_steps(), *(Path(path).expanduser() for path in named if path)]


def remove_tree(folder: Path) -> None:
    """Remove a folder, also if the kernel or the script closed a part of it to its owner."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            for place, names, _ in os.walk(folder):
                for path in (Path(place, name) for name in names):
                    with suppress(OSError):
                        if not path.is_symlink():
                            path.chmod(0o700)
            shutil.rmtree(folder, ignore_errors=True)
    # What is thousands of folders deep, or has too long a path.
    if os.name == "posix" and folder.exists():
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


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

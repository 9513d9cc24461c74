"""The verdict on the first hundred steps of a training, in the log of the run."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from breakeven.adapters.transformers import import_optional
from breakeven.capture import FirstSteps
from breakeven.errors import BreakevenError
from breakeven.report import CheckReport
from breakeven.studies import Report, check_runs
from breakeven.units import NS_PER_MS, format_percent

_ON_GPU = "the training runs on a GPU, and the verdict needs steps on the CPU"


def _verdict(steps: FirstSteps, name: str, devices: Sequence[str], host: str) -> dict[str, Any]:
    """Return what to log after a step: empty but for the one that completes the first steps."""
    runs = steps.end_step()
    if runs is None:
        return {}
    try:
        return _values(check_runs(*runs, target=name, devices=devices, host=host))
    except BreakevenError as error:
        warnings.warn(f"breakeven has no verdict: {error.sentence}", RuntimeWarning, stacklevel=3)
        return {}


def _values(report: CheckReport) -> dict[str, Any]:
    """Return the verdict as values for a log: numbers and texts."""
    values: dict[str, Any] = {
        "breakeven/step_ms": report.results[0].step_ns / NS_PER_MS,
        "breakeven/speedup": report.verdict.speedup,
        "breakeven/verdict": repr(Report(report)),
    }
    if report.findings:
        slow = report.findings[0]
        values["breakeven/slow"] = (
            f"{slow.code}: {slow.title}; the fix saves {format_percent(slow.gain_fraction)} of a "
            f"step on a GPU: {slow.fix}"
        )
    return values


def verdict_callback(devices: Sequence[str] = (), host: str = "auto") -> Any:
    """Return a Lightning ``Callback`` that logs whether another device would pay.

    It watches the first hundred steps of a training on the CPU, and then pauses the training for a
    few seconds to compare devices. ``trainer.logger`` receives ``breakeven/step_ms``,
    ``breakeven/speedup``, and in words ``breakeven/verdict`` and ``breakeven/slow``.

    Args:
        devices: Names of GPUs, six by default.
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.

    Raises:
        BreakevenError: If Lightning is not installed.
    """
    is_old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    package = "pytorch_lightning" if is_old else "lightning.pytorch"
    lightning = import_optional(package, packages="lightning")

    class VerdictCallback(lightning.Callback):
        _steps: FirstSteps | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if pl_module.device.type != "cpu":
                warnings.warn(_ON_GPU, RuntimeWarning, stacklevel=2)
            elif trainer.is_global_zero:
                self._steps = FirstSteps(type(pl_module).__name__)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if self._steps is None:
                return
            if values := _verdict(self._steps, type(pl_module).__name__, devices, host):
                for logger in trainer.loggers:
                    _log(logger, values, trainer.global_step)

        def on_exception(self, *_: Any) -> None:
            if self._steps is not None:
                self._steps.close()

        def teardown(self, *_: Any, **__: Any) -> None:
            _finish(self._steps)

    return VerdictCallback()


def _finish(steps: FirstSteps | None) -> None:
    if steps is not None and steps.close():
        warnings.warn("breakeven has no verdict: the training was too short", RuntimeWarning, 3)


def _log(logger: Any, values: dict[str, Any], step: int) -> None:
    """Log values by a Lightning logger; a TensorBoard shows texts in a panel of their own."""
    add_text = getattr(logger.experiment, "add_text", None)
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    if add_text is not None:
        for name, text in texts.items():
            add_text(name, text, step)
        values = {name: value for name, value in values.items() if name not in texts}
    logger.log_metrics(values, step)


def verdict_tracker(devices: Sequence[str] = (), host: str = "auto") -> Any:
    """Return a tracker for accelerate that logs whether another device would pay.

    ``Accelerator(log_with=[breakeven.verdict_tracker(), "tensorboard"])``: put it first. It watches
    the first hundred steps on the CPU, as `verdict_callback` does. It adds the same values to those
    of one ``accelerator.log(values)``, which the trackers after it log. If nothing is logged after
    these steps, there is no verdict. ``accelerator.end_training()`` ends the watch.

    Args:
        devices: Names of GPUs, six by default.
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.

    Raises:
        BreakevenError: If accelerate is not installed.
    """
    tracking = import_optional("accelerate.tracking", packages="accelerate")
    state = import_optional("accelerate.state", packages="accelerate")

    class VerdictTracker(tracking.GeneralTracker):
        name = "breakeven"
        requires_logging_directory = False
        _steps: FirstSteps | None = None

        @property
        def tracker(self) -> None:
            return None

        def start(self) -> None:
            if state.PartialState().device.type != "cpu":
                warnings.warn(_ON_GPU, RuntimeWarning, stacklevel=2)
            else:
                self._steps = FirstSteps("training")

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            if self._steps is not None:
                values.update(_verdict(self._steps, "training", devices, host))

        def finish(self) -> None:
            _finish(self._steps)

    return VerdictTracker()

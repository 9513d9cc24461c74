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


class _Watch:
    """Watches the first steps of a training, and gives their verdict once.

    Args:
        name: Name of the training.
        devices: As for `breakeven.ask`.
        host: As for `breakeven.ask`.
    """

    def __init__(self, name: str, devices: Sequence[str], host: str) -> None:
        self._name, self._devices, self._host = name, devices, host
        self._steps: FirstSteps | None = FirstSteps(name)

    def start(self) -> None:
        if self._steps is not None:
            self._steps.start()

    def end_step(self) -> dict[str, Any]:
        """Return what to log; empty until the steps suffice, and after that."""
        if self._steps is None:
            return {}
        runs = self._steps.end_step()
        if runs is None:
            return {}
        self._steps = None
        try:
            report = check_runs(*runs, target=self._name, devices=self._devices, host=self._host)
        except BreakevenError as error:
            warnings.warn(f"breakeven has no verdict: {error}", RuntimeWarning, stacklevel=3)
            return {}
        return _values(report)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = None


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
        _watch: _Watch | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if pl_module.device.type != "cpu":
                warnings.warn(_ON_GPU, RuntimeWarning, stacklevel=2)
            elif trainer.is_global_zero:
                self._watch = _Watch(type(pl_module).__name__, devices, host)
                self._watch.start()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if self._watch is not None and (values := self._watch.end_step()):
                self._watch = None
                for logger in trainer.loggers:
                    _log(logger, values, trainer.global_step)

        def teardown(self, *_: Any, **__: Any) -> None:
            if self._watch is not None:
                self._watch.close()

    return VerdictCallback()


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
    these steps, there is no verdict.

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
        _watch: _Watch | None = None

        @property
        def tracker(self) -> None:
            return None

        def start(self) -> None:
            if state.PartialState().device.type != "cpu":
                warnings.warn(_ON_GPU, RuntimeWarning, stacklevel=2)
            else:
                self._watch = _Watch("training", devices, host)
                self._watch.start()

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            if self._watch is not None and (found := self._watch.end_step()):
                values.update(found)

        def finish(self) -> None:
            if self._watch is not None:
                self._watch.close()

    return VerdictTracker()

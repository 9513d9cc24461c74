"""breakeven: does a GPU pay off for your training step, and from which size on?"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use, exports

if TYPE_CHECKING:
    from breakeven.adapters import accelerator as accelerator
    from breakeven.adapters import ask as ask
    from breakeven.adapters import sky_candidates as sky_candidates
    from breakeven.adapters import sky_estimator as sky_estimator
    from breakeven.adapters import training_arguments as training_arguments
    from breakeven.adapters import verdict_callback as verdict_callback
    from breakeven.adapters import verdict_tracker as verdict_tracker
    from breakeven.capture import record_steps as record_steps
    from breakeven.device import find_device as find_device
    from breakeven.device import load_catalogue as load_catalogue
    from breakeven.errors import BreakevenError as BreakevenError
    from breakeven.measure import measure_step as measure_step
    from breakeven.placement import auto as auto
    from breakeven.report import read_report as read_report
    from breakeven.simulate import predict_steps as predict_steps
    from breakeven.studies import Report as Report
    from faststep import fast_sb3 as fast_sb3
    from faststep import fast_step as fast_step

__version__ = "0.2.0"

# Loaded on first use: `breakeven --help` and the reading of reports must not wait for torch.
__all__ = [*sorted(exports(__name__)), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__ = exported_on_use(__name__)


def load_ipython_extension(shell: object) -> None:
    """Add the magics of notebooks, at ``%load_ext breakeven``."""
    importlib.import_module("breakeven.notebook").load_ipython_extension(shell)


def __dir__() -> list[str]:
    return __all__

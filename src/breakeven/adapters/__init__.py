"""Answers for Lightning, transformers, accelerate, Stable-Baselines3 and SkyPilot."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.adapters.lightning import accelerator as accelerator
    from breakeven.adapters.question import ask as ask
    from breakeven.adapters.run_log import verdict_callback as verdict_callback
    from breakeven.adapters.run_log import verdict_tracker as verdict_tracker
    from breakeven.adapters.skypilot import sky_candidates as sky_candidates
    from breakeven.adapters.skypilot import sky_estimator as sky_estimator
    from breakeven.adapters.transformers import training_arguments as training_arguments

__getattr__ = exported_on_use(__name__)

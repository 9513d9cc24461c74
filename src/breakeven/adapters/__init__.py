"""Choose the device for Lightning and transformers, and the machine for SkyPilot."""

from breakeven.adapters.lightning import accelerator as accelerator
from breakeven.adapters.skypilot import sky_candidates as sky_candidates
from breakeven.adapters.skypilot import sky_estimator as sky_estimator
from breakeven.adapters.transformers import device_callback as device_callback
from breakeven.adapters.transformers import training_arguments as training_arguments

"""The device that is fastest, for Lightning, transformers and Stable-Baselines3."""

from breakeven.adapters.lightning import accelerator as accelerator
from breakeven.adapters.stable_baselines3 import fast_sb3 as fast_sb3
from breakeven.adapters.transformers import device_callback as device_callback
from breakeven.adapters.transformers import training_arguments as training_arguments

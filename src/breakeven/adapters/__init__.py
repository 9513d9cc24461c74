"""The device that is fastest, for Lightning, transformers and Stable-Baselines3."""

from breakeven.adapters._lightning import accelerator as accelerator
from breakeven.adapters._transformers import device_callback as device_callback
from breakeven.adapters._transformers import training_arguments as training_arguments

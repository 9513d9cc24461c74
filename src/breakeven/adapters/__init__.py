"""Choose the fastest device for Lightning and transformers."""

from breakeven.adapters.lightning import accelerator as accelerator
from breakeven.adapters.transformers import device_callback as device_callback
from breakeven.adapters.transformers import training_arguments as training_arguments

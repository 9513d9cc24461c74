"""Shows that it was run."""

import os
from pathlib import Path

import tiny_training

Path(os.environ["MARKER_FILE"]).touch()
tiny_training.train()

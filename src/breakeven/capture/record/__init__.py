"""Recording of a training step while it runs."""

"""Find the fastest configuration of a training step, by measurement, and prove it."""

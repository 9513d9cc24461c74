"""What a training step does, recorded as it runs."""

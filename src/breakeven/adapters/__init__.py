"""The device that is fastest, for Lightning, transformers and Stable-Baselines3."""

"""Training of Stable-Baselines3 agents by whole compiled steps."""

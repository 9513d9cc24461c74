"""Agents of Stable-Baselines3 that train by whole steps."""

"""Fake CUDA devices."""

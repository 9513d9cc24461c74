"""CUDA devices that are not there."""

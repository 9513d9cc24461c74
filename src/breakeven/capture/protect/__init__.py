"""Isolation of a script's files, trackers and services during a measurement."""

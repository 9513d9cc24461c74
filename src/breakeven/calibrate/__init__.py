"""Calibration: efficiencies of devices, fitted to measurements."""

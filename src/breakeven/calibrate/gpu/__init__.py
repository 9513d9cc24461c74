"""Calibration of this machine's GPU, with any of torch's backends."""

from breakeven.calibrate.gpu.calibrating import GpuRequest as GpuRequest
from breakeven.calibrate.gpu.calibrating import calibrate_gpu as calibrate_gpu
from breakeven.calibrate.gpu.machine import calibration_bytes as calibration_bytes
from breakeven.calibrate.gpu.machine import find_gpu as find_gpu
from breakeven.calibrate.gpu.machine import save_calibration as save_calibration
from breakeven.calibrate.gpu.machine import sharing_text as sharing_text

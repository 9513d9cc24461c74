"""Calibration: this host's costs, and efficiencies of devices, fitted to measurements."""

from breakeven.calibrate.documents import describe_efficiencies as describe_efficiencies
from breakeven.calibrate.documents import describe_multi_gpu as describe_multi_gpu
from breakeven.calibrate.documents import describe_step_effects as describe_step_effects
from breakeven.calibrate.documents import efficiencies_document as efficiencies_document
from breakeven.calibrate.documents import fit_efficiencies as fit_efficiencies
from breakeven.calibrate.documents import multi_gpu_document as multi_gpu_document
from breakeven.calibrate.documents import step_effects_document as step_effects_document
from breakeven.calibrate.here import HereCalibration as HereCalibration
from breakeven.calibrate.here import calibrate_here as calibrate_here
from breakeven.calibrate.here import check_host_name as check_host_name
from breakeven.calibrate.here import find_host as find_host
from breakeven.calibrate.here import find_hosts as find_hosts
from breakeven.calibrate.here import host_called as host_called
from breakeven.calibrate.here import kind_here as kind_here
from breakeven.calibrate.here import named_host as named_host
from breakeven.calibrate.multi_gpu_fit import MultiGpuRow as MultiGpuRow
from breakeven.calibrate.multi_gpu_fit import fit_multi_gpu as fit_multi_gpu
from breakeven.calibrate.multi_gpu_fit import fit_multi_gpu_costs as fit_multi_gpu_costs
from breakeven.calibrate.multi_gpu_rows import lone_steps_ns as lone_steps_ns
from breakeven.calibrate.multi_gpu_rows import multi_gpu_row as multi_gpu_row
from breakeven.calibrate.step_fit import fit_own_effects as fit_own_effects
from breakeven.calibrate.step_fit import fit_step_effects as fit_step_effects
from breakeven.calibrate.step_sample import PlacedStep as PlacedStep
from breakeven.calibrate.step_sample import StepPart as StepPart
from breakeven.calibrate.step_sample import StepSample as StepSample
from breakeven.calibrate.step_sample import StepTiming as StepTiming

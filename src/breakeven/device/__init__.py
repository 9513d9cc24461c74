"""Machines: datasheets of GPUs, and what a host spends to issue work."""

from breakeven.device._catalogue import default_devices as default_devices
from breakeven.device._catalogue import find_device as find_device
from breakeven.device._catalogue import load_catalogue as load_catalogue
from breakeven.device._host import HERE as HERE
from breakeven.device._host import HostSpec as HostSpec
from breakeven.device._host_calibration import HostCalibration as HostCalibration
from breakeven.device._host_calibration import HostFigure as HostFigure
from breakeven.device._host_catalogue import HostCpu as HostCpu
from breakeven.device._host_catalogue import find_host_cpu as find_host_cpu
from breakeven.device._host_catalogue import load_host_cpus as load_host_cpus
from breakeven.device._spec import DeviceSpec as DeviceSpec
from breakeven.device._spec import Precision as Precision

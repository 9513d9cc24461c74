"""Machines: datasheets of GPUs, and what a host spends to issue work."""

from breakeven.device._catalogue import default_devices as default_devices
from breakeven.device._catalogue import find_device as find_device
from breakeven.device._catalogue import load_catalogue as load_catalogue
from breakeven.device._host import HostSpec as HostSpec
from breakeven.device._spec import DeviceSpec as DeviceSpec
from breakeven.device._spec import Precision as Precision

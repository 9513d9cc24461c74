"""Machines: datasheets of GPUs, and what a host spends to issue work."""

from breakeven.device._host import HostSpec as HostSpec
from breakeven.device._spec import DeviceSpec as DeviceSpec
from breakeven.device._spec import Precision as Precision

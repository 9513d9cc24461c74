"""Machines: GPU datasheets, and the host costs of issuing work."""

from breakeven.device.calibration_files import FOLDER_VARIABLE as FOLDER_VARIABLE
from breakeven.device.calibration_files import calibration_files as calibration_files
from breakeven.device.calibration_files import (
    own_calibration_files as own_calibration_files,
)
from breakeven.device.calibration_files import user_calibrations as user_calibrations
from breakeven.device.catalogue import HostCpu as HostCpu
from breakeven.device.catalogue import default_devices as default_devices
from breakeven.device.catalogue import devices_by_key as devices_by_key
from breakeven.device.catalogue import find_device as find_device
from breakeven.device.catalogue import find_host_cpu as find_host_cpu
from breakeven.device.catalogue import generation_of as generation_of
from breakeven.device.catalogue import generations_between as generations_between
from breakeven.device.catalogue import known_device as known_device
from breakeven.device.catalogue import load_catalogue as load_catalogue
from breakeven.device.catalogue import load_host_cpus as load_host_cpus
from breakeven.device.host_kinds import HostKind as HostKind
from breakeven.device.host_kinds import find_host_kind as find_host_kind
from breakeven.device.host_kinds import find_kind as find_kind
from breakeven.device.host_kinds import load_host_kinds as load_host_kinds
from breakeven.device.selection import select_devices as select_devices
from breakeven.device.selection import split_devices as split_devices
from breakeven.device.spec import AUTO as AUTO
from breakeven.device.spec import HERE as HERE
from breakeven.device.spec import DeviceSpec as DeviceSpec
from breakeven.device.spec import DeviceWork as DeviceWork
from breakeven.device.spec import FeedingHost as FeedingHost
from breakeven.device.spec import Generation as Generation
from breakeven.device.spec import HostCalibration as HostCalibration
from breakeven.device.spec import HostFigure as HostFigure
from breakeven.device.spec import HostSpec as HostSpec
from breakeven.device.spec import Precision as Precision

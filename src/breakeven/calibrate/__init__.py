"""Calibration of this host, its GPU, and hosts elsewhere."""

from breakeven.calibrate.elsewhere import Speed as Speed
from breakeven.calibrate.elsewhere import anchors_of as anchors_of
from breakeven.calibrate.elsewhere import as_measured as as_measured
from breakeven.calibrate.elsewhere import in_measured_machines as in_measured_machines
from breakeven.calibrate.elsewhere import read_speeds as read_speeds
from breakeven.calibrate.here import calibrate_here as calibrate_here
from breakeven.calibrate.here import check_host_name as check_host_name
from breakeven.calibrate.here import find_host as find_host
from breakeven.calibrate.here import find_hosts as find_hosts
from breakeven.calibrate.here import host_called as host_called
from breakeven.calibrate.here import named_host as named_host
from breakeven.calibrate.here import with_kinds as with_kinds

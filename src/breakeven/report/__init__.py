"""Reports as text for a terminal and as JSON; needs no torch."""

from breakeven.report._device_sheet import devices_to_json as devices_to_json
from breakeven.report._device_sheet import render_device as render_device
from breakeven.report._device_sheet import render_devices as render_devices
from breakeven.report._host_sheet import busy_note as busy_note
from breakeven.report._host_sheet import calibration_to_json as calibration_to_json
from breakeven.report._host_sheet import hosts_to_json as hosts_to_json
from breakeven.report._host_sheet import render_calibration as render_calibration
from breakeven.report._host_sheet import render_hosts as render_hosts
from breakeven.report._json import json_schema as json_schema
from breakeven.report._json import to_json as to_json
from breakeven.report._terminal import render as render
from breakeven.report._text import printable as printable
from breakeven.report._validation_json import validation_schema as validation_schema
from breakeven.report._validation_json import validation_to_json as validation_to_json
from breakeven.report._validation_markdown import plot_name as plot_name
from breakeven.report._validation_markdown import validation_markdown as validation_markdown
from breakeven.report._validation_plot import ensure_can_plot as ensure_can_plot
from breakeven.report._validation_plot import scatter_svg as scatter_svg
from breakeven.report._validation_terminal import render_validation as render_validation

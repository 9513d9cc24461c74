"""Reports as text for a terminal and as JSON; needs no torch."""

from breakeven.report._device_sheet import devices_to_json as devices_to_json
from breakeven.report._device_sheet import render_device as render_device
from breakeven.report._device_sheet import render_devices as render_devices
from breakeven.report._json import json_schema as json_schema
from breakeven.report._json import to_json as to_json
from breakeven.report._terminal import render as render
from breakeven.report._text import printable as printable

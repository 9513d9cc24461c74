"""Reports as text for a terminal, as pages and as JSON; needs no torch."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.report.calibrate import busy_note as busy_note
    from breakeven.report.calibrate import calibration_document as calibration_document
    from breakeven.report.calibrate import gpu_calibration_document as gpu_calibration_document
    from breakeven.report.calibrate import stored_calibration as stored_calibration
    from breakeven.report.chart import settings_text as settings_text
    from breakeven.report.devices import device_document as device_document
    from breakeven.report.devices import devices_document as devices_document
    from breakeven.report.devices import hosts_document as hosts_document
    from breakeven.report.devices import stored_devices as stored_devices
    from breakeven.report.devices import stored_hosts as stored_hosts
    from breakeven.report.kinds import kinds_by_schema as kinds_by_schema
    from breakeven.report.rules import all_rule_pages as all_rule_pages
    from breakeven.report.rules import find_rule_pages as find_rule_pages
    from breakeven.report.rules import rule_document as rule_document
    from breakeven.report.rules import rules_document as rules_document
    from breakeven.report.rules import stored_rules as stored_rules
    from breakeven.report.shown import chart_document as chart_document
    from breakeven.report.shown import ensure_can_chart as ensure_can_chart
    from breakeven.report.shown import json_schema as json_schema
    from breakeven.report.shown import show as show
    from breakeven.report.shown import to_json as to_json
    from breakeven.report.stored import read_document as read_document
    from breakeven.report.stored import read_report as read_report
    from breakeven.report.stored import report_command as report_command
    from breakeven.report.terminal import render as render
    from breakeven.report.text import printable as printable
    from breakeven.report.trace_file import chrome_trace as chrome_trace
    from breakeven.report.workloads import claims_document as claims_document
    from breakeven.report.workloads import system_document as system_document

__getattr__ = exported_on_use(__name__)

"""Reports as terminal text, pages and JSON, without torch."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.report.accuracy import AccuracyReport as AccuracyReport
    from breakeven.report.accuracy import AccuracySummary as AccuracySummary
    from breakeven.report.accuracy import LeaveOut as LeaveOut
    from breakeven.report.accuracy import RowPrediction as RowPrediction
    from breakeven.report.accuracy import RowResult as RowResult
    from breakeven.report.accuracy import Unpredictable as Unpredictable
    from breakeven.report.accuracy import UnreadRow as UnreadRow
    from breakeven.report.annotations import finding_annotations as finding_annotations
    from breakeven.report.calibrate import busy_note as busy_note
    from breakeven.report.calibrate import calibration_document as calibration_document
    from breakeven.report.calibrate import gpu_calibration_document as gpu_calibration_document
    from breakeven.report.calibrate import stored_calibration as stored_calibration
    from breakeven.report.card import card_document as card_document
    from breakeven.report.chart import settings_text as settings_text
    from breakeven.report.check_report import SCHEMA_VERSION as SCHEMA_VERSION
    from breakeven.report.check_report import CheckReport as CheckReport
    from breakeven.report.comparison import compare_reports as compare_reports
    from breakeven.report.comparison_report import Change as Change
    from breakeven.report.comparison_report import ComparisonReport as ComparisonReport
    from breakeven.report.comparison_report import CrossoverShift as CrossoverShift
    from breakeven.report.conditions import Condition as Condition
    from breakeven.report.conditions import Figure as Figure
    from breakeven.report.conditions import Figures as Figures
    from breakeven.report.conditions import check_figures as check_figures
    from breakeven.report.conditions import comparison_figures as comparison_figures
    from breakeven.report.conditions import failed_conditions as failed_conditions
    from breakeven.report.conditions import parse_condition as parse_condition
    from breakeven.report.cost import cheapest_figure as cheapest_figure
    from breakeven.report.cost import cost_answer as cost_answer
    from breakeven.report.cost import pareto_front as pareto_front
    from breakeven.report.cost_report import COST_SCHEMA_VERSION as COST_SCHEMA_VERSION
    from breakeven.report.cost_report import CostReport as CostReport
    from breakeven.report.cost_report import CostRow as CostRow
    from breakeven.report.devices import device_document as device_document
    from breakeven.report.devices import devices_document as devices_document
    from breakeven.report.devices import hosts_document as hosts_document
    from breakeven.report.devices import stored_devices as stored_devices
    from breakeven.report.devices import stored_hosts as stored_hosts
    from breakeven.report.document import plain as plain
    from breakeven.report.explain_report import DEVICE_TRACK as DEVICE_TRACK
    from breakeven.report.explain_report import EXPLAIN_SCHEMA_VERSION as EXPLAIN_SCHEMA_VERSION
    from breakeven.report.explain_report import HOST_TRACK as HOST_TRACK
    from breakeven.report.explain_report import ExplainReport as ExplainReport
    from breakeven.report.explain_report import PlanStep as PlanStep
    from breakeven.report.explain_report import TimelineSpan as TimelineSpan
    from breakeven.report.job import JOB_CLOUDS as JOB_CLOUDS
    from breakeven.report.job import job_text as job_text
    from breakeven.report.kinds import KINDS as KINDS
    from breakeven.report.kinds import kinds_by_schema as kinds_by_schema
    from breakeven.report.normal_report import NormalReport as NormalReport
    from breakeven.report.prices import cheapest_machines as cheapest_machines
    from breakeven.report.prices import prices_document as prices_document
    from breakeven.report.recording import RECORDING_VERSION as RECORDING_VERSION
    from breakeven.report.recording import RecordedStep as RecordedStep
    from breakeven.report.recording import record as record
    from breakeven.report.rules import all_rule_pages as all_rule_pages
    from breakeven.report.rules import find_rule_pages as find_rule_pages
    from breakeven.report.rules import rule_document as rule_document
    from breakeven.report.rules import rules_document as rules_document
    from breakeven.report.rules import stored_rules as stored_rules
    from breakeven.report.shown import chart_document as chart_document
    from breakeven.report.shown import documents_of as documents_of
    from breakeven.report.shown import ensure_chart_suffix as ensure_chart_suffix
    from breakeven.report.shown import html_part as html_part
    from breakeven.report.shown import json_schema as json_schema
    from breakeven.report.shown import show as show
    from breakeven.report.shown import to_json as to_json
    from breakeven.report.source_removal import without_source as without_source
    from breakeven.report.stored import read_document as read_document
    from breakeven.report.stored import read_report as read_report
    from breakeven.report.stored import report_command as report_command
    from breakeven.report.system_report import SYSTEMS_SCHEMA_VERSION as SYSTEMS_SCHEMA_VERSION
    from breakeven.report.system_report import Cell as Cell
    from breakeven.report.system_report import Claim as Claim
    from breakeven.report.system_report import ClaimOutcome as ClaimOutcome
    from breakeven.report.system_report import ColumnKind as ColumnKind
    from breakeven.report.system_report import RowSource as RowSource
    from breakeven.report.system_report import SystemReport as SystemReport
    from breakeven.report.system_report import SystemsReport as SystemsReport
    from breakeven.report.system_report import SystemTable as SystemTable
    from breakeven.report.system_report import TableColumn as TableColumn
    from breakeven.report.system_report import TableRow as TableRow
    from breakeven.report.terminal import render as render
    from breakeven.report.text import printable as printable
    from breakeven.report.trace_file import chrome_trace as chrome_trace
    from breakeven.report.workloads import claims_document as claims_document
    from breakeven.report.workloads import system_document as system_document

__getattr__ = exported_on_use(__name__)

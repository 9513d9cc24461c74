"""Reports, calibrations and measurements on disk."""

from breakeven.store._host_file import read_host as read_host
from breakeven.store._host_file import write_host as write_host
from breakeven.store._machine_lock import machine_lock as machine_lock
from breakeven.store._measured_run import MachineKey as MachineKey
from breakeven.store._measured_run import RunKey as RunKey
from breakeven.store._measured_run import forget_runs as forget_runs
from breakeven.store._measured_run import machine_key as machine_key
from breakeven.store._measured_run import read_run as read_run
from breakeven.store._measured_run import write_run as write_run
from breakeven.store._report_file import ensure_writable as ensure_writable
from breakeven.store._report_file import read_document as read_document
from breakeven.store._report_file import read_report as read_report
from breakeven.store._report_file import report_command as report_command
from breakeven.store._report_file import write_document as write_document
from breakeven.store._trace_file import read_traces as read_traces
from breakeven.store._trace_file import write_traces as write_traces

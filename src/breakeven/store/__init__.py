"""Reports and calibrations on disk."""

from breakeven.store._host_file import read_host as read_host
from breakeven.store._host_file import write_host as write_host
from breakeven.store._report_file import ensure_writable as ensure_writable
from breakeven.store._report_file import read_report as read_report
from breakeven.store._report_file import write_document as write_document
from breakeven.store._trace_file import read_traces as read_traces
from breakeven.store._trace_file import write_traces as write_traces

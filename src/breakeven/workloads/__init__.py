"""Workloads named in tables of timings: built and traced without data or a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use
from breakeven.workloads.trace_pool import trace_cases as trace_cases

if TYPE_CHECKING:
    from breakeven.workloads.case_traces import products_in_tf32 as products_in_tf32
    from breakeven.workloads.case_traces import step_on_device as step_on_device
    from breakeven.workloads.case_traces import trace_case as trace_case

# These need torch in the caller's process; `trace_cases` needs it only in its children.
__getattr__ = exported_on_use(__name__)

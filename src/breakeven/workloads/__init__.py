"""The steps that tables of timings name: built, traced without data or a GPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from breakeven.workloads.spec import OptionValue as OptionValue
from breakeven.workloads.spec import WorkloadKind as WorkloadKind
from breakeven.workloads.spec import WorkloadSpec as WorkloadSpec
from breakeven.workloads.spec import parse_workload as parse_workload
from breakeven.workloads.trace_pool import trace_cases as trace_cases

if TYPE_CHECKING:
    from breakeven.workloads.case_traces import trace_case as trace_case

# This needs torch in the caller's process; `trace_cases` needs it in its children only.
_NEEDS_TORCH = {"trace_case": "case_traces"}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"breakeven.workloads.{_NEEDS_TORCH[name]}"), name)

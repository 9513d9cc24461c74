"""Join the edges to the core: from a training script to a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from breakeven.check.at_best import at_its_best as at_its_best
from breakeven.check.at_best import measure_at_best as measure_at_best
from breakeven.check.batch_sizes import BatchSizes as BatchSizes
from breakeven.check.blame import find_cause as find_cause
from breakeven.check.comparison import compare as compare
from breakeven.check.comparison import measured_result as measured_result
from breakeven.check.comparison import select_devices as select_devices
from breakeven.check.comparison import step_summary as step_summary
from breakeven.check.device_path import DevicePath as DevicePath
from breakeven.check.failures import script_error as script_error
from breakeven.check.limits import LONGEST_STEP_NS as LONGEST_STEP_NS
from breakeven.check.limits import why_not_measured as why_not_measured
from breakeven.check.program import TrainingLength as TrainingLength
from breakeven.check.program import program_facts as program_facts
from breakeven.check.runs import REFUSALS as REFUSALS
from breakeven.check.runs import Runs as Runs
from breakeven.check.runs import is_all_disturbed as is_all_disturbed
from breakeven.check.runs import is_worth_repeating as is_worth_repeating
from breakeven.check.runs import quieter as quieter
from breakeven.check.target_check import check_target as check_target

if TYPE_CHECKING:
    from breakeven.check.step_check import check_step as check_step


def __getattr__(name: str) -> Any:
    if name != "check_step":  # the one that runs in the caller's process, and needs torch there
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from breakeven.check.step_check import check_step

    return check_step

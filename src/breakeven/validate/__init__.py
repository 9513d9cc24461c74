"""Predicted steps against measured ones: tables, folds, errors."""

from breakeven.validate.cpu_rows import MeasuredCpus as MeasuredCpus
from breakeven.validate.predictor import predictor_for as predictor_for
from breakeven.validate.step_calibration import (
    calibrate_on_shared_steps as calibrate_on_shared_steps,
)
from breakeven.validate.step_calibration import calibrate_on_steps as calibrate_on_steps
from breakeven.validate.summary import GROUPINGS as GROUPINGS
from breakeven.validate.summary import ErrorBudget as ErrorBudget
from breakeven.validate.summary import exceeded_budgets as exceeded_budgets
from breakeven.validate.summary import read_budgets as read_budgets
from breakeven.validate.summary import summarize as summarize
from breakeven.validate.summary import summarize_groups as summarize_groups
from breakeven.validate.table_file import read_table as read_table
from breakeven.validate.table_row import HostToDevice as HostToDevice
from breakeven.validate.table_row import MeasuredRow as MeasuredRow
from breakeven.validate.table_row import RowFilter as RowFilter
from breakeven.validate.whole_table import compare as compare
from breakeven.validate.whole_table import validate_table as validate_table

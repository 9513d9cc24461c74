"""Predicted steps against measured ones: tables, folds, errors."""

from breakeven.validate._budget import Budget as Budget
from breakeven.validate._budget import exceeded_budgets as exceeded_budgets
from breakeven.validate._budget import read_budgets as read_budgets
from breakeven.validate._calibrated_predictor import predictor_for as predictor_for
from breakeven.validate._predictor import Predictor as Predictor
from breakeven.validate._predictor import Progress as Progress
from breakeven.validate._predictor import SilentProgress as SilentProgress
from breakeven.validate._row_filter import RowFilter as RowFilter
from breakeven.validate._splits import GROUPINGS as GROUPINGS
from breakeven.validate._step_calibration import (
    calibrate_on_shared_steps as calibrate_on_shared_steps,
)
from breakeven.validate._step_calibration import calibrate_on_steps as calibrate_on_steps
from breakeven.validate._summary import summarize as summarize
from breakeven.validate._summary import summarize_groups as summarize_groups
from breakeven.validate._table import read_table as read_table
from breakeven.validate._table_row import HostToDevice as HostToDevice
from breakeven.validate._table_row import TableRow as TableRow
from breakeven.validate._validate_table import compare as compare
from breakeven.validate._validate_table import validate_table as validate_table

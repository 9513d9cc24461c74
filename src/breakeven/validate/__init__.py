"""Validate predicted steps against tables of measured ones."""

from breakeven.validate.comparison import GROUPINGS as GROUPINGS
from breakeven.validate.comparison import validate_table as validate_table
from breakeven.validate.table import MeasuredRow as MeasuredRow
from breakeven.validate.table import RowFilter as RowFilter
from breakeven.validate.table import read_table as read_table
from breakeven.validate.traced_rows import Predictor as Predictor
from breakeven.validate.traced_rows import ShippedPredictor as ShippedPredictor
from breakeven.validate.traced_rows import fingerprint as fingerprint
from breakeven.validate.traced_rows import model_family_of as model_family_of
from breakeven.validate.traced_rows import shipped_calibration as shipped_calibration

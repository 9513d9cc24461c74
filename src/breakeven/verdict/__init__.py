"""Curves and results, compared: where to train, and from which size on."""

from breakeven.simulate import Bound as Bound
from breakeven.simulate import Finding as Finding
from breakeven.verdict._accuracy import AccuracyReport as AccuracyReport
from breakeven.verdict._accuracy import AccuracySummary as AccuracySummary
from breakeven.verdict._accuracy import LeaveOut as LeaveOut
from breakeven.verdict._accuracy import RowPrediction as RowPrediction
from breakeven.verdict._accuracy import RowResult as RowResult
from breakeven.verdict._accuracy import Unpredictable as Unpredictable
from breakeven.verdict._crossover import find_crossover as find_crossover
from breakeven.verdict._decide import decide as decide
from breakeven.verdict._decide import device_result as device_result
from breakeven.verdict._report import SCHEMA_VERSION as SCHEMA_VERSION
from breakeven.verdict._report import CheckReport as CheckReport
from breakeven.verdict._report import Choice as Choice
from breakeven.verdict._report import Crossover as Crossover
from breakeven.verdict._report import Curve as Curve
from breakeven.verdict._report import CurvePoint as CurvePoint
from breakeven.verdict._report import DeviceKind as DeviceKind
from breakeven.verdict._report import DeviceResult as DeviceResult
from breakeven.verdict._report import HostSummary as HostSummary
from breakeven.verdict._report import NoCrossover as NoCrossover
from breakeven.verdict._report import StepSummary as StepSummary
from breakeven.verdict._report import Verdict as Verdict
from breakeven.verdict._report import curve_point as curve_point
from breakeven.verdict._size_curve import SizeCurve as SizeCurve
from breakeven.verdict._size_curve import SizeSpread as SizeSpread

"""Curves and results, compared: where to train, and from which size on."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.simulate import Bound as Bound
    from breakeven.simulate import Finding as Finding
    from breakeven.verdict.compiled import CapturedStep as CapturedStep
    from breakeven.verdict.compiled import CompiledResult as CompiledResult
    from breakeven.verdict.compiled import CompiledSteps as CompiledSteps
    from breakeven.verdict.compiled import compiled_steps as compiled_steps
    from breakeven.verdict.crossover import LogRatio as LogRatio
    from breakeven.verdict.crossover import Timed as Timed
    from breakeven.verdict.crossover import find_crossover as find_crossover
    from breakeven.verdict.crossover import log_ratio as log_ratio
    from breakeven.verdict.crossover import rescaled as rescaled
    from breakeven.verdict.decision import decide as decide
    from breakeven.verdict.generated import GeneratedRun as GeneratedRun
    from breakeven.verdict.generated import GeneratedStep as GeneratedStep
    from breakeven.verdict.generated import generated_step as generated_step
    from breakeven.verdict.numerics import LOSS_KEY as LOSS_KEY
    from breakeven.verdict.numerics import Difference as Difference
    from breakeven.verdict.numerics import DifferenceKind as DifferenceKind
    from breakeven.verdict.numerics import RecordedNumbers as RecordedNumbers
    from breakeven.verdict.numerics import StepNumbers as StepNumbers
    from breakeven.verdict.numerics import TensorNumbers as TensorNumbers
    from breakeven.verdict.numerics import compare_numbers as compare_numbers
    from breakeven.verdict.numerics import runs_tolerance as runs_tolerance
    from breakeven.verdict.numerics import weight_noise_roundoffs as weight_noise_roundoffs
    from breakeven.verdict.program import BetweenTime as BetweenTime
    from breakeven.verdict.program import ProgramFacts as ProgramFacts
    from breakeven.verdict.program import ProgramPart as ProgramPart
    from breakeven.verdict.program import ProgramSummary as ProgramSummary
    from breakeven.verdict.program import facts_of as facts_of
    from breakeven.verdict.program import program_of as program_of
    from breakeven.verdict.program import training_time as training_time
    from breakeven.verdict.report import Choice as Choice
    from breakeven.verdict.report import Crossover as Crossover
    from breakeven.verdict.report import Curve as Curve
    from breakeven.verdict.report import CurvePoint as CurvePoint
    from breakeven.verdict.report import HostSummary as HostSummary
    from breakeven.verdict.report import NoCrossover as NoCrossover
    from breakeven.verdict.report import StepSummary as StepSummary
    from breakeven.verdict.report import Verdict as Verdict
    from breakeven.verdict.report import curve_point as curve_point
    from breakeven.verdict.report import host_summary as host_summary
    from breakeven.verdict.results import DeviceKind as DeviceKind
    from breakeven.verdict.results import DeviceResult as DeviceResult
    from breakeven.verdict.results import cpu_on_cores as cpu_on_cores
    from breakeven.verdict.results import cpu_on_threads as cpu_on_threads
    from breakeven.verdict.results import cpu_result as cpu_result
    from breakeven.verdict.results import device_result as device_result
    from breakeven.verdict.results import estimate_of as estimate_of
    from breakeven.verdict.results import threads_text as threads_text
    from breakeven.verdict.size_curve import SizeCurve as SizeCurve
    from breakeven.verdict.size_curve import SizeSpread as SizeSpread
    from breakeven.verdict.sweep_crossovers import NUM_PARAMETERS as NUM_PARAMETERS
    from breakeven.verdict.sweep_crossovers import find_sweep_crossovers as find_sweep_crossovers
    from breakeven.verdict.sweep_crossovers import sweep_curves as sweep_curves
    from breakeven.verdict.sweep_report import SWEEP_SCHEMA_VERSION as SWEEP_SCHEMA_VERSION
    from breakeven.verdict.sweep_report import AxisRole as AxisRole
    from breakeven.verdict.sweep_report import AxisValue as AxisValue
    from breakeven.verdict.sweep_report import PublishedPoint as PublishedPoint
    from breakeven.verdict.sweep_report import SweepAxis as SweepAxis
    from breakeven.verdict.sweep_report import SweepCrossover as SweepCrossover
    from breakeven.verdict.sweep_report import SweepCurve as SweepCurve
    from breakeven.verdict.sweep_report import SweepFailure as SweepFailure
    from breakeven.verdict.sweep_report import SweepPoint as SweepPoint
    from breakeven.verdict.sweep_report import SweepReport as SweepReport
    from breakeven.verdict.tune_report import TUNE_SCHEMA_VERSION as TUNE_SCHEMA_VERSION
    from breakeven.verdict.tune_report import CodeChange as CodeChange
    from breakeven.verdict.tune_report import Machine as Machine
    from breakeven.verdict.tune_report import Numerics as Numerics
    from breakeven.verdict.tune_report import Outcome as Outcome
    from breakeven.verdict.tune_report import Trial as Trial
    from breakeven.verdict.tune_report import TuneReport as TuneReport
    from breakeven.verdict.tune_report import is_undecided as is_undecided

__getattr__ = exported_on_use(__name__)

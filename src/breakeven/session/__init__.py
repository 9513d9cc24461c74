"""Join the edges to the core: one target, traced, measured, predicted and decided once."""

from breakeven.session.absent_cpus import absent_cpu_results as absent_cpu_results
from breakeven.session.absent_cpus import check_absent_cpus as check_absent_cpus
from breakeven.session.batch_sizes import AXIS as AXIS
from breakeven.session.batch_sizes import BatchSizes as BatchSizes
from breakeven.session.compared_step import UNKNOWN_LENGTH as UNKNOWN_LENGTH
from breakeven.session.compared_step import ComparedStep as ComparedStep
from breakeven.session.compared_step import LiveStep as LiveStep
from breakeven.session.compared_step import TrainingLength as TrainingLength
from breakeven.session.hand_fed import FARTHEST as FARTHEST
from breakeven.session.hand_fed import HandFedSizes as HandFedSizes
from breakeven.session.hand_fed import predicted_sizes as predicted_sizes
from breakeven.session.measured_step import DevicePath as DevicePath
from breakeven.session.measured_step import at_best_thread_count as at_best_thread_count
from breakeven.session.measured_step import measured_result as measured_result
from breakeven.session.runs import BEYOND_MEASURED as BEYOND_MEASURED
from breakeven.session.runs import LONGEST_STEP_NS as LONGEST_STEP_NS
from breakeven.session.runs import REFUSALS as REFUSALS
from breakeven.session.runs import Runs as Runs
from breakeven.session.runs import SkippedSize as SkippedSize
from breakeven.session.runs import is_all_disturbed as is_all_disturbed
from breakeven.session.runs import is_worth_repeating as is_worth_repeating
from breakeven.session.runs import less_disturbed as less_disturbed
from breakeven.session.runs import second_size as second_size
from breakeven.session.runs import why_not_measured as why_not_measured
from breakeven.session.session import Session as Session

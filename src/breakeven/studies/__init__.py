"""The studies of a script; each is one procedure, in the order of time."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.studies.answer import Report as Report
    from breakeven.studies.batch_sizes import why_not_measured as why_not_measured
    from breakeven.studies.check import check_runs as check_runs
    from breakeven.studies.check import check_step as check_step
    from breakeven.studies.check import check_target as check_target
    from breakeven.studies.cost import SETUP_S as SETUP_S
    from breakeven.studies.cost import CostRequest as CostRequest
    from breakeven.studies.cost import cost_run as cost_run
    from breakeven.studies.cost import cost_target as cost_target
    from breakeven.studies.engine import EngineRun as EngineRun
    from breakeven.studies.engine import LocalEngine as LocalEngine
    from breakeven.studies.explain import explain_run as explain_run
    from breakeven.studies.explain import explain_target as explain_target
    from breakeven.studies.explanation import full_timeline as full_timeline
    from breakeven.studies.host_work import as_timed as as_timed
    from breakeven.studies.host_work import host_for_prediction as host_for_prediction
    from breakeven.studies.measured_step import TrainingLength as TrainingLength
    from breakeven.studies.normal import normal_run as normal_run
    from breakeven.studies.normal import normal_target as normal_target
    from breakeven.studies.ray_engine import RayEngine as RayEngine
    from breakeven.studies.runner import Runner as Runner
    from breakeven.studies.study import StudyOptions as StudyOptions
    from breakeven.studies.sweep import SweepProgress as SweepProgress
    from breakeven.studies.sweep import sweep_target as sweep_target
    from breakeven.studies.sweep_axes import assign_roles as assign_roles
    from breakeven.studies.sweep_axes import parse_axis as parse_axis

__getattr__ = exported_on_use(__name__)

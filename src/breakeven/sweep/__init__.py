"""One script along the knobs that it has: measured where it counts, predicted elsewhere."""

from breakeven.sweep._axes import assign_roles as assign_roles
from breakeven.sweep._axes import parse_axis as parse_axis
from breakeven.sweep._engine import Engine as Engine
from breakeven.sweep._engine import EngineRun as EngineRun
from breakeven.sweep._engine import LocalEngine as LocalEngine
from breakeven.sweep._progress import SilentSweepProgress as SilentSweepProgress
from breakeven.sweep._progress import SweepProgress as SweepProgress
from breakeven.sweep._ray_engine import RayEngine as RayEngine
from breakeven.sweep._sweep_target import sweep_target as sweep_target

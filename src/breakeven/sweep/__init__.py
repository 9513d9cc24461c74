"""One script along the knobs that it has: measured where it counts, predicted elsewhere."""

from breakeven.sweep.axes import assign_roles as assign_roles
from breakeven.sweep.axes import parse_axis as parse_axis
from breakeven.sweep.engine import Engine as Engine
from breakeven.sweep.engine import EngineRun as EngineRun
from breakeven.sweep.engine import LocalEngine as LocalEngine
from breakeven.sweep.grid import SweepProgress as SweepProgress
from breakeven.sweep.ray_engine import RayEngine as RayEngine
from breakeven.sweep.target import sweep_target as sweep_target

"""The systems with which others asked whether a GPU pays off, run beside their figures."""

from breakeven.systems._bench import Bench as Bench
from breakeven.systems._bench import script_path as script_path
from breakeven.systems._catalogue import SYSTEMS as SYSTEMS
from breakeven.systems._catalogue import SystemEntry as SystemEntry
from breakeven.systems._catalogue import find_systems as find_systems
from breakeven.systems._catalogue import main_systems as main_systems
from breakeven.systems._run_systems import run_system as run_system
from breakeven.systems._system import System as System

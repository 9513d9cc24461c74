"""Published comparisons of CPU and GPU, run again and shown with the original figures."""

from breakeven.systems.bench import script_path as script_path
from breakeven.systems.catalogue import SYSTEMS as SYSTEMS
from breakeven.systems.catalogue import SystemEntry as SystemEntry
from breakeven.systems.catalogue import find_systems as find_systems
from breakeven.systems.catalogue import run_system as run_system

"""Which of the devices that are here runs a model fastest, measured in a moment."""

from breakeven.placement._auto import auto as auto
from breakeven.placement._auto import choose_device as choose_device
from breakeven.placement._call import LossFunction as LossFunction
from breakeven.placement._choice import Choice as Choice
from breakeven.placement._copies import OptimizerFactory as OptimizerFactory
from breakeven.placement._on_fastest import OnFastest as OnFastest
from breakeven.placement._on_fastest import on_fastest as on_fastest
from breakeven.placement._place import Place as Place
from breakeven.placement._race import LeftOut as LeftOut
from breakeven.placement._race import PlaceTime as PlaceTime
from breakeven.placement._race import RaceResult as RaceResult
from breakeven.placement._race import race as race

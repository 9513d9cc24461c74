"""Choose the fastest of this machine's devices for a model, by a short measurement."""

from breakeven.placement.automatic import DeviceChoice as DeviceChoice
from breakeven.placement.automatic import auto as auto
from breakeven.placement.automatic import choose_device as choose_device
from breakeven.placement.racing import LeftOut as LeftOut
from breakeven.placement.racing import Place as Place
from breakeven.placement.racing import PlaceTime as PlaceTime
from breakeven.placement.racing import RaceResult as RaceResult
from breakeven.placement.racing import race as race
from breakeven.placement.training_place import LossFunction as LossFunction
from breakeven.placement.training_place import OptimizerFactory as OptimizerFactory

"""Run the user's training script as it is, and record a step."""

from breakeven.capture._launcher import Launcher as Launcher
from breakeven.capture._protocol import FailureKind as FailureKind
from breakeven.capture._protocol import LoaderUse as LoaderUse
from breakeven.capture._protocol import PlainRun as PlainRun
from breakeven.capture._protocol import RunFailure as RunFailure
from breakeven.capture._protocol import RunRequest as RunRequest
from breakeven.capture._protocol import Target as Target
from breakeven.capture._protocol import TargetKind as TargetKind
from breakeven.capture._protocol import TracedRun as TracedRun
from breakeven.capture._target import find_target as find_target

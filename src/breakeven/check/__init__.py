"""Join the edges to the core: from a training script to a verdict."""

from breakeven.check._check_target import check_target as check_target
from breakeven.check._progress import Progress as Progress
from breakeven.check._progress import SilentProgress as SilentProgress

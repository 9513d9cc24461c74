"""Forward, backward and update as one compiled call."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.whole_step.engines import Engine as Engine
    from breakeven.whole_step.fallback import FallbackStep as FallbackStep
    from breakeven.whole_step.fast import FastStep as FastStep
    from breakeven.whole_step.fast import fast_step as fast_step
    from breakeven.whole_step.gate import StepCost as StepCost
    from breakeven.whole_step.recorded_step import GeneratedTime as GeneratedTime
    from breakeven.whole_step.recorded_step import time_generated as time_generated
    from breakeven.whole_step.step_recorder import StepRecorder as StepRecorder
    from breakeven.whole_step.update_rules import find_rule as find_rule
    from breakeven.whole_step.whole_loss import as_output as as_output

__getattr__ = exported_on_use(__name__)

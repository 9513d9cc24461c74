"""Forward, backward and update as one compiled call."""

from breakeven.whole_step._fast_step import FastStep as FastStep
from breakeven.whole_step._fast_step import fast_step as fast_step
from breakeven.whole_step._step_cost import StepCost as StepCost

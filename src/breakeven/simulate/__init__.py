"""A step on two timelines, host and device: how long it takes, and what it waits for."""

from breakeven.simulate._bound import Bound as Bound
from breakeven.simulate._cost_model import CostModel as CostModel
from breakeven.simulate._edit import Edit as Edit
from breakeven.simulate._finding import Finding as Finding
from breakeven.simulate._predict import StepPrediction as StepPrediction
from breakeven.simulate._predict import predict_steps as predict_steps
from breakeven.simulate._program import Program as Program
from breakeven.simulate._program import build_program as build_program
from breakeven.simulate._scenario import CAPTURED as CAPTURED
from breakeven.simulate._scenario import FAST as FAST
from breakeven.simulate._scenario import SLOW as SLOW
from breakeven.simulate._scenario import TYPICAL as TYPICAL
from breakeven.simulate._scenario import Scenario as Scenario
from breakeven.simulate._timelines import Span as Span
from breakeven.simulate._timelines import Timeline as Timeline
from breakeven.simulate._timelines import Timelines as Timelines
from breakeven.simulate._timelines import simulate as simulate

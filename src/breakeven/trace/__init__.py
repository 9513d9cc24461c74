"""A recorded training step, and what can be derived from it without running it again."""

from breakeven.trace._batch_scaling import ScaledTrace as ScaledTrace
from breakeven.trace._batch_scaling import ScalingError as ScalingError
from breakeven.trace._configuration import Configuration as Configuration
from breakeven.trace._events import Copy as Copy
from breakeven.trace._events import Event as Event
from breakeven.trace._events import HostWork as HostWork
from breakeven.trace._events import Location as Location
from breakeven.trace._events import Op as Op
from breakeven.trace._events import Phase as Phase
from breakeven.trace._events import Sync as Sync
from breakeven.trace._events import TensorSpec as TensorSpec
from breakeven.trace._run_facts import Call as Call
from breakeven.trace._run_facts import LoaderFacts as LoaderFacts
from breakeven.trace._run_facts import ModelCall as ModelCall
from breakeven.trace._run_facts import OptimizerFacts as OptimizerFacts
from breakeven.trace._run_facts import RunFacts as RunFacts
from breakeven.trace._source_text import SourceText as SourceText
from breakeven.trace._step_case import NumberFormat as NumberFormat
from breakeven.trace._step_case import StepCase as StepCase
from breakeven.trace._step_case import TimedPhase as TimedPhase
from breakeven.trace._step_trace import NEVER_ON_DEVICE as NEVER_ON_DEVICE
from breakeven.trace._step_trace import DeviceFault as DeviceFault
from breakeven.trace._step_trace import Settings as Settings
from breakeven.trace._step_trace import StepTrace as StepTrace

"""A recorded training step, and its derivations without another run."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.trace.batch_dimension import scaled_from_one as scaled_from_one
    from breakeven.trace.batch_scaling import ScaledTrace as ScaledTrace
    from breakeven.trace.batch_scaling import ScalingError as ScalingError
    from breakeven.trace.configuration import Attention as Attention
    from breakeven.trace.configuration import Configuration as Configuration
    from breakeven.trace.configuration import MemoryFormat as MemoryFormat
    from breakeven.trace.configuration import NumberFormat as NumberFormat
    from breakeven.trace.configuration import StepCase as StepCase
    from breakeven.trace.configuration import TimedPhase as TimedPhase
    from breakeven.trace.events import CELL_LINES as CELL_LINES
    from breakeven.trace.events import Copy as Copy
    from breakeven.trace.events import Event as Event
    from breakeven.trace.events import GraphLaunch as GraphLaunch
    from breakeven.trace.events import HostWork as HostWork
    from breakeven.trace.events import Location as Location
    from breakeven.trace.events import Op as Op
    from breakeven.trace.events import Phase as Phase
    from breakeven.trace.events import Sync as Sync
    from breakeven.trace.events import TensorSpec as TensorSpec
    from breakeven.trace.events import is_notebook as is_notebook
    from breakeven.trace.events import line_text as line_text
    from breakeven.trace.events import line_words as line_words
    from breakeven.trace.step_trace import NEVER_ON_DEVICE as NEVER_ON_DEVICE
    from breakeven.trace.step_trace import Call as Call
    from breakeven.trace.step_trace import Collective as Collective
    from breakeven.trace.step_trace import DeviceFault as DeviceFault
    from breakeven.trace.step_trace import FileChange as FileChange
    from breakeven.trace.step_trace import FileWrite as FileWrite
    from breakeven.trace.step_trace import FileWrites as FileWrites
    from breakeven.trace.step_trace import HostArray as HostArray
    from breakeven.trace.step_trace import LoaderFacts as LoaderFacts
    from breakeven.trace.step_trace import ModelCall as ModelCall
    from breakeven.trace.step_trace import OptimizerFacts as OptimizerFacts
    from breakeven.trace.step_trace import ProcessGroup as ProcessGroup
    from breakeven.trace.step_trace import RunFacts as RunFacts
    from breakeven.trace.step_trace import Settings as Settings
    from breakeven.trace.step_trace import SourceText as SourceText
    from breakeven.trace.step_trace import StepTrace as StepTrace
    from breakeven.trace.step_trace import WriteProtection as WriteProtection
    from breakeven.trace.step_trace import num_micro_batches as num_micro_batches

__getattr__ = exported_on_use(__name__)

"""Rules: why a step is slower than it could be, at which line, and what the fix gains."""

from breakeven.doctor._all_rules import all_rules as all_rules
from breakeven.doctor._diagnose import Diagnosed as Diagnosed
from breakeven.doctor._diagnose import diagnose as diagnose
from breakeven.doctor._disturbance import Examined as Examined
from breakeven.doctor._disturbance import examine as examine
from breakeven.doctor._rule import Case as Case
from breakeven.doctor._rule import KnownGain as KnownGain
from breakeven.doctor._rule import Occurrence as Occurrence
from breakeven.doctor._rule import Rule as Rule
from breakeven.doctor._source import Sources as Sources
from breakeven.simulate import Finding as Finding

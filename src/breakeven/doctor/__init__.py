"""Rules: why a step is slower on a GPU than it could be, at which line, and what the fix gains."""

from breakeven.doctor._diagnose import all_rules as all_rules
from breakeven.doctor._diagnose import diagnose as diagnose
from breakeven.doctor._rule import Case as Case
from breakeven.doctor._rule import Occurrence as Occurrence
from breakeven.doctor._rule import Rule as Rule
from breakeven.simulate import Finding as Finding

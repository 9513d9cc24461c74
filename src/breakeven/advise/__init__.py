"""Rules: why a step is slower than necessary, at which line, and the gain of the fix."""

from breakeven.advise.diagnosis import Diagnosis as Diagnosis
from breakeven.advise.diagnosis import diagnose as diagnose
from breakeven.advise.diagnosis import kept_findings as kept_findings
from breakeven.advise.rule import Match as Match
from breakeven.advise.rule import Rule as Rule
from breakeven.advise.rule import RuleInput as RuleInput
from breakeven.advise.rules import all_rules as all_rules
from breakeven.advise.rules.prec import recast as recast
from breakeven.simulate import Finding as Finding
from breakeven.source import Sources as Sources

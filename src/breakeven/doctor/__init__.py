"""Rules: why a step is slower than it could be, at which line, and what the fix gains."""

from breakeven.doctor.diagnosis import Diagnosis as Diagnosis
from breakeven.doctor.diagnosis import diagnose as diagnose
from breakeven.doctor.diagnosis import disturbed_findings as disturbed_findings
from breakeven.doctor.rule import Match as Match
from breakeven.doctor.rule import Rule as Rule
from breakeven.doctor.rule import RuleInput as RuleInput
from breakeven.doctor.rules import all_rules as all_rules
from breakeven.simulate import Finding as Finding
from breakeven.source import Sources as Sources

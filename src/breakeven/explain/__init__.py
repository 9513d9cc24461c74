"""Take a step apart: what it waits for, at which line, what each fix gains, and what all do."""

from breakeven.explain.explanation import full_timeline as full_timeline
from breakeven.explain.target import explain_run as explain_run
from breakeven.explain.target import explain_target as explain_target

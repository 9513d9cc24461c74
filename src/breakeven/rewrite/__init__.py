"""Rewrite a training loop to call `breakeven.fast_step`: as a proposal, or in memory for a run."""

from breakeven.rewrite.source_patch import NoPatch as NoPatch
from breakeven.rewrite.source_patch import SourcePatch as SourcePatch
from breakeven.rewrite.source_patch import code_of_fast_step as code_of_fast_step
from breakeven.rewrite.source_patch import propose_fast_step as propose_fast_step

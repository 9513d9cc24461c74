"""Temporary patches of torch for a script: DataLoaders, model calls, freed memory."""

from breakeven.configure.loaders import change_loaders as change_loaders
from breakeven.configure.loaders import has_whole_batches as has_whole_batches
from breakeven.configure.patching import ByIdentity as ByIdentity
from breakeven.configure.patching import Patches as Patches
from breakeven.configure.patching import groups_of as groups_of
from breakeven.configure.patching import has_parameters as has_parameters
from breakeven.configure.patching import keep_freed_memory as keep_freed_memory
from breakeven.configure.patching import named_parameters_of as named_parameters_of
from breakeven.configure.patching import named_parts as named_parts
from breakeven.configure.patching import updated_by as updated_by

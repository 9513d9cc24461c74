"""Settings put into effect around a script that does not know of them, and undone."""

from breakeven.configure._configured import configured as configured
from breakeven.configure._kept_memory import keep_freed_memory as keep_freed_memory
from breakeven.configure._patching import Patches as Patches
from breakeven.configure._whole_batches import has_whole_batches as has_whole_batches

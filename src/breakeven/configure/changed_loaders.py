"""DataLoaders that are made with other arguments than their maker gave."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from breakeven.configure.patching import Patches


def change_loaders(
    patches: Patches, change: Callable[[dict[str, Any], DataLoader[Any]], None]
) -> None:
    """Let ``change`` edit what DataLoaders are made with, until the patches are undone.

    Args:
        patches: Puts it back.
        change: Takes the arguments that the maker of a loader has given, by name, and the loader
            that is about to be made.
    """
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(loader: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(loader, *args, **kwargs).arguments
        except TypeError:  # torch says it better
            return original(loader, *args, **kwargs)
        given.pop(next(iter(signature.parameters)))  # the loader itself
        change(given, loader)
        return original(loader, **given)

    patches.replace(DataLoader, "__init__", initialize)

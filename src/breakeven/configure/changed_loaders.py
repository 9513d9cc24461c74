"""DataLoaders that are made with other arguments than their maker gave."""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from typing import Any, Self

from torch.utils.data import DataLoader

from breakeven.configure.patching import Patches


class ChangedLoaders(Patches):
    """Inside, ``_change`` edits what DataLoaders are made with; counts those that it has edited."""

    def __init__(self) -> None:
        super().__init__()
        self._num_loaders = 0

    @property
    def num_applied(self) -> int:
        """Return how many DataLoaders are made otherwise."""
        return self._num_loaders

    def __enter__(self) -> Self:
        super().__enter__()
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def initialize(loader: Any, *args: Any, **kwargs: Any) -> None:
            try:
                given = signature.bind(loader, *args, **kwargs).arguments
            except TypeError:  # torch says it better
                return original(loader, *args, **kwargs)
            given.pop(next(iter(signature.parameters)))  # the loader itself
            self._num_loaders += self._change(given, loader)
            return original(loader, **given)

        self.replace(DataLoader, "__init__", initialize)
        return self

    @abstractmethod
    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> bool:
        """Edit what a DataLoader is made with, and return whether the setting took hold.

        Args:
            given: The arguments that its maker has given, by name.
            loader: Is about to be made.
        """

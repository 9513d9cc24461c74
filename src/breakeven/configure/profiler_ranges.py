"""The names that optimizers and loaders announce to a profiler, when none listens."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.profiler

from breakeven.configure.patching import Patches


class skipped_profiler_ranges(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, a range for the profiler costs nothing while no profiler runs.

    Every ``optimizer.step()``, ``zero_grad()`` and fetch of a batch opens one, which takes some
    10 µs each: operators of the dispatcher enter and leave it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_skipped = 0

    @property
    def num_applied(self) -> int:
        """Return how many ranges were skipped."""
        return self._num_skipped

    def __enter__(self) -> skipped_profiler_ranges:
        super().__enter__()
        original = torch.autograd.profiler.record_function
        counts = self

        class record_function(original):  # noqa: N801 - torch's own name
            """A range that is opened only where a profiler sees it."""

            def __init__(self, name: str, args: str | None = None) -> None:
                super().__init__(name, args)
                self._is_seen = torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]
                counts._num_skipped += not self._is_seen

            def __enter__(self) -> Any:
                return super().__enter__() if self._is_seen else self

            def __exit__(self, *error: Any) -> None:
                if self._is_seen:
                    super().__exit__(*error)

        # torch and libraries look it up at each use.
        self.replace(torch.autograd.profiler, "record_function", record_function)
        return self

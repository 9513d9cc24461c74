"""Replace attributes of libraries for a while, and put them back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

_ABSENT = object()


class Patches(ExitStack):
    """A stack of replaced attributes; leaving it restores all of them in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self._originals: dict[int, Any] = {}

    def original_of(self, value: Any) -> Any:
        """Return what ``value`` stands in for; ``value`` itself when it replaces nothing."""
        return self._originals.get(id(value), value)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` until the stack is left.

        An attribute that ``owner`` merely inherits is shadowed, and uncovered again afterwards.
        """
        original = vars(owner).get(name, _ABSENT)
        self._originals[id(value)] = getattr(owner, name, None)
        setattr(owner, name, value)
        self.callback(_restore, owner, name, original)


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)

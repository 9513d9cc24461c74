"""The numbers of an update (learning rate, bias corrections), in Python and as C.

A rule says once what they are. Given numbers it computes them; given formulas it writes them down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from faststep.update_rules import Group, UpdateRule

# Number of the group, name and, in a tuple, index.
Option = tuple[int, str, int | None]


class NumbersOf(dict[str, Any]):
    """Options of a group as floats, read when they are asked for: they may be tensors."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group

    def __missing__(self, name: str) -> Any:
        value = self._group[name]
        return tuple(map(float, value)) if isinstance(value, tuple | list) else float(value)


class _Formula:
    """A number that C computes, in double precision."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: Any) -> _Formula:
        return _Formula(f"({self.text} + {_text(other)})")

    def __radd__(self, other: Any) -> _Formula:
        return _Formula(f"({_text(other)} + {self.text})")

    def __sub__(self, other: Any) -> _Formula:
        return _Formula(f"({self.text} - {_text(other)})")

    def __rsub__(self, other: Any) -> _Formula:
        return _Formula(f"({_text(other)} - {self.text})")

    def __mul__(self, other: Any) -> _Formula:
        return _Formula(f"({self.text} * {_text(other)})")

    def __truediv__(self, other: Any) -> _Formula:
        return _Formula(f"({self.text} / {_text(other)})")

    def __rtruediv__(self, other: Any) -> _Formula:
        return _Formula(f"({_text(other)} / {self.text})")

    def __pow__(self, other: Any) -> _Formula:
        return _Formula(f"pow({self.text}, {_text(other)})")


def _text(number: Any) -> str:
    return number.text if isinstance(number, _Formula) else repr(float(number))


class _FormulasOf(dict[str, Any]):
    """Options of a group as formulas; each that is read gets a place in the C code's array."""

    def __init__(self, place: int, group: Group, options: list[Option]) -> None:
        super().__init__()
        self._place, self._group, self._options = place, group, options

    def __missing__(self, name: str) -> Any:
        value = self._group[name]
        if isinstance(value, tuple | list):
            self[name] = tuple(self._add(name, index) for index in range(len(value)))
        else:
            self[name] = self._add(name, None)
        return self[name]

    def _add(self, name: str, index: int | None) -> _Formula:
        self._options.append((self._place, name, index))
        return _Formula(f"options[{len(self._options) - 1}]")


class UpdateNumbers:
    """C that computes the numbers of the next update of all packs.

    Args:
        rule: The optimizer's rule.
        groups: The optimizer's groups.
        packs: Number of the group of each pack.
    """

    def __init__(self, rule: UpdateRule, groups: Sequence[Group], packs: Sequence[int]) -> None:
        # What the C code reads, in its order.
        self.options: list[Option] = []
        texts: list[str] = []
        for number, place in enumerate(packs):
            formulas = _FormulasOf(place, groups[place], self.options)
            texts += map(_text, rule.scalars(formulas, _Formula(f"(*counts[{number}] + 1.0)")))
        self.width = len(texts)
        self._lines = [f"  out[{number}] = {text};\n" for number, text in enumerate(texts)]

    def source(self, c_type: str) -> str:
        """Return the definition of ``update_numbers``, which writes numbers of a type."""
        head = "static void update_numbers(const double *options, float *const *counts, "
        return f"{head}{c_type} *out) {{\n{''.join(self._lines)}}}\n"

    def values(self, groups: Sequence[Group]) -> list[float]:
        """Return the options as they are now."""
        found: list[float] = []
        for place, name, index in self.options:
            value = groups[place][name]
            found.append(float(value if index is None else value[index]))
        return found

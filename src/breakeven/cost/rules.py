"""Lowering rules, by the names of operators, reduced to what decides their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from breakeven.cost.kernel import Kernel
from breakeven.trace import Op, Settings

Kernels = Kernel | tuple[Kernel, ...]
"""What a rule returns: one kernel, or several in launch order."""

Rule = Callable[[Op], Kernels]
SettingsRule = Callable[[Op, Settings], Kernels]


@cache
def base_name(op_name: str) -> str:
    """Return the name that rules are registered under: ``aten.add_.Tensor`` is ``add``.

    The overload and the underscore of the in-place form are dropped, since both run the same
    kernel. Operators of other namespaces keep theirs: ``torchvision.nms``.
    """
    namespace, _, rest = op_name.partition(".")
    name = rest.partition(".")[0] or rest
    if not (name.startswith("__") and name.endswith("__")):
        name = name.removesuffix("_") or name
    return name if namespace == "aten" else f"{namespace}.{name}"


@cache
def overload_name(op_name: str) -> str:
    """Return the overload: ``Tensor`` for ``aten.add_.Tensor``, ``default`` where none is given."""
    parts = op_name.split(".")
    return parts[2] if len(parts) > 2 else "default"


@cache
def is_in_place(op_name: str) -> bool:
    """Return whether the operator writes into its first argument: ``aten.add_.Tensor``."""
    name = op_name.split(".")[1] if "." in op_name else op_name
    return name.endswith("_") and not name.endswith("__")


@cache
def has_out_argument(op_name: str) -> bool:
    """Return whether the results are given as arguments: ``aten.mm.out``, ``add.Scalar_out``."""
    overload = overload_name(op_name)
    return overload == "out" or overload.endswith("_out") or overload == "grad_input"


def names_in(text: str) -> frozenset[str]:
    """Return the names in ``text``, which are separated by blanks or line ends."""
    return frozenset(text.split())


class RuleTable(dict[str, SettingsRule]):
    """Rules by the names of their operators, as `base_name` gives them."""

    def add(self, names: str | Iterable[str]) -> Callable[[Rule], Rule]:
        """Register a rule that depends on the operator alone.

        Args:
            names: Of operators; in a text, separated by blanks or line ends.
        """

        def register(rule: Rule) -> Rule:
            self._set(names, lambda op, settings: rule(op))
            return rule

        return register

    def add_with_settings(
        self, names: str | Iterable[str]
    ) -> Callable[[SettingsRule], SettingsRule]:
        """Register a rule that depends on torch's switches too, as `add` does."""

        def register(rule: SettingsRule) -> SettingsRule:
            self._set(names, rule)
            return rule

        return register

    def join(self, other: RuleTable) -> None:
        """Take over the rules of another table."""
        for name, rule in other.items():
            self._set((name,), rule)

    def _set(self, names: str | Iterable[str], rule: SettingsRule) -> None:
        for name in names.split() if isinstance(names, str) else names:
            assert name not in self, name
            self[name] = rule

"""Which optimizer a training loop updates with, and of which model."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from breakeven.rewrite.outer_call import Loop, OuterCall
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    arguments_of,
    nodes_in,
    parameters_of,
    plain_name,
)

# Optimizers of torch, by class; which of them a whole step supports, it says itself.
_OPTIMIZERS = frozenset({
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
    "Rprop", "Adafactor", "Muon",
})  # fmt: skip
_OTHER_OPTIMIZERS = frozenset({"LBFGS", "SparseAdam"})

# Statements `name.method()` of a block, by name.
MethodCalls = Mapping[str, list[ast.Expr]]


class Optimizers:
    """The optimizers that a script builds.

    Args:
        script: The script.

    Raises:
        NoEditError: One of them is of a kind that no compiled step has.
    """

    def __init__(self, script: SyntaxTree) -> None:
        self._script = script
        self._built: dict[str, list[ast.Call]] = {}
        for binding in script.bindings:
            call = binding.value
            if not isinstance(call, ast.Call):
                continue
            class_name = plain_name(call.func).rpartition(".")[2]
            if class_name in _OTHER_OPTIMIZERS:
                raise NoEditError(f"line {binding.statement.lineno} uses {class_name}")
            name = plain_name(binding.target)
            if name and (class_name in _OPTIMIZERS or _parameter_owners(call)):
                self._built.setdefault(name, []).append(call)

    def updating(self, updates: MethodCalls, cleared: MethodCalls, backward: ast.stmt) -> str:
        """Return the optimizer that a block updates with, as the script names it.

        Args:
            updates: Statements ``name.step()`` after the backward pass.
            cleared: Statements ``name.zero_grad()``.
            backward: The statement that calls ``backward()``.

        Raises:
            NoEditError: There is none, or it does more than one plain update.
        """
        for name, (statement, *more) in updates.items():
            if name not in cleared and name not in self._built:
                continue
            assert isinstance(statement.value, ast.Call)
            if more:
                raise NoEditError(f"line {more[0].lineno} updates once more")
            if arguments_of(statement.value):
                raise NoEditError(f"line {statement.lineno} gives the update a closure")
            if not cleared:
                raise NoEditError(
                    f"gradients are not cleared in the block of line {backward.lineno}: they may "
                    "be accumulated"
                )
            return name
        raise NoEditError(
            f"there is no optimizer.step() after line {backward.lineno} in the same block"
        )

    def model_of(self, optimizer: str, loop: Loop) -> str:
        """Return the model whose parameters an optimizer of a loop has, as the script names it.

        Raises:
            NoEditError: It has parameters of several, or the script does not tell.
        """
        handed_over = self._parameters_around(loop)
        if optimizer in self._built and optimizer not in handed_over:
            owners = self._owners(optimizer)
            if len(owners) != 1 or "" in owners:
                raise NoEditError(f"`{optimizer}` has parameters of other than one named model")
            return owners.pop()
        # It was handed over: the model is what was handed over with it, and is used as one.
        methods = ("parameters", "train", "zero_grad")
        called = {plain_name(call.func) for call in nodes_in(loop, ast.Call)}
        models = _receivers(self._script.tree, *methods) & called & handed_over
        if len(models) != 1:
            raise NoEditError(f"the script does not tell which model `{optimizer}` updates")
        return models.pop()

    def ensure_same_model(self, model: str, optimizer: str, outer: OuterCall) -> None:
        """Refuse a function that is given a model, and an optimizer of other parameters."""
        model_outside, name = (
            plain_name(outer.outside(ast.parse(own, mode="eval").body))
            for own in (model, optimizer)
        )
        if self._owners(name) != {model_outside}:
            raise NoEditError(f"the script does not tell which model `{name}` updates")

    def ensure_only(
        self, optimizer: str, model: str, updates: MethodCalls, cleared: MethodCalls
    ) -> None:
        """Refuse a block that works with a second optimizer, or with what may be one.

        Args:
            optimizer: The one that there may be.
            model: Its gradients may be cleared as well.
            updates: Statements ``name.step()`` after the backward pass.
            cleared: Statements ``name.zero_grad()``.

        Raises:
            NoEditError: There is another.
        """
        for name, (first, *_) in cleared.items():
            if name not in (optimizer, model):
                raise NoEditError(f"line {first.lineno} clears gradients of `{name}` too")
        for name, (first, *_) in updates.items():
            if name != optimizer and name not in self._schedulers(optimizer):
                raise NoEditError(
                    f"line {first.lineno} calls {name}.step(), which is not known to be a scheduler"
                )

    def _owners(self, optimizer: str) -> set[str]:
        calls = self._built.get(optimizer, ())
        return {owner for call in calls for owner in _parameter_owners(call)}

    def _parameters_around(self, node: ast.AST) -> set[str]:
        """Return the parameters of the function around a node; none in the module."""
        above = self._script.parents(node)
        functions = (one for one in above if isinstance(one, ast.FunctionDef))
        return {name for function in [*functions][:1] for name in parameters_of(function.args)}

    def _schedulers(self, optimizer: str) -> set[str]:
        """Return what is made for an optimizer; a parameter is taken for such by its name."""
        return {
            plain_name(binding.target)
            for binding in self._script.bindings
            if isinstance(binding.value, ast.Call)
            and any(plain_name(argument) == optimizer for argument in binding.value.args)
        } | {name for name in parameters_of(self._script.tree) if "sched" in name.lower()}


def _parameter_owners(call: ast.Call) -> set[str]:
    """Return what the parameters in a call are of: ``model`` for ``Adam(model.parameters())``."""
    methods = ("parameters", "named_parameters")
    return {owner for given in arguments_of(call) for owner in _receivers(given, *methods)}


def _receivers(node: ast.AST, *methods: str) -> set[str]:
    """Return on what some methods are called in a node, as the source names it."""
    return {
        plain_name(call.func.value)
        for call in nodes_in(node, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in methods
    }

"""The optimizers of a script, the statements that use them, and the models that they update."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from breakeven.rewrite.known_calls import Loop, last_called
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    arguments_of,
    mentions,
    nodes_in,
    parameters_of,
    plain_name,
)

# Names of torch's optimizers; fast_step itself decides which of them it supports.
_OPTIMIZERS = frozenset({
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
    "Rprop", "Adafactor", "Muon",
})  # fmt: skip
_OTHER_OPTIMIZERS = frozenset({"LBFGS", "SparseAdam"})

_OF_ANY_MODEL = ("parameters", "named_parameters", "train", "eval", "zero_grad", "step", "to")

# Statements `name.method()` of a block, by name.
MethodCalls = Mapping[str, list[ast.Expr]]


def method_calls(block: Sequence[ast.stmt], method: str) -> dict[str, list[ast.Expr]]:
    """Return the statements ``name.method(…)`` of a block, by name."""
    found: dict[str, list[ast.Expr]] = {}
    for statement in block:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr))):
                if attr == method and plain_name(owner):
                    found.setdefault(plain_name(owner), []).append(statement)
            case _:
                pass
    return found


class Optimizers:
    """The optimizers that a script builds.

    Args:
        script: The script.

    Raises:
        NoEditError: If a compiled step cannot have one of them.
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
            NoEditError: If there is none, or it does more than one plain update.
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
        """Return the model whose parameters an optimizer of a loop updates, as the script names it.

        Raises:
            NoEditError: If it updates several models, or the script does not show which.
        """
        # Parameters of the function with the loop.
        above = self._script.parents(loop)
        around = next((one for one in above if isinstance(one, ast.FunctionDef)), None)
        handed_over = parameters_of(around.args) if around else set[str]()
        if optimizer in self._built and optimizer not in handed_over:
            owners = self.owners(optimizer)
            if len(owners) != 1 or "" in owners:
                raise NoEditError(f"`{optimizer}` has parameters of other than one named model")
            return owners.pop()
        # Or a function of the script builds it from one variable. Making the step checks that it
        # has only that model's parameters.
        functions = {node.name for node in self._script.nodes(ast.FunctionDef)}
        makers = [
            binding.value
            for binding in self._script.bindings
            if plain_name(binding.target) == optimizer
        ]
        match makers:
            case [ast.Call(func=ast.Name(id=name), args=[ast.Name(id=owner)])]:
                if name in functions and optimizer not in handed_over:
                    return owner
            case _:
                pass
        # It is a parameter: the model is another parameter, one that is used as a model.
        methods = ("parameters", "train", "zero_grad")
        called = {plain_name(call.func) for call in nodes_in(loop, ast.Call)}
        # Calls of the model's own methods count too: they call parts of the model.
        own = [one.rpartition(".") for one in called]
        called |= {owner for owner, _, name in own if name not in _OF_ANY_MODEL}
        models = _receivers(self._script.tree, *methods) & called & handed_over
        if len(models) != 1:
            raise NoEditError(f"the script does not tell which model `{optimizer}` updates")
        return models.pop()

    def ensure_only(
        self, optimizer: str, model: str, updates: MethodCalls, cleared: MethodCalls
    ) -> None:
        """Refuse a block that uses a second optimizer, or an object that may be one.

        Args:
            optimizer: The optimizer of the step.
            model: The model; the block may clear its gradients as well.
            updates: Statements ``name.step()`` after the backward pass.
            cleared: Statements ``name.zero_grad()``.

        Raises:
            NoEditError: If there is another.
        """
        for name, (first, *_) in cleared.items():
            if name not in (optimizer, model):
                raise NoEditError(f"line {first.lineno} clears gradients of `{name}` too")
        # An object built with the optimizer is a scheduler; so is a parameter with such a name.
        schedulers = {
            plain_name(binding.target)
            for binding in self._script.bindings
            if isinstance(binding.value, ast.Call)
            and any(plain_name(argument) == optimizer for argument in binding.value.args)
        } | {name for name in parameters_of(self._script.tree) if "sched" in name.lower()}
        for name, (first, *_) in updates.items():
            if name != optimizer and name not in schedulers:
                raise NoEditError(
                    f"line {first.lineno} calls {name}.step(), which is no known scheduler"
                )

    def updates_of(self, block: Sequence[ast.stmt]) -> MethodCalls:
        """Return the statements ``optimizer.step()`` of a block, by optimizer of the script."""
        calls = method_calls(block, "step")
        return {name: found for name, found in calls.items() if name in self._built}

    def ensure_once(self, updates: MethodCalls, block: Sequence[ast.stmt]) -> None:
        """Refuse an optimizer that updates twice, or elsewhere too, such as in an ``if``."""
        for statement in block:
            for call in nodes_in(statement, ast.Call):
                owner = plain_name(call.func).rpartition(".")[0]
                if last_called(call) == "step" and owner in self._built:
                    first, *_ = updates.get(owner, [None])
                    if statement is not first or call.args or call.keywords:
                        raise NoEditError(
                            f"line {call.lineno} updates in another way than once in each step"
                        )

    def models_in(self, loop: Loop, optimizers: Sequence[str]) -> tuple[str, ...]:
        """Return the models that a loop names: those of its optimizers, and copies of models.

        Raises:
            NoEditError: If the script does not show whose parameters an optimizer has.
        """
        found: dict[str, None] = {}
        for optimizer in optimizers:
            owners = self.owners(optimizer)
            if not owners or "" in owners:
                raise NoEditError(f"`{optimizer}` has parameters of other than named models")
            found |= dict.fromkeys(sorted(owners))
        classes = {node.name for node in self._script.nodes(ast.ClassDef)}
        with_parameters = _receivers(self._script.tree, "parameters")
        for binding in self._script.bindings:
            call = binding.value
            name = plain_name(binding.target)
            while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                if call.func.attr not in ("to", "cpu", "double", "float", "eval", "train"):
                    break
                call = call.func.value  # `Model().to(device)`
            if not isinstance(call, ast.Call) or not name or not mentions(loop, name):
                continue
            kind, copied = last_called(call), {*map(plain_name, arguments_of(call)[:1])}
            is_copy = kind == "deepcopy" and not copied.isdisjoint(found)
            if is_copy or (kind in classes and name in with_parameters):
                found[name] = None
        return tuple(found)

    def owners(self, optimizer: str) -> set[str]:
        """Return the models that an optimizer updates; with an empty name for an unknown one."""
        calls = self._built.get(optimizer, ())
        return {owner for call in calls for owner in _parameter_owners(call)}


def _parameter_owners(call: ast.Call) -> set[str]:
    """Return the owners of the parameters in a call: ``model`` for ``Adam(model.parameters())``."""
    methods = ("parameters", "named_parameters")
    return {owner for given in arguments_of(call) for owner in _receivers(given, *methods)}


def _receivers(node: ast.AST, *methods: str) -> set[str]:
    """Return the objects whose given methods a node calls, as the source names them."""
    return {
        plain_name(call.func.value)
        for call in nodes_in(node, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in methods
    }

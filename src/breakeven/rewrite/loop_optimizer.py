"""Which optimizer a training loop updates with, and of which model."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from breakeven.rewrite.outer_call import OuterCall
from breakeven.rewrite.python_names import Loop, NotMatchedError, dotted, enclosing

# Optimizers of torch, by class; which of them a whole step supports, it says itself.
_OPTIMIZERS = frozenset({
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
    "Rprop", "Adafactor", "Muon",
})  # fmt: skip
_OTHER_OPTIMIZERS = frozenset({"LBFGS", "SparseAdam"})


def built_optimizers(tree: ast.Module) -> Iterator[tuple[str, list[ast.Call]]]:
    """Yield each name that is given an optimizer, and the calls that build it."""
    built: dict[str, list[ast.Call]] = {}
    for part in ast.walk(tree):
        if not isinstance(part, ast.Assign | ast.AnnAssign) or not isinstance(part.value, ast.Call):
            continue
        class_name = dotted(part.value.func).rpartition(".")[2]
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        if class_name in _OTHER_OPTIMIZERS:
            raise NotMatchedError(f"line {part.lineno} uses {class_name}")
        if class_name in _OPTIMIZERS or _parameter_owners(part.value):
            for target in targets:
                if dotted(target):
                    built.setdefault(dotted(target), []).append(part.value)
    yield from built.items()


def _parameter_owners(call: ast.Call) -> set[str]:
    """Return what the parameters in a call are of: ``model`` for ``Adam(model.parameters())``."""
    return {
        dotted(part.func.value)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for part in ast.walk(argument)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in ("parameters", "named_parameters")
    }


def updating_optimizer(
    updates: Mapping[str, list[ast.Expr]],
    cleared: Mapping[str, list[ast.Expr]],
    optimizers: Mapping[str, list[ast.Call]],
    backward: ast.stmt,
) -> str:
    """Return the optimizer that a block updates with, as the script names it.

    Args:
        updates: Statements ``name.step()`` after the backward pass, by name.
        cleared: Statements ``name.zero_grad()``, by name.
        optimizers: Optimizers that the script builds.
        backward: The statement that calls ``backward()``.

    Raises:
        NotMatchedError: There is none, or it does more than one plain update.
    """
    for name, (statement, *more) in updates.items():
        if name not in cleared and name not in optimizers:
            continue
        call = statement.value
        assert isinstance(call, ast.Call)
        if more:
            raise NotMatchedError(f"line {more[0].lineno} updates once more")
        if call.args or call.keywords:
            raise NotMatchedError(f"line {statement.lineno} gives the update a closure")
        if not cleared:
            raise NotMatchedError(
                f"gradients are not cleared in the block of line {backward.lineno}: they may be "
                "accumulated"
            )
        return name
    raise NotMatchedError(
        f"there is no optimizer.step() after line {backward.lineno} in the same block"
    )


def updated_model(
    optimizer: str,
    optimizers: Mapping[str, list[ast.Call]],
    loop: Loop,
    tree: ast.Module,
    parents: Mapping[ast.AST, ast.AST],
) -> str:
    """Return the model whose parameters an optimizer has, as the script names it.

    Args:
        optimizer: Its name.
        optimizers: Optimizers that the script builds.
        loop: The training loop.
        tree: The script.
        parents: The node around each node of it.

    Raises:
        NotMatchedError: It has parameters of several, or the script does not tell.
    """
    if optimizer in optimizers and not _is_parameter(optimizer, loop, parents):
        owners = {owner for call in optimizers[optimizer] for owner in _parameter_owners(call)}
        if len(owners) != 1 or "" in owners:
            raise NotMatchedError(f"`{optimizer}` has parameters of other than one named model")
        return owners.pop()
    # It was handed over: the model is what was handed over with it, and is used as one.
    owners = {
        dotted(part.func.value)
        for part in ast.walk(tree)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in ("parameters", "train", "zero_grad")
    }
    called = {dotted(part.func) for part in ast.walk(loop) if isinstance(part, ast.Call)}
    models = {owner for owner in owners & called if _is_parameter(owner, loop, parents)}
    if len(models) != 1:
        raise NotMatchedError(f"the script does not tell which model `{optimizer}` updates")
    return models.pop()


def ensure_same_model(
    model: str, optimizer: str, outer: OuterCall, optimizers: Mapping[str, list[ast.Call]]
) -> None:
    """Refuse a function that is given a model, and an optimizer of other parameters."""
    model_outside = dotted(outer.outside(ast.parse(model, mode="eval").body))
    name = dotted(outer.outside(ast.parse(optimizer, mode="eval").body))
    owners = {owner for call in optimizers.get(name, ()) for owner in _parameter_owners(call)}
    if owners != {model_outside}:
        raise NotMatchedError(f"the script does not tell which model `{name}` updates")


def _is_parameter(name: str, node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Return whether ``name`` is a parameter of the function around ``node``."""
    for around in enclosing(node, parents):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (part.arg for part in ast.walk(around.args) if isinstance(part, ast.arg))
            return name in arguments
    return False


def ensure_one_optimizer(
    updates: Mapping[str, list[ast.Expr]],
    cleared: Mapping[str, list[ast.Expr]],
    schedulers: set[str],
    optimizer: str,
    model: str,
) -> None:
    """Refuse a block that works with a second optimizer, or with what may be one.

    Args:
        updates: Statements ``name.step()`` after the backward pass, by name.
        cleared: Statements ``name.zero_grad()``, by name.
        schedulers: What may have a ``step`` beside the optimizer.
        optimizer: The one that there may be.
        model: Its gradients may be cleared as well.

    Raises:
        NotMatchedError: There is another.
    """
    for name, statements in cleared.items():
        if name not in (optimizer, model):
            raise NotMatchedError(f"line {statements[0].lineno} clears gradients of `{name}` too")
    for name, statements in updates.items():
        if name != optimizer and name not in schedulers:
            raise NotMatchedError(
                f"line {statements[0].lineno} calls {name}.step(), which is not known to be a "
                "scheduler"
            )


def built_for(tree: ast.Module, optimizer: str) -> set[str]:
    """Return the names of what is made for an optimizer: its schedulers.

    A function's parameter is taken for one by its name.
    """
    built: set[str] = set()
    for part in ast.walk(tree):
        match part:
            case ast.Assign(targets=[target], value=ast.Call() as call):
                if any(dotted(argument) == optimizer for argument in call.args):
                    built.add(dotted(target))
            case ast.arg(arg=name):
                if "sched" in name.lower():
                    built.add(name)
            case _:
                pass
    return built

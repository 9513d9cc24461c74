"""Where a training loop calls backward and update, and on which model and optimizer."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from breakeven.rewrite.outer_call import Loop, OuterCall, find_outer_call, loops_around
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    arguments_of,
    nodes_in,
    parameters_of,
    plain_name,
    spans,
)

# Scripts that do these look into a step, or change how it is run, in ways that one call of a
# compiled step does not allow.
_FORBIDDEN = {
    "grad": "reads gradients, which a compiled step does not leave behind",
    "grad_fn": "looks at the graph of gradients",
    "retain_grad": "reads gradients, which a compiled step does not leave behind",
    "clip_grad_value_": "clips single gradients",
    "register_hook": "has hooks on gradients",
    "register_full_backward_hook": "has hooks on gradients",
    "register_post_accumulate_grad_hook": "has hooks on gradients",
    "register_step_post_hook": "has hooks on the optimizer",
    "register_step_pre_hook": "has hooks on the optimizer",
    "GradScaler": "scales gradients",
    "DataParallel": "trains on several devices",
    "DistributedDataParallel": "trains on several devices",
    "fast_step": "has a compiled step already",
}
# Done while the loops run, these change what was compiled before them.
_CHANGES_MODEL = {
    "requires_grad": "freezes or thaws parameters",
    "requires_grad_": "freezes or thaws parameters",
    "add_param_group": "gives the optimizer more parameters",
    "register_forward_hook": "adds hooks",
    "register_forward_pre_hook": "adds hooks",
    "add_module": "changes the model",
    "register_module": "changes the model",
}
_CONTEXTS = ("autocast", "no_grad", "inference_mode", "anomaly", "saved_tensors", "graph")
# Optimizers of torch, by class; which of them a whole step supports, it says itself.
_OPTIMIZERS = frozenset({
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
    "Rprop", "Adafactor", "Muon",
})  # fmt: skip
_OTHER_OPTIMIZERS = frozenset({"LBFGS", "SparseAdam"})

_OF_ANY_MODEL = ("parameters", "named_parameters", "train", "eval", "zero_grad", "step", "to")

# Statements `name.method()` of a block, by name.
MethodCalls = Mapping[str, list[ast.Expr]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The statements that a step is made of, as far as their form shows.

    Args:
        block: Body of the innermost loop.
        loops: That loop and those around it, from within, of the same function.
        backward: The statement that calls ``backward()``.
        loss: What it is called on.
        update: The statement that updates.
        model: As the source calls it: ``self.model``.
        optimizer: Likewise.
        max_norm: What gradients are clipped to; None for no clipping.
        outer: Where a loop elsewhere calls the function of these loops; None where none does.
        own: Statements that clear gradients, clip them, call backward or update.
    """

    block: Sequence[ast.stmt]
    loops: tuple[Loop, ...]
    backward: ast.stmt
    loss: ast.expr
    update: ast.stmt
    model: str
    optimizer: str
    max_norm: ast.expr | None
    outer: OuterCall | None
    own: Sequence[ast.stmt]


def find_parts(script: SyntaxTree, backward_line: int | None) -> StepParts:
    """Return the parts of the training step of a script.

    Args:
        script: The script.
        backward_line: Line of the call of ``backward()``; None where it is not known.

    Raises:
        NoEditError: There is none, or one that is not known to be safe to change.
    """
    ensure_plain(script)
    backward, loss = _backward(script, backward_line)
    loops, outer = loops_of(backward, script)
    for loop in (loops[-1], *(() if outer is None else (outer.loops[-1],))):
        ensure_lasting_model(loop)
    block = loops[0].body
    position = block.index(backward)
    cleared = _method_calls(block, "zero_grad")
    updates = _method_calls(block[position + 1 :], "step")
    optimizers = Optimizers(script)
    optimizer = optimizers.updating(updates, cleared, backward)
    model = optimizers.model_of(optimizer, loops[0])
    if outer is not None:
        optimizers.ensure_same_model(model, optimizer, outer)
    optimizers.ensure_only(optimizer, model, updates, cleared)
    update = updates[optimizer][0]
    between = block[position + 1 : block.index(update)]
    clips = [(statement, call) for statement in between if (call := _clip_call(statement))][:1]
    clearing = [statement for statements in cleared.values() for statement in statements]
    for statement in clearing:
        if statement in between:
            raise NoEditError(f"line {statement.lineno} clears gradients before they are used")
    return StepParts(
        block=block,
        loops=loops,
        backward=backward,
        loss=loss,
        update=update,
        model=model,
        optimizer=optimizer,
        max_norm=_max_norm(clips[0][1], model) if clips else None,
        outer=outer,
        own=[*clearing, backward, update, *(statement for statement, _ in clips)],
    )


def ensure_plain(script: SyntaxTree) -> None:
    """Refuse a script that looks into its steps, or changes how they are run."""
    for part in script.nodes(ast.Attribute, ast.Name):
        is_attribute = isinstance(part, ast.Attribute)
        name = part.attr if is_attribute else part.id
        if name in _FORBIDDEN and (is_attribute or name != "grad"):
            raise NoEditError(f"line {part.lineno} {_FORBIDDEN[name]}")
        if is_attribute and name == "compile" and plain_name(part) != "re.compile":
            raise NoEditError(f"line {part.lineno} compiles by itself")


def ensure_lasting_model(loop: Loop) -> None:
    """Refuse a loop that changes what a step was compiled for."""
    for part in nodes_in(loop, ast.Attribute):
        if part.attr in _CHANGES_MODEL:
            raise NoEditError(f"line {part.lineno} {_CHANGES_MODEL[part.attr]} while the loop runs")


def _backward(script: SyntaxTree, line: int | None) -> tuple[ast.stmt, ast.expr]:
    """Return the one statement that calls ``backward()``, and on what."""
    calls = [
        (call, call.func.value)
        for call in script.nodes(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
    ]
    if not calls:
        raise NoEditError("the script itself does not call backward()")
    if len(calls) > 1:
        lines = ", ".join(str(call.lineno) for call, _ in calls)
        raise NoEditError(f"backward() is called in several places: lines {lines}")
    ((call, loss),) = calls
    if line is not None and not spans(call, line):
        raise NoEditError(
            f"the measured step calls backward() in line {line}, this file in line {call.lineno}"
        )
    statement = script.parent(call)
    if not isinstance(statement, ast.Expr) or call.args or call.keywords:
        raise NoEditError(f"line {call.lineno} calls backward() with arguments")
    return statement, loss


def loops_of(backward: ast.stmt, script: SyntaxTree) -> tuple[tuple[Loop, ...], OuterCall | None]:
    """Return the loops of the step, and the call of their function where a loop makes it."""
    innermost = script.parent(backward)
    if not isinstance(innermost, ast.For | ast.While) or backward not in innermost.body:
        raise NoEditError(
            f"line {backward.lineno} calls backward() in another place than directly in a loop"
        )
    loops = (innermost, *loops_around(innermost, script))
    for around in script.parents(innermost):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(around, ast.AsyncFunctionDef) or around.decorator_list:
                raise NoEditError(f"`{around.name}` has a decorator, or is async")
            outer = find_outer_call(around, script)
            for node in () if outer is None else script.parents(outer.call):
                _ensure_plain_context(node)
            return loops, outer
        if isinstance(around, ast.ClassDef | ast.AsyncFor | ast.AsyncWith):
            raise NoEditError(f"the loop in line {innermost.lineno} stands in a class")
        _ensure_plain_context(around)
    return loops, None


def _ensure_plain_context(node: ast.AST) -> None:
    if isinstance(node, ast.With):
        text = " ".join(ast.unparse(item.context_expr) for item in node.items)
        if any(word in text.lower() for word in _CONTEXTS):
            raise NoEditError(f"the loop runs within `with {text}`")


def _method_calls(block: Sequence[ast.stmt], method: str) -> dict[str, list[ast.Expr]]:
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


def _clip_call(statement: ast.stmt) -> ast.Call | None:
    match statement:
        case ast.Expr(value=ast.Call() as call):
            is_clip = plain_name(call.func).rpartition(".")[2] == "clip_grad_norm_"
            return call if is_clip else None
        case _:
            return None


def _max_norm(call: ast.Call, model: str) -> ast.expr:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    values = dict(zip(("parameters", "max_norm"), call.args, strict=False)) | named
    if len(call.args) > 2 or values.keys() != {"parameters", "max_norm"}:
        raise NoEditError(f"line {call.lineno} clips gradients with further settings")
    if ast.unparse(values["parameters"]) != f"{model}.parameters()":
        raise NoEditError(f"line {call.lineno} clips other gradients than the model's")
    if any(nodes_in(values["max_norm"], ast.Call)):
        raise NoEditError(f"line {call.lineno} clips to a norm that may change")
    return values["max_norm"]


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
            owners = self.owners(optimizer)
            if len(owners) != 1 or "" in owners:
                raise NoEditError(f"`{optimizer}` has parameters of other than one named model")
            return owners.pop()
        if optimizer not in handed_over and (owner := self._given_to_function(optimizer)):
            return owner
        # It was handed over: the model is what was handed over with it, and is used as one.
        methods = ("parameters", "train", "zero_grad")
        functions = [plain_name(call.func) for call in nodes_in(loop, ast.Call)]
        # A method of the model's own counts too: it calls parts of the model.
        own = [one.rpartition(".") for one in functions]
        called = {*functions, *(owner for owner, _, name in own if name not in _OF_ANY_MODEL)}
        models = _receivers(self._script.tree, *methods) & called & handed_over
        if len(models) != 1:
            raise NoEditError(f"the script does not tell which model `{optimizer}` updates")
        return models.pop()

    def _given_to_function(self, optimizer: str) -> str:
        """Return the one variable that a function of the script makes an optimizer of.

        Whether it has that model's parameters alone is seen when the step is made.
        """
        functions = {node.name for node in self._script.nodes(ast.FunctionDef)}
        calls = [
            binding.value
            for binding in self._script.bindings
            if plain_name(binding.target) == optimizer
        ]
        match calls:
            case [ast.Call(func=ast.Name(id=name), args=[ast.Name(id=owner)])] if name in functions:
                return owner
            case _:
                return ""

    def ensure_same_model(self, model: str, optimizer: str, outer: OuterCall) -> None:
        """Refuse a function that is given a model, and an optimizer of other parameters."""
        model_outside, name = (
            plain_name(outer.outside(ast.parse(own, mode="eval").body))
            for own in (model, optimizer)
        )
        if self.owners(name) != {model_outside}:
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

    def is_built(self, name: str) -> bool:
        """Return whether the script makes an optimizer under a name."""
        return name in self._built

    def owners(self, optimizer: str) -> set[str]:
        """Return what the parameters of an optimizer are of; an empty name where it is not told."""
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

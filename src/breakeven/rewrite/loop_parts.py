"""The loops of a training step, and its backward pass, update, model and optimizer.

The loop may be in a function that a loop elsewhere calls, once per epoch.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from breakeven.rewrite.known_calls import Loop
from breakeven.rewrite.optimizers import Optimizers, method_calls
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    nodes_in,
    parameters_of,
    plain_name,
    read_names,
    with_values,
    written_names,
)

# Scripts with these names inspect a step or change how it runs, in ways that a compiled step does
# not support.
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
# These change the model while the loops run, and the compiled step would not notice.
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
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The statements of a step, recognised by their form.

    Args:
        block: Body of the innermost loop.
        loops: That loop and those around it in the same function, innermost first.
        backward: The statement that calls ``backward()``.
        loss: The expression whose ``backward()`` it calls.
        update: The statement that updates.
        model: The model as the source names it, such as ``self.model``.
        optimizer: The optimizer as the source names it.
        max_norm: Maximal norm of the gradients; None for no clipping.
        outer: The call, in a loop elsewhere, of the function with these loops; None for none.
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


def find_parts(script: SyntaxTree) -> StepParts:
    """Return the parts of the training step of a script.

    Raises:
        NoEditError: If there is no step, or it may not be safe to change.
    """
    ensure_plain(script)
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
    backward = script.parent(call)
    if not isinstance(backward, ast.Expr) or call.args or call.keywords:
        raise NoEditError(f"line {call.lineno} calls backward() with arguments")
    loops, outer = loops_of(backward, script)
    for loop in (loops[-1], *(() if outer is None else (outer.loops[-1],))):
        ensure_lasting_model(loop)
    block = loops[0].body
    position = block.index(backward)
    cleared = method_calls(block, "zero_grad")
    updates = method_calls(block[position + 1 :], "step")
    optimizers = Optimizers(script)
    optimizer = optimizers.updating(updates, cleared, backward)
    model = optimizers.model_of(optimizer, loops[0])
    if outer is not None:
        model_outside, name = (
            plain_name(outer.outside(ast.parse(own, mode="eval").body))
            for own in (model, optimizer)
        )
        if optimizers.owners(name) != {model_outside}:
            raise NoEditError(f"the script does not tell which model `{name}` updates")
    optimizers.ensure_only(optimizer, model, updates, cleared)
    update = updates[optimizer][0]
    between = block[position + 1 : block.index(update)]
    clips = [(statement, call) for statement in between if (call := clip_call(statement))][:1]
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
    """Refuse a script that inspects its steps or changes how they run."""
    for part in script.nodes(ast.Attribute, ast.Name):
        is_attribute = isinstance(part, ast.Attribute)
        name = part.attr if is_attribute else part.id
        if name in _FORBIDDEN and (is_attribute or name != "grad"):
            raise NoEditError(f"line {part.lineno} {_FORBIDDEN[name]}")
        if is_attribute and name == "compile" and plain_name(part) != "re.compile":
            raise NoEditError(f"line {part.lineno} compiles by itself")


def ensure_lasting_model(loop: Loop) -> None:
    """Refuse a loop that changes the model while it runs."""
    for part in nodes_in(loop, ast.Attribute):
        if part.attr in _CHANGES_MODEL:
            raise NoEditError(f"line {part.lineno} {_CHANGES_MODEL[part.attr]} while the loop runs")


def loops_of(backward: ast.stmt, script: SyntaxTree) -> tuple[tuple[Loop, ...], OuterCall | None]:
    """Return the loops of the step, and the call of their function in an outer loop, if any."""
    innermost = script.parent(backward)
    if not isinstance(innermost, ast.For | ast.While) or backward not in innermost.body:
        raise NoEditError(
            f"line {backward.lineno} calls backward() in another place than directly in a loop"
        )
    loops = (innermost, *_loops_around(innermost, script))
    for around in script.parents(innermost):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(around, ast.AsyncFunctionDef) or around.decorator_list:
                raise NoEditError(f"`{around.name}` has a decorator, or is async")
            outer = _find_outer_call(around, script)
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


def clip_call(statement: ast.stmt) -> ast.Call | None:
    """Return the statement's call of ``clip_grad_norm_``; None if it is no such call."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return None
    return call if plain_name(call.func).rpartition(".")[2] == "clip_grad_norm_" else None


def _max_norm(call: ast.Call, model: str) -> ast.expr:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    values = dict(zip(("parameters", "max_norm"), call.args, strict=False)) | named
    if (
        len(call.args) > 2
        or values.keys() != {"parameters", "max_norm"}
        or ast.unparse(values["parameters"]) != f"{model}.parameters()"
        or any(nodes_in(values["max_norm"], ast.Call))
    ):
        raise NoEditError(
            f"line {call.lineno} clips gradients otherwise than the model's to a constant norm"
        )
    return values["max_norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterCall:
    """The only call of the function that contains the training loop.

    Args:
        function: The function with the training loop.
        call: The call.
        loops: Loops around the call in the same scope, innermost first.
        scope: Function or module of the call.
        arguments: Arguments of the call by parameter.
    """

    function: ast.FunctionDef
    call: ast.Call
    loops: tuple[Loop, ...]
    scope: ast.FunctionDef | ast.Module
    arguments: Mapping[str, ast.expr]

    def outside(self, expression: ast.expr) -> ast.expr:
        """Translate an expression of the function into the scope of its call.

        Raises:
            NoEditError: If it has another value there, or changes from call to call.
        """
        free = read_names(expression) - parameters_of(expression)
        written = {name.partition(".")[0] for name in written_names(self.function)}
        hiding: set[str] = set()
        if isinstance(self.scope, ast.FunctionDef):
            hiding = written_names(self.scope) | parameters_of(self.scope.args)
        for name in sorted(free):
            argument = self.arguments.get(name)
            if argument is None and (name in written - {self.function.name} or name in hiding):
                raise NoEditError(f"`{name}` exists only in `{self.function.name}`")
            if argument is not None and (name in written - {"self"} or not plain_name(argument)):
                raise NoEditError(
                    f"`{name}` in `{self.function.name}` is not one name outside of it"
                )
        return with_values(expression, {n: self.arguments[n] for n in free & self.arguments.keys()})

    def statement_outside(self, statement: ast.stmt, kept: set[str]) -> ast.stmt:
        """Translate a statement of the function into the scope of its call.

        Args:
            statement: A statement that assigns variables of its own.
            kept: Those variables, and the names passed in.

        Raises:
            NoEditError: As for `outside`.
        """
        return _Outside(self, kept).visit(copy.deepcopy(statement))


class _Outside(ast.NodeTransformer):
    def __init__(self, call: OuterCall, kept: set[str]) -> None:
        self._call = call
        self._kept = kept

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._kept or not isinstance(node.ctx, ast.Load):
            return node
        return self._call.outside(node)


def _find_outer_call(function: ast.FunctionDef, script: SyntaxTree) -> OuterCall | None:
    """Return the call of a function inside a loop; None if no loop calls it.

    Raises:
        NoEditError: If a step could not be passed in that call.
    """
    calls = _calls(function, script)
    call = next((call for call in calls if _loops_around(call, script)), None)
    if call is None:
        return None
    scope = script.scope_of(call)
    arguments = _bound_arguments(function, call)
    is_called_in_loop = isinstance(scope, ast.FunctionDef) and any(
        _loops_around(other, script) for other in _calls(scope, script)
    )
    if (
        arguments is None
        or len(_mentions(function, script)) != 1
        or is_called_in_loop
        or scope is function
        or not isinstance(scope, ast.FunctionDef | ast.Module)
    ):
        raise NoEditError(
            f"line {call.lineno} calls `{function.name}` in a loop, which would compile the "
            "step again each time: make the step before that loop, and pass it in"
        )
    return OuterCall(
        function=function,
        call=call,
        loops=_loops_around(call, script),
        scope=scope,
        arguments=arguments,
    )


def _loops_around(node: ast.AST, script: SyntaxTree) -> tuple[Loop, ...]:
    """Return the loops around a node in its function, class or module, innermost first."""
    above = takewhile(lambda one: not isinstance(one, _SCOPES), script.parents(node))
    return tuple(one for one in above if isinstance(one, ast.For | ast.While))


def _mentions(function: ast.FunctionDef, script: SyntaxTree) -> list[ast.AST]:
    """Return the uses of a function's name; for a method, attributes that may refer to it."""
    if isinstance(script.parent(function), ast.ClassDef):
        return [part for part in script.nodes(ast.Attribute) if part.attr == function.name]
    return [part for part in script.nodes(ast.Name) if part.id == function.name]


def _calls(function: ast.FunctionDef, script: SyntaxTree) -> list[ast.Call]:
    around = map(script.parent, _mentions(function, script))
    return [call for call in around if isinstance(call, ast.Call)]


def _bound_arguments(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr] | None:
    """Return the argument for each parameter; None if the call is not plain."""
    parameters = function.args
    names = [parameter.arg for parameter in parameters.args]
    if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or parameters.posonlyargs:
        return None
    given = list(call.args)
    if isinstance(call.func, ast.Attribute):
        if names[:1] != ["self"] or plain_name(call.func.value) != "self":
            return None
        given.insert(0, call.func.value)
    if any(isinstance(argument, ast.Starred) for argument in given) or len(given) > len(names):
        return None
    bound = dict(zip(names, given, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in bound:
            return None
        bound[keyword.arg] = keyword.value
    return bound

"""Analysis of a loop: which calls only compute, and which values stay constant.

A step is traced once. A call that counts, draws from NumPy or writes to a list would then run only
once, and a changing number would keep its first value. Both are refused unless known to be safe.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from functools import cached_property

from breakeven.source import (
    NoEditError,
    SyntaxTree,
    arguments_of,
    nodes_in,
    parameters_of,
    plain_name,
    read_names,
    written_names,
)

Loop = ast.For | ast.While

# Reading a value out of a tensor ends the graph: move such statements past the step.
READS_VALUES = frozenset({"item", "numpy", "tolist", "cpu", "print", "append", "add_scalar"})
# These calls have another effect after the update than before it.
MUST_PRECEDE = frozenset({"step", "backward", "zero_grad", "load_state_dict", "train", "eval"})
# Libraries whose functions compute from their arguments and keep no state.
_PURE = ("torch", "math", "itertools", "functools", "operator", "einops", "copy")
# Exceptions in those libraries: functions that keep state or turn their arguments into constants.
_IMPURE = frozenset({
    "manual_seed", "seed", "save", "load", "set_grad_enabled", "no_grad", "inference_mode",
    "enable_grad", "set_num_threads", "from_numpy", "tensor", "as_tensor", "count", "cycle",
})  # fmt: skip
# Methods that change their object.
_WRITING = frozenset({"pop", "extend", "update", "write", "sample", "clear", "add", "insert"})
_PURE_BUILTINS = frozenset({
    "len", "range", "zip", "enumerate", "sum", "min", "max", "float", "int", "bool", "tuple",
    "list", "dict", "abs", "isinstance", "reversed", "sorted", "map", "slice",
    "round", "super", "getattr",
})  # fmt: skip
_LITERALS = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.operator, ast.unaryop, ast.Load)
# Methods that a Polyak update may write with, and calls that its loop may iterate over.
_WRITES_PARAMETERS = frozenset({"mul_", "add_", "sub_", "lerp_", "copy_"})
_PARAMETERS = frozenset({
    "parameters", "named_parameters", "buffers", "named_buffers", "zip",
})  # fmt: skip


def last_called(call: ast.Call) -> str:
    """Return ``step`` of ``self.optimizer.step()``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else plain_name(call.func)


class KnownCalls:
    """Decides what the calls in a step's statements do.

    Args:
        script: The script.
        models: Models of the step, as the source names them.
        loops: The loop of the step and those around it, innermost first.
    """

    def __init__(self, script: SyntaxTree, models: Sequence[str], loops: Sequence[Loop]) -> None:
        self._script = script
        self._models = frozenset(models)
        self._loops = loops
        self._functions = {
            node.name: node
            for node in script.nodes(ast.FunctionDef)
            if not isinstance(script.parent(node), ast.ClassDef)
        }
        self._classes = {node.name for node in script.nodes(ast.ClassDef)}
        self._seen: set[str] = set()

    def ensure_pure(
        self,
        node: ast.AST,
        *,
        values: frozenset[str],
        lists: frozenset[str] = frozenset(),
        given: frozenset[str] = frozenset(),
        harmless: frozenset[str] = frozenset(),
    ) -> None:
        """Refuse a call that may do more than compute.

        Args:
            node: A statement.
            values: Variables that hold tensors.
            lists: Lists that the surrounding function makes.
            given: Parameters of that function, which it may call.
            harmless: Further names of functions and methods to allow.
        """
        for part in ast.walk(node):
            if isinstance(part, ast.Yield | ast.YieldFrom | ast.Await | ast.NamedExpr):
                raise NoEditError(f"line {part.lineno} is no plain computation")
            if not isinstance(part, ast.Call) or last_called(part) in harmless:
                continue
            handed_over = {plain_name(one) for one in part.args} & self._functions.keys()
            is_pure = self._is_pure(part, values, lists, given)
            if not is_pure or not all(map(self._is_pure_function, handed_over)):
                raise NoEditError(
                    f"line {part.lineno} calls {ast.unparse(part.func)}, which may do more than "
                    "compute"
                )

    def ensure_lasting(self, node: ast.AST) -> None:
        """Refuse to read an attribute that may change: its value would be compiled in."""
        for part in nodes_in(node, ast.Attribute):
            name, above = plain_name(part), self._script.parent(part)
            root = name.partition(".")[0]
            is_called = isinstance(above, ast.Call) and above.func is part
            is_inner = isinstance(above, ast.Attribute)
            if not name or is_called or is_inner or root in self._script.imports:
                continue
            if self._is_of_model(name):
                continue
            if part.attr in self._stored_attributes or (root != "self" and self._is_used(root)):
                raise NoEditError(f"`{name}` may change in the loop")

    def ensure_constant(self, node: ast.AST, known: set[str]) -> None:
        """Refuse an outer variable that may change: its value would be compiled in.

        Args:
            node: A statement.
            known: Variables of its function.
        """
        roots = {model.partition(".")[0] for model in self._models}
        fixed = {*roots, *self._functions, *self._classes, *self._script.imports, *dir(builtins)}
        for part in nodes_in(node, ast.Name):
            above = self._script.parent(part)
            is_tool = isinstance(above, ast.Attribute) or (
                isinstance(above, ast.Call) and above.func is part
            )
            if not (part.id in known | fixed or is_tool or self._is_literal(part.id)):
                raise NoEditError(f"the value of `{part.id}` in line {part.lineno} may change")

    @cached_property
    def _stored_attributes(self) -> frozenset[str]:
        """The attributes that are set outside of ``__init__``."""
        return frozenset(
            part.attr
            for part in self._script.nodes(ast.Attribute)
            if isinstance(part.ctx, ast.Store | ast.Del)
            and getattr(self._script.function_of(part), "name", "") != "__init__"
        )

    def _is_used(self, name: str) -> bool:
        """Whether the loop uses an object for more than reading its attributes."""
        loop = self._loops[-1]
        if name in {one.partition(".")[0] for one in written_names(loop)}:
            return False  # a value of the batch
        for part in nodes_in(loop, ast.Name):
            above = self._script.parent(part)
            if part.id != name:
                continue
            if not isinstance(above, ast.Attribute):
                return True
            around = self._script.parent(above)
            if isinstance(around, ast.Call) and around.func is above:
                return True
        return False

    def _is_of_model(self, name: str) -> bool:
        return any(name == one or name.startswith(f"{one}.") for one in self._models)

    def _is_pure(
        self, call: ast.Call, values: frozenset[str], lists: frozenset[str], given: frozenset[str]
    ) -> bool:
        name = plain_name(call.func)
        root, last = name.partition(".")[0], last_called(call)
        if self._is_of_model(name):
            return last not in MUST_PRECEDE
        full = self._script.imports.get(root)
        if full is not None:
            return full.partition(".")[0] in _PURE and last not in _IMPURE
        if name in self._functions:
            return self._is_pure_function(name)
        if isinstance(call.func, ast.Attribute):
            if name.rpartition(".")[0] in lists:
                return True
            is_of_value = not name or root in values | given or self._is_made(root, as_tensor=True)
            # A tensor method that writes ends with an underscore.
            writes = last.endswith("_") or last in _WRITING
            return is_of_value and not writes and last not in READS_VALUES | MUST_PRECEDE
        if hasattr(builtins, name):
            return name in _PURE_BUILTINS
        return name in self._classes or name in given or self._is_made(name, as_tensor=False)

    def _is_literal(self, name: str) -> bool:
        """Whether a variable is assigned once in the file, and to a literal."""
        stores = [
            part
            for part in self._script.nodes(ast.Name)
            if part.id == name and not isinstance(part.ctx, ast.Load)
        ]
        values = [
            one.value
            for one in self._script.bindings
            if any(part is store for part in ast.walk(one.target) for store in stores)
        ]
        return len(stores) == len(values) == 1 and all(
            isinstance(part, _LITERALS) for part in ast.walk(values[0])
        )

    def _is_made(self, name: str, *, as_tensor: bool) -> bool:
        """Whether a name is bound only to calls: of torch for a tensor, else of module classes."""
        found: list[bool] = []
        for binding in self._script.bindings:
            pairs = [(binding.target, binding.value)]
            if isinstance(binding.target, ast.Tuple) and isinstance(binding.value, ast.Tuple):
                pairs = list(zip(binding.target.elts, binding.value.elts, strict=False))
            for target, value in pairs:
                if plain_name(target) != name:
                    continue
                maker = plain_name(value.func) if isinstance(value, ast.Call) else ""
                package = self._script.imports.get(maker.partition(".")[0], "")
                is_module = maker in self._classes or package.startswith("torch")
                found.append(package == "torch" if as_tensor else is_module)
        return bool(found) and all(found)

    def _is_pure_function(self, name: str) -> bool:
        if name in self._seen:
            return True
        self._seen.add(name)
        function = self._functions[name]
        # Lists that the function makes, and parameters that it may call.
        given = frozenset(parameters_of(function.args))
        lists = frozenset(
            plain_name(node.targets[0])
            for node in nodes_in(function, ast.Assign)
            if isinstance(node.value, ast.List | ast.ListComp | ast.Dict)
        )
        if function.decorator_list or any(nodes_in(function, ast.Global, ast.Nonlocal)):
            return False
        if any(
            isinstance(part.ctx, ast.Store | ast.Del)
            for part in nodes_in(function, ast.Attribute, ast.Subscript)
        ):
            return False
        values = frozenset(written_names(function)) | given
        for statement in function.body:
            self.ensure_pure(statement, values=values, lists=lists - given, given=given)
            self.ensure_lasting(statement)
            self.ensure_constant(statement, {*values})
        return True

    def is_polyak_update(self, statement: ast.stmt) -> bool:
        """Whether a statement moves a target network towards the network that it follows.

        The statement is a loop over parameters of models, or calls a function of such loops. It
        writes into parameters, which no other statement of a step may do.
        """
        match statement:
            case ast.For():
                return _goes_over(statement, self._models)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call):
                function = self._functions.get(name)
            case _:
                return False
        if function is None:
            return False
        given = arguments_of(call)
        parameters = frozenset(parameters_of(function.args))
        body = list(_without_no_grad(function.body))
        return (
            any(read_names(one) & self._models for one in given)
            and {ast.unparse(one) for one in function.decorator_list} <= {"torch.no_grad()"}
            and all(map(self._is_model_or_number, given))
            and bool(body)
            and all(isinstance(one, ast.For) and _goes_over(one, parameters) for one in body)
        )

    def ensure_plain_polyak(self, statement: ast.stmt) -> None:
        """Refuse a Polyak update that has other effects.

        Args:
            statement: A statement for which ``is_polyak_update`` is true.
        """
        loops, known = [statement], set[str]()
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function = self._functions[plain_name(statement.value.func)]
            loops, known = [*_without_no_grad(function.body)], parameters_of(function.args)
        for loop in loops:
            assert isinstance(loop, ast.For)
            own = written_names(loop.target)
            for one in _without_no_grad(loop.body):
                self.ensure_constant(one, own | known)
                if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)):
                    raise NoEditError(
                        f"line {one.lineno} does more than to move a parameter towards another"
                    )
                for call in nodes_in(one, ast.Call):
                    written = [given.value for given in call.keywords if given.arg == "out"]
                    if isinstance(call.func, ast.Attribute) and last_called(call) in (
                        _WRITES_PARAMETERS
                    ):
                        written.append(call.func.value)
                    elif written or last_called(call) != "detach":
                        computed = ast.copy_location(ast.Expr(call), one)
                        self.ensure_pure(computed, values=frozenset(own))
                    if any(plain_name(part).partition(".")[0] not in own for part in written):
                        raise NoEditError(
                            f"line {one.lineno} writes to other than a model's parameters"
                        )

    def _is_model_or_number(self, given: ast.expr) -> bool:
        if isinstance(given, ast.Call):
            owner, _, method = plain_name(given.func).rpartition(".")
            return owner in self._models and method in _PARAMETERS and not given.args
        return bool(plain_name(given)) or isinstance(given, ast.Constant)


def _goes_over(loop: ast.For, owners: frozenset[str]) -> bool:
    """Whether a loop iterates over parameters of the given owners only."""
    return (
        all(last_called(call) in _PARAMETERS for call in nodes_in(loop.iter, ast.Call))
        and not loop.orelse
        and read_names(loop.iter) - {"zip", "strict"} <= owners
    )


def _without_no_grad(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, with each ``with torch.no_grad()`` replaced by its body."""
    for statement in body:
        match statement:
            case ast.With(items=[ast.withitem(context_expr=context)], body=inner):
                if ast.unparse(context) != "torch.no_grad()":
                    yield statement
                yield from _without_no_grad(inner)
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                yield statement

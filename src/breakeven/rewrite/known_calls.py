"""Which calls of a loop compute and do no more, and which of its values stay what they are.

A step is traced once. A call that counts, draws from NumPy or writes to a list would do so once,
and a number that changes would stay what it was: what is not known to be neither is refused.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from functools import cached_property

from breakeven.rewrite.outer_call import Loop
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    nodes_in,
    parameters_of,
    plain_name,
    written_names,
)

# Reading a value out of a tensor ends the graph: such statements come after the step.
READS_VALUES = frozenset({"item", "numpy", "tolist", "cpu", "print", "append", "add_scalar"})
# These do something else after the update than before it.
MUST_PRECEDE = frozenset({"step", "backward", "zero_grad", "load_state_dict", "train", "eval"})
# Libraries whose functions compute what their arguments say, and keep nothing.
_PURE = ("torch", "math", "itertools", "functools", "operator", "einops", "copy")
# In those: what keeps something, or makes a constant of what it is given.
_IMPURE = frozenset({
    "manual_seed", "seed", "save", "load", "set_grad_enabled", "no_grad", "inference_mode",
    "enable_grad", "set_num_threads", "from_numpy", "tensor", "as_tensor", "count", "cycle",
})  # fmt: skip
# Methods that change what they are called on.
_WRITING = frozenset({"pop", "extend", "update", "write", "sample", "clear", "add", "insert"})
_PURE_BUILTINS = frozenset({
    "len", "range", "zip", "enumerate", "sum", "min", "max", "float", "int", "bool", "tuple",
    "list", "dict", "abs", "isinstance", "reversed", "sorted", "map", "slice",
    "round", "super", "getattr",
})  # fmt: skip


def last_called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else plain_name(call.func)


def _is_literal(node: ast.expr) -> bool:
    """Return whether an expression is made of literals alone, and no list or the like."""
    kinds = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.operator, ast.unaryop, ast.Load)
    return all(isinstance(part, kinds) for part in ast.walk(node))


class KnownCalls:
    """What the calls of some statements are known to do.

    Args:
        script: The script.
        models: Those of its step, as it calls them.
        loops: The loop of the step and those around it, from within.
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
            values: Variables whose methods are those of tensors.
            lists: Lists that the function around it makes.
            given: What that function was given, and may call.
            harmless: Names of functions and methods that are allowed besides.
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
                    f"line {part.lineno} calls {ast.unparse(part.func)}, which is not known to do "
                    "nothing but compute"
                )

    def ensure_lasting(self, node: ast.AST) -> None:
        """Refuse an attribute that is read, and may change: its value would be compiled in."""
        imports = self._script.imports
        for part in nodes_in(node, ast.Attribute):
            name, above = plain_name(part), self._script.parent(part)
            root = name.partition(".")[0]
            is_called = isinstance(above, ast.Call) and above.func is part
            is_inner = isinstance(above, ast.Attribute)
            if not name or is_called or is_inner or root in imports:
                continue
            if self._is_of_model(name):
                continue
            if part.attr in self._stored_attributes or (root != "self" and self._is_used(root)):
                raise NoEditError(f"`{name}` may change in the loop")

    @cached_property
    def _stored_attributes(self) -> frozenset[str]:
        """Return the attributes that are set anywhere but where objects are made."""
        return frozenset(
            part.attr
            for part in self._script.nodes(ast.Attribute)
            if isinstance(part.ctx, ast.Store | ast.Del)
            and getattr(self._script.function_of(part), "name", "") != "__init__"
        )

    def _is_used(self, name: str) -> bool:
        """Return whether the loop does more with an object than to read its attributes."""
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
        self,
        call: ast.Call,
        values: frozenset[str],
        lists: frozenset[str],
        given: frozenset[str],
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
            is_of_value = not name or root in values | given or self._is_made_by_torch(root)
            # A method of a tensor that writes ends with an underscore.
            writes = last.endswith("_") or last in _WRITING
            return is_of_value and not writes and last not in READS_VALUES | MUST_PRECEDE
        if hasattr(builtins, name):
            return name in _PURE_BUILTINS
        return name in self._classes or self._is_made_of_module(name) or name in given

    def ensure_constant(self, node: ast.AST, known: set[str]) -> None:
        """Refuse a variable of elsewhere whose value may change: it would be compiled in.

        Args:
            node: A statement.
            known: Variables of its function.
        """
        for part in nodes_in(node, ast.Name):
            name, above = part.id, self._script.parent(part)
            is_tool = isinstance(above, ast.Attribute) or (
                isinstance(above, ast.Call) and above.func is part
            )
            if (
                name in known
                or is_tool
                or name in {model.partition(".")[0] for model in self._models}
                or name in self._functions.keys() | self._classes | self._script.imports.keys()
                or hasattr(builtins, name)
                or self._is_literal(name)
            ):
                continue
            raise NoEditError(f"the value of `{name}` in line {part.lineno} may change")

    def _is_literal(self, name: str) -> bool:
        """Return whether a variable is assigned once in the file, a number or the like."""
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
        return len(stores) == len(values) == 1 and _is_literal(values[0])

    def _values_of(self, name: str) -> list[ast.expr]:
        """Return what a variable is assigned, one by one or as ``a, b = c, d``."""
        found: list[ast.expr] = []
        for binding in self._script.bindings:
            pairs = [(binding.target, binding.value)]
            if isinstance(binding.target, ast.Tuple) and isinstance(binding.value, ast.Tuple):
                pairs = list(zip(binding.target.elts, binding.value.elts, strict=False))
            found += [value for target, value in pairs if plain_name(target) == name]
        return found

    def _is_made_by_torch(self, name: str) -> bool:
        values = self._values_of(name)
        return bool(values) and all(
            isinstance(value, ast.Call)
            and self._script.imports.get(plain_name(value.func).partition(".")[0]) == "torch"
            for value in values
        )

    def _is_made_of_module(self, name: str) -> bool:
        """Return whether a name is bound to an object of torch's or of the script's classes."""
        values = self._values_of(name)
        return bool(values) and all(
            isinstance(value, ast.Call)
            and (
                plain_name(value.func) in self._classes
                or self._script.imports.get(
                    plain_name(value.func).partition(".")[0], ""
                ).startswith("torch")
            )
            for value in values
        )

    def _is_pure_function(self, name: str) -> bool:
        if name in self._seen:
            return True
        self._seen.add(name)
        function = self._functions[name]
        # Lists of its own, and what it was given to call.
        given = frozenset(parameters_of(function.args))
        lists = frozenset(
            plain_name(node.targets[0])
            for node in nodes_in(function, ast.Assign)
            if isinstance(node.value, ast.List | ast.ListComp | ast.Dict)
        )
        if function.decorator_list or any(nodes_in(function, ast.Global, ast.Nonlocal)):
            return False
        stores = [
            part
            for part in nodes_in(function, ast.Attribute, ast.Subscript)
            if isinstance(part.ctx, ast.Store | ast.Del)
        ]
        if stores:
            return False
        values = frozenset(written_names(function)) | given
        for statement in function.body:
            self.ensure_pure(statement, values=values, lists=lists - given, given=given)
            self.ensure_lasting(statement)
            self.ensure_constant(statement, {*values})
        return True

"""One step of an unmodified loop, recorded operator by operator as a graph.

Numbers and branches of Python, such as the bias corrections of Adam, become constants: use the
graph to time a step, not to train.
"""

from __future__ import annotations

import ctypes
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functionalize
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from faststep.codegen.generated import Generated, Plan
from faststep.codegen.program import C_TYPES, UnsupportedError
from faststep.errors import FastStepError
from faststep.inductor import explained
from faststep.step_difference import Change, Other, find_difference
from faststep.tolerance import step_tolerance

# Call overhead does not matter in larger steps, and the recorder keeps all intermediate results.
_MOST_OPS = 1_500
_MOST_BYTES = 2**29

_Key = tuple[Any, ...]


class StepRecorder(TorchDispatchMode):
    """Records all operators while ``is_on``.

    The recorder identifies values by their memory: torch returns new objects for tensors saved for
    the backward pass, and for ``parameter.data``.

    Args:
        line: Returns the user's current line, for messages about operators that it cannot record.
    """

    def __init__(self, line: Callable[[], str] = lambda: "") -> None:
        super().__init__()
        self.is_on = True
        self._line = line
        self._graph = fx.Graph()
        self._nodes: dict[_Key, fx.Node] = {}
        self._kept: list[Tensor] = []  # keeps memory from reuse by other tensors
        self._num_bytes = 0
        self._num_ops = 0
        # Memory that operators of this step allocated, and memory that they wrote to.
        self._made: set[int] = set()
        self._written: set[int] = set()
        # The inputs of the step, and a copy of each from before the step changed it.
        self.inputs: list[Tensor] = []
        self.before: list[Tensor] = []
        # Functions that repeat the step's random draws.
        self.draws: list[Callable[[], object]] = []
        self._counters: set[fx.Node] = set()
        self._is_begun = False
        self._reads: list[tuple[_Key, Any, str]] = []
        self._roots: list[_Key] = []
        # The tensor at which the last backward pass began.
        self.loss = torch.empty(0)
        # The reason that the step cannot be generated; empty while it can.
        self.refusal = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and record it."""
        kwargs = kwargs or {}
        if not self.is_on or self.refusal or func.namespace == "profiler":
            return func(*args, **kwargs)
        if func.name().startswith("aten::_foreach_"):
            with self:  # record the operators that it consists of
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
        try:
            return self._do(func, args, kwargs)
        except UnsupportedError as error:
            self.refuse(str(error))
        return func(*args, **kwargs)

    def refuse(self, because: str) -> None:
        """Stop recording; keep the first reason."""
        self.refusal = self.refusal or because
        self._kept.clear()
        self._nodes.clear()

    def note_backward(self, outputs: Sequence[Any]) -> None:
        """Record the tensor at which a backward pass begins."""
        if self.is_on and not self.refusal and outputs and isinstance(outputs[0], Tensor):
            self._roots.append(_key_of(outputs[0]))
            self.loss = copy_of(outputs[0])

    def note_read(self, name: str) -> None:
        """Refuse a step in which Python gets a tensor's memory: the recorder cannot see its use."""
        if self.is_on and self._is_begun and not self.refusal:
            self.refuse(f"Tensor.{name}() hands values to Python{self._place()}")

    def graph(self) -> fx.GraphModule:
        """Return the step as a function of its inputs; it writes to them and returns the loss.

        Raises:
            UnsupportedError: A graph cannot express the step; gives the reason.
        """
        if self.refusal:
            raise UnsupportedError(self.refusal)
        loss = self._nodes.get(self._roots[-1]) if self._roots else None
        if loss is None:
            raise UnsupportedError("no loss whose backward pass belongs to the step was seen")
        for key, _, place in self._reads:
            if key not in self._roots:
                raise UnsupportedError(f"a tensor's value is read in Python{place}")
        shared = [tensor.untyped_storage()._cdata for tensor in self.inputs if tensor.numel()]
        if any(shared.count(one) > 1 for one in self._written):
            raise UnsupportedError("tensors that share memory are written to")
        graph = fx.Graph()
        places: dict[fx.Node, fx.Node] = {}
        for node in sorted(self._graph.nodes, key=lambda one: one.op != "placeholder"):
            places[node] = graph.node_copy(node, places.__getitem__)
        graph.output((places[loss],))
        return fx.GraphModule(nn.Module(), graph)

    def _do(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self._num_ops += 1
        if self._num_ops > _MOST_OPS:
            raise UnsupportedError(f"a step has more than {_MOST_OPS:,} operators")
        given = list(_tensors_in((args, kwargs)))
        self._is_begun |= any(one.requires_grad and one.is_leaf for one in given)
        if func._schema.is_mutable and any(isinstance(one, list | tuple) for one in args):
            raise UnsupportedError(f"{func} has no generated code")
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        # Find the operands' nodes before the operator runs: it may write to them.
        given_nodes = pytree.tree_map(
            lambda one: self._node_of(one) if isinstance(one, Tensor) else one, (args, kwargs)
        )
        read = {value for _, value, _ in self._reads if isinstance(value, float)}
        if any(
            isinstance(one, float) and one in read for one in pytree.tree_leaves((args, kwargs))
        ):
            raise UnsupportedError(f"the step computes with a value read in Python{self._place()}")
        result = func(*args, **kwargs)
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                self._written.update(one.untyped_storage()._cdata for one in _tensors_in(value))
        if not isinstance(result, Tensor | list | tuple):
            # Note a value that Python reads, unless it comes only from counters.
            is_known = all(self._nodes.get(_key_of(one)) in self._counters for one in given)
            if result is not None and self._is_begun and not is_known:
                self._reads += [(_key_of(one), result, self._place()) for one in given]
            return result
        if is_random:
            self._add_draw(func, args, kwargs, given_nodes[0], result)
            return result
        node = self._graph.call_function(func, *given_nodes)
        if isinstance(result, Tensor):
            counts = [self._nodes.get(_key_of(one)) in self._counters for one in given]
            self._add(result, node, is_counter=all(counts) and bool(counts))
        else:
            for place, one in enumerate(result):
                if isinstance(one, Tensor):
                    self._add(one, self._graph.call_function(operator.getitem, (node, place)))
        return result

    def _node_of(self, tensor: Tensor) -> fx.Node:
        key = _key_of(tensor)
        if key in self._nodes:
            return self._nodes[key]
        self._check(tensor)
        if tensor.numel() and tensor.untyped_storage()._cdata in self._made:
            raise UnsupportedError(f"a part of a tensor is used{self._place()} unseen by operators")
        if tensor.grad_fn is not None and self._is_begun:
            raise UnsupportedError(f"a tensor computed before the step is used{self._place()}")
        return self._add_input(tensor)

    def _add_input(self, tensor: Tensor) -> fx.Node:
        node = self._graph.placeholder(f"given_{len(self.inputs)}")
        self.inputs.append(tensor)
        self.before.append(copy_of(tensor))
        if tensor.numel() == 1 and not tensor.requires_grad:
            self._counters.add(node)
        self._nodes[_key_of(tensor)] = node
        self._keep(tensor)
        return node

    def _add(self, tensor: Tensor, node: fx.Node, *, is_counter: bool = False) -> None:
        key = _key_of(tensor)
        if key in self._nodes:
            return  # the operator wrote to a known value, or returned an identical view
        self._check(tensor)
        self._nodes[key] = node
        if is_counter:
            self._counters.add(node)
        storage = tensor.untyped_storage()
        if not any(storage._cdata == one.untyped_storage()._cdata for one in self.inputs):
            self._made.add(storage._cdata)
        self._keep(tensor)

    def _keep(self, tensor: Tensor) -> None:
        self._kept.append(tensor)
        self._num_bytes += tensor.numel() * tensor.itemsize
        if self._num_bytes > _MOST_BYTES:
            raise UnsupportedError(f"a step has more than {_MOST_BYTES // 2**20} MiB of values")

    def _add_draw(self, func: Any, args: Any, kwargs: Any, nodes: Any, result: Any) -> None:
        """Make a random draw an input: a step draws before it calls the generated code."""
        name = func.name().removeprefix("aten::")
        is_in_place = func._schema.is_mutable
        depends = list(_tensors_in((args[is_in_place or "_like" in name :], kwargs)))
        if not isinstance(result, Tensor) or depends:
            raise UnsupportedError(f"{func} draws random numbers that depend on data")
        blank = [torch.empty_like(one) if isinstance(one, Tensor) else one for one in args]
        self.draws.append(lambda: func(*blank, **kwargs))
        drawn = self._add_input(result.clone() if is_in_place else result)
        if is_in_place:
            self._graph.call_function(torch.ops.aten.copy_.default, (nodes[0], drawn))

    def _check(self, tensor: Tensor) -> None:
        """Refuse all tensors but plain ones on the CPU."""
        kind = type(tensor)
        if kind not in (Tensor, nn.Parameter):
            raise UnsupportedError(f"{kind.__name__} is a subclass of Tensor{self._place()}")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            what = tensor.layout if tensor.layout is not torch.strided else tensor.device
            raise UnsupportedError(f"a tensor of {what} is used{self._place()}")
        if tensor.dtype not in C_TYPES or tensor.is_conj() or tensor.is_neg():
            raise UnsupportedError(f"a tensor of {tensor.dtype} is used{self._place()}")

    def _place(self) -> str:
        line = self._line()
        return f" at {line}" if line else ""


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, including the memory between the elements."""
    tensor = tensor.detach()
    with _disable_current_modes():
        if not tensor.numel():
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        reach = zip(tensor.size(), tensor.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in reach)
        flat = tensor.as_strided((span,), (1,)).clone()
        return flat.as_strided(tensor.size(), tensor.stride())


def _key_of(tensor: Tensor) -> _Key:
    """Return the key of a value: its storage, offset, sizes, strides and dtype."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return (id(tensor),)
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype


def _tensors_in(value: Any) -> Iterator[Tensor]:
    return (one for one in pytree.tree_leaves(value) if isinstance(one, Tensor))


class GeneratedCode(NamedTuple):
    """The generated code of a recorded step.

    Args:
        run: Does the step once on copies, including its random draws; time this function.
        compile_ns: Time of tracing and compiling.
        memory: Owners of the memory that ``run`` uses; they must outlive all calls.
    """

    run: Callable[[], None]
    compile_ns: int
    memory: tuple[object, ...]


def generate_recorded(
    recorder: StepRecorder, state_names: Mapping[int, str] | None = None
) -> GeneratedCode:
    """Generate code for a recorded step, and compare its results with those of the step.

    Args:
        recorder: Has recorded a whole step; its tensors are as the step left them.
        state_names: Names of the tensors of an optimizer's state, by their ids; the tolerance of a
            tensor scales with the largest tensor of its name.

    Raises:
        FastStepError: The step has no generated code, or the results differ; gives the reason.
    """
    begun_ns = time.perf_counter_ns()
    graph, before = recorder.graph(), recorder.before
    try:
        with explained():
            generated = Generated(
                functionalize(lambda *given: graph(*given)), before, [], is_kept=False
            )
    except RecursionError as error:
        raise UnsupportedError("the step is too deep a graph") from error
    if generated.draws:
        raise UnsupportedError("the step draws random numbers that were not recorded")
    compile_ns = time.perf_counter_ns() - begun_ns
    copies = [copy_of(one) for one in before]
    (like,) = generated.results
    loss = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    addresses = (ctypes.c_void_p * (len(copies) + 1))(*(t.data_ptr() for t in (*copies, loss)))
    plan = Plan(num_steps=1, loss=len(copies), **generated.team)
    at = ctypes.addressof(addresses), generated.workspace, ctypes.addressof(plan)
    if generated.run(*at) != 1:
        raise UnsupportedError("a class or another index in the batch is out of range")
    inputs = recorder.inputs
    changes: list[Change] = []
    others: list[Other] = []
    for number, (now, old, copy) in enumerate(zip(inputs, recorder.before, copies, strict=True)):
        value = now.detach()
        if not now.requires_grad:
            kind = (state_names or {}).get(id(now), f"value {number}")
            others.append(Other(kind, f"{kind} of {number}", value, copy))
            continue
        gradient = now.grad if now.grad is not None else torch.zeros_like(value)
        changes.append(
            Change(name=str(number), before=old, stock=value, compiled=copy, grad=gradient)
        )
    dtypes = {str(t.dtype).removeprefix("torch.") for t in inputs if t.is_floating_point()}
    tolerance = step_tolerance(dtypes)
    difference = find_difference((recorder.loss, loss), [changes], others, tolerance)
    if difference is not None:
        raise FastStepError(f"the generated code computes something else: {difference}")
    run, draws = generated.run, recorder.draws

    def call() -> None:
        for draw in draws:
            draw()
        run(*at)

    return GeneratedCode(call, compile_ns, (addresses, plan, copies, loss, generated))

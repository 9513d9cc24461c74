"""What a step computes, as a function of a flat list of tensors: parameters, state, batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from breakeven.errors import UsageError
from breakeven.whole_step.joint_optimizer import JointOptimizer
from breakeven.whole_step.own_updates import OwnUpdates, TracedUpdates
from breakeven.whole_step.sparse_operand import SparseFacts, taken_apart
from breakeven.whole_step.tensors import Pack, StepTensors
from breakeven.whole_step.update_rules import Group, UpdateRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is computed in a step, apart from the tensors.

    Args:
        model: The model.
        loss_fn: The loss of output and targets.
        rule: The optimizer's update.
        groups: Options of the optimizer's groups, as the rule reads them.
        max_grad_norm: Largest norm of all gradients together; None for any.
        autocast: Number format of an autocast region around model and loss; None for none.
        aux: How what the loss function returns beside the loss goes together; None where it
            returns the loss alone.
        updating: The optimizers, where the loss function updates with them by itself.
    """

    model: nn.Module
    loss_fn: Any
    rule: UpdateRule
    groups: tuple[Group, ...]
    max_grad_norm: float | None
    autocast: torch.dtype | None
    aux: AuxLayout | None = None
    updating: JointOptimizer | None = None


class AuxLayout:
    """How the tensors that come beside a loss go together: learnt in the first step, then fixed."""

    def __init__(self) -> None:
        self._spec: Any = None

    def split(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the loss, and the tensors beside it in order.

        Raises:
            UsageError: It is not a pair, holds something else than tensors, or goes together in
                another way than in the first step.
        """
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UsageError(
                "with has_aux=True the loss function returns a pair, the loss and what comes "
                f"beside it; it returned {type(returned).__name__}"
            )
        loss, aux = returned
        leaves, spec = pytree.tree_flatten(aux)
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise UsageError(
                    f"what comes beside the loss holds {type(leaf).__name__}: it must be tensors",
                    hint="What Python computes from other things would never change again.",
                )
        if self._spec is None:
            self._spec = spec
        elif spec != self._spec:
            raise UsageError(
                "what comes beside the loss goes together in another way than at first"
            )
        return loss, *leaves

    def rebuild(self, leaves: Sequence[Tensor]) -> Any:
        """Return the tensors as the loss function has put them together."""
        return pytree.tree_unflatten(list(leaves), self._spec)


def compute_loss(
    recipe: Recipe,
    inputs: Any,
    targets: Any,
    tensors: dict[str, Tensor],
    of_loss: dict[str, Tensor],
    device_type: str,
) -> tuple[Tensor, ...]:
    """Return the loss and what comes beside it.

    Args:
        recipe: What is computed.
        inputs: What the model takes.
        targets: What the loss takes beside the model's output.
        tensors: Other parameters and buffers than the model's own; none for its own.
        of_loss: The same of the loss, where it is a module.
        device_type: That of the autocast region.
    """
    dtype = recipe.autocast
    with torch.autocast(device_type, dtype=dtype, enabled=dtype is not None):
        output = call_model(recipe.model, inputs, tensors)
        if of_loss:
            returned = _call_with(recipe.loss_fn, of_loss, (output, targets))
        else:
            returned = recipe.loss_fn(output, targets)
    return (returned,) if recipe.aux is None else recipe.aux.split(returned)


def make_step(
    recipe: Recipe, tensors: StepTensors, packs: Sequence[Pack], batch: Batch, num_steps: int
) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of all the tensors that does the steps in place and returns the losses.

    What comes beside the losses follows, detached as they are; of several steps, stacked as well.

    Its arguments are ``tensors.written``, the numbers of the updates (one row for each step), the
    tensors of the batch, and for several steps the indices of their samples in it.

    With several steps, the parameters of a pack lie in one buffer from the first step to the last:
    one loop updates them all, and the compiler has that many fewer to make.
    """
    if recipe.updating is not None:
        return _make_updating_step(recipe, recipe.updating, tensors, packs, batch)
    names = [one.name for one in tensors.trained]
    sizes = [len(one.state) for one in tensors.trained]
    first_loss = len(tensors.fixed) - tensors.num_loss_fixed
    device_type = tensors.trained[0].param.device.type

    def step(*args: Tensor) -> tuple[Tensor, ...]:
        rest = iter(args)
        params = _take(rest, len(names))
        fixed = _take(rest, len(tensors.fixed))
        states = [_take(rest, size) for size in sizes]
        scalars = next(rest)
        given = _take(rest, len(batch.tensors))
        named_fixed = list(zip(tensors.fixed_names, fixed, strict=True))
        of_model, of_loss = dict(named_fixed[:first_loss]), dict(named_fixed[first_loss:])
        storage = _Storage(tensors, packs, params, states, is_joined=num_steps > 1)
        indices = next(rest) if num_steps > 1 else None
        results: list[tuple[Tensor, ...]] = []
        for number in range(num_steps):
            chosen = given if indices is None else tuple(t[indices[number]] for t in given)
            leaves = [p.detach().requires_grad_() for p in storage.params()]
            named = dict(zip(names, leaves, strict=True)) | of_model
            inputs, targets = batch.rebuild(chosen, is_traced=True)
            with _without_validation():
                found = compute_loss(recipe, inputs, targets, named, of_loss, device_type)
            grads = torch.autograd.grad(found[0], leaves)
            with torch.no_grad():
                storage.update(recipe, _clip(grads, recipe.max_grad_norm), scalars[number])
            results.append(detached(found))
        with torch.no_grad():
            storage.write_back(params, states)
        return stack_results(results) if num_steps > 1 else results[0]

    return step


def _make_updating_step(
    recipe: Recipe,
    optimizer: JointOptimizer,
    tensors: StepTensors,
    packs: Sequence[Pack],
    batch: Batch,
) -> Callable[..., tuple[Tensor, ...]]:
    """Return such a function of a single step whose loss function updates by itself."""
    names = [one.name for one in tensors.trained]
    sizes = [len(one.state) for one in tensors.trained]
    device_type = tensors.trained[0].param.device.type
    rows = {one.name: row for row, pack in enumerate(packs) for one in pack.members}

    def step(*args: Tensor) -> tuple[Tensor, ...]:
        rest = iter(args)
        # The same memory as what is given, so that an update is seen by whatever follows it.
        leaves = [param.detach().requires_grad_() for param in _take(rest, len(names))]
        fixed = _take(rest, len(tensors.fixed))
        states = [_take(rest, size) for size in sizes]
        (scalars,) = next(rest).unbind()
        numbers = [row.unbind() for row in scalars.view(len(packs), -1).unbind()]
        inputs, targets = batch.rebuild(_take(rest, len(batch.tensors)), is_traced=True)
        trained = [
            (one.name, one.group, leaf, state, numbers[rows[one.name]])
            for one, leaf, state in zip(tensors.trained, leaves, states, strict=True)
        ]
        named = dict(zip(names, leaves, strict=True))
        named |= dict(zip(tensors.fixed_names, fixed, strict=True))
        update = TracedUpdates(recipe.rule, optimizer, trained, recipe.groups)
        run = OwnUpdates(recipe.model, optimizer, named, update)
        with _without_validation(), run.replaced():
            found = compute_loss(recipe, inputs, targets, named, {}, device_type)
        return detached(found)

    return step


def detached(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the loss, and copies of what comes beside it: it may be what an update writes to."""
    loss, *beside = (one.detach() for one in results)
    return loss, *(one.clone() for one in beside)


def stack_results(results: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the losses of several steps, and what comes beside them, each as one tensor."""
    return tuple(torch.stack(one) for one in zip(*results, strict=True))


@contextlib.contextmanager
def _without_validation() -> Iterator[None]:
    """Let distributions take their arguments unchecked: a check reads values in Python."""
    kind = torch.distributions.Distribution
    before = kind._validate_args  # pyright: ignore[reportPrivateUsage]
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


def _take(tensors: Iterator[Tensor], count: int) -> tuple[Tensor, ...]:
    return tuple(next(tensors) for _ in range(count))


def _clip(grads: Sequence[Tensor], max_norm: float | None) -> tuple[Tensor, ...]:
    """Return the gradients scaled down to a norm, as ``clip_grad_norm_`` does it."""
    if max_norm is None:
        return tuple(grads)
    norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return tuple(grad * factor for grad in grads)


class _Storage:
    """Parameters and state within a step: each on its own, or those of a pack in one buffer."""

    def __init__(
        self,
        tensors: StepTensors,
        packs: Sequence[Pack],
        params: Sequence[Tensor],
        states: Sequence[Sequence[Tensor]],
        *,
        is_joined: bool,
    ) -> None:
        places = {one.name: place for place, one in enumerate(tensors.trained)}
        self._packs = [(p.group, [places[one.name] for one in p.members]) for p in packs]
        if not is_joined:  # a piece for each parameter, with the numbers of its pack
            self._pieces = [
                (row, [i]) for row, (_, members) in enumerate(self._packs) for i in members
            ]
        else:
            self._pieces = [(row, members) for row, (_, members) in enumerate(self._packs)]
        self._shapes = [param.shape for param in params]
        self._params = [_join([params[i] for i in members]) for _, members in self._pieces]
        self._states = [
            tuple(
                _join([states[i][number] for i in members])
                for number in range(len(states[members[0]]))
            )
            for _, members in self._pieces
        ]

    def params(self) -> list[Tensor]:
        """Return the parameters in the order of the model."""
        return self._split(self._params)

    def update(self, recipe: Recipe, grads: Sequence[Tensor], scalars: Tensor) -> None:
        """Do one update; ``scalars`` holds the numbers of all packs, one pack after the other."""
        width = scalars.shape[0] // len(self._packs)
        rows = [
            tuple(scalars[row * width : (row + 1) * width].unbind())
            for row in range(len(self._packs))
        ]
        for place, (row, members) in enumerate(self._pieces):
            group = recipe.groups[self._packs[row][0]]
            self._params[place], self._states[place] = recipe.rule.update(
                self._params[place],
                _join([grads[i] for i in members]),
                self._states[place],
                rows[row],
                group,
            )

    def write_back(self, params: Sequence[Tensor], states: Sequence[Sequence[Tensor]]) -> None:
        """Copy the results into the tensors that they came from."""
        for old, new in zip(params, self._split(self._params), strict=True):
            old.copy_(new)
        for number in range(max(map(len, states), default=0)):
            kept = [state[number] if len(state) > number else None for state in self._states]
            for place, new in enumerate(self._split(kept)):
                if new is not None:
                    states[place][number].copy_(new)

    def _split(self, pieces: Sequence[Any]) -> list[Any]:
        found: list[Any] = [None] * len(self._shapes)
        for (_, members), piece in zip(self._pieces, pieces, strict=True):
            if piece is None:
                continue
            if len(members) == 1:
                found[members[0]] = piece
                continue
            parts = piece.split([self._shapes[i].numel() for i in members])
            for i, part in zip(members, parts, strict=True):
                found[i] = part.view(self._shapes[i])
        return found


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat([t.reshape(-1) for t in tensors])


class PairFacts:
    """What inputs and targets must be like, where each is one tensor on the CPU."""

    __slots__ = ("_dtype", "_other_dtype", "_other_shape", "_other_stride", "_shape", "_stride")

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._shape, self._stride, self._dtype = inputs.shape, inputs.stride(), inputs.dtype
        self._other_shape, self._other_stride = targets.shape, targets.stride()
        self._other_dtype = targets.dtype

    def holds(self, inputs: Any, targets: Any) -> bool:
        """Return whether both are like this; asked before each small step, so without a loop."""
        return (
            type(inputs) is Tensor
            and type(targets) is Tensor
            and inputs.shape == self._shape
            and targets.shape == self._other_shape
            and inputs.layout is targets.layout is torch.strided
            and inputs.dtype is self._dtype
            and targets.dtype is self._other_dtype
            and inputs.stride() == self._stride
            and targets.stride() == self._other_stride
            and inputs.is_cpu
            and targets.is_cpu
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and targets of a step, or of a whole data set, taken apart.

    Args:
        tensors: The tensors in them; of a sparse matrix, its indices and its values.
        others: Everything else in them, such as flags; part of what a compiled step is made for.
        layout: How the two go together again.
    """

    tensors: tuple[Tensor, ...]
    others: tuple[Any, ...]
    layout: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled step depends on."""
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in self.tensors)
        return shapes, self.others, self.layout

    @property
    def is_sparse(self) -> bool:
        """Return whether there is a sparse matrix in it."""
        return self.layout is not None and any(type(one) is SparseFacts for one in self.layout[0])

    def rebuild(self, tensors: Sequence[Tensor], *, is_traced: bool = False) -> tuple[Any, Any]:
        """Return inputs and targets with other tensors in the place of these.

        Args:
            tensors: As many as its own.
            is_traced: They are those of a traced step, which has no sparse tensors.
        """
        if self.layout is None:
            return tensors[0], tensors[1]
        rest, others = iter(tensors), iter(self.others)
        leaves: list[Any] = []
        kinds, spec = self.layout
        for kind in kinds:
            if isinstance(kind, SparseFacts):
                make = kind.operand if is_traced else kind.joined
                leaves.append(make(next(rest), next(rest)))
            else:
                leaves.append(next(rest) if kind else next(others))
        return pytree.tree_unflatten(leaves, spec)


def num_steps_of(indices: Tensor | None) -> int:
    """Return how many steps a call does: one for each row of indices, or a single one."""
    return 1 if indices is None else len(indices)


def take_apart(inputs: Any, targets: Any) -> Batch:
    """Return a batch; the usual one, of two tensors, without a look into containers.

    Raises:
        UsageError: A tensor in it is sparse in a way that no step is made for.
    """
    if (
        isinstance(inputs, Tensor)
        and isinstance(targets, Tensor)
        and inputs.layout is targets.layout is torch.strided
    ):
        return Batch((inputs, targets), (), None)
    leaves, spec = pytree.tree_flatten((inputs, targets))
    kinds: list[bool | SparseFacts] = []
    tensors: list[Tensor] = []
    others: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            kinds.append(False)
            others.append(leaf)
        elif leaf.layout is torch.strided:
            kinds.append(True)
            tensors.append(leaf)
        else:
            facts, indices, values = taken_apart(leaf)
            kinds.append(facts)
            tensors += (indices, values)
    return Batch(tuple(tensors), tuple(others), (tuple(kinds), spec))


def call_model(model: torch.nn.Module, inputs: Any, tensors: dict[str, Tensor]) -> Any:
    """Call a model with other parameters and buffers than its own.

    Args:
        model: The model.
        inputs: Its only argument; or a tuple or a dict of arguments.
        tensors: Parameters and buffers by their names; none for its own.
    """
    args = tuple(inputs) if isinstance(inputs, tuple | list) else ()
    kwargs = inputs if isinstance(inputs, dict) else {}
    if not args and not kwargs:
        args = (inputs,)
    if not tensors:
        return model(*args, **kwargs)
    return _call_with(model, tensors, args, kwargs)


def _call_with(
    module: nn.Module, tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: Any = None
) -> Any:
    """Call a module with other tensors than its own, wherever it has one of them.

    Torch's own search for tied tensors does not put back those of a module that has two names: each
    place is named here just once.
    """
    owned = (*module.named_parameters(), *module.named_buffers())
    names = {id(tensor): name for name, tensor in owned}
    places: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        for named in (part.named_parameters, part.named_buffers):
            for place, tensor in named(prefix, recurse=False, remove_duplicate=False):
                if names[id(tensor)] in tensors:
                    places[place] = tensors[names[id(tensor)]]
    return torch.func.functional_call(module, places, args, kwargs, tie_weights=False)

"""Tensors of host and device side by side: what CUDA takes, and what it refuses.

Expected by torch's sources: operators over elements take host tensors without dimensions as numbers
(aten/src/ATen/TensorIterator.cpp), indices come along by themselves
(aten/src/ATen/native/TensorAdvancedIndexing.cpp), most others refuse any mixture (``device_check``
in native_functions.yaml).
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.utils.checkpoint import checkpoint

from breakeven.capture.record.hooks import ModulePath
from breakeven.trace import Copy, Op, Sync
from factories.fake_steps import next_line, pretending

Piece = Callable[[], object]


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def numbers_on_the_host() -> None:
    x, number = on_gpu(3, 4), torch.tensor(2.0)
    _ = x * number + torch.tensor(1.0), number**x, torch.lerp(x, x, torch.tensor(0.2))
    x.clamp_(min=torch.tensor(-1.0)).masked_fill_(x > 0, number).fill_(number)
    torch.where(x > 0, x, torch.tensor(0.0))
    torch.where(x > 0, torch.tensor(1.0), torch.tensor(0.0))
    torch.where(x > 0, 1.0, x)
    F.binary_cross_entropy_with_logits(x, torch.ones_like(x), pos_weight=torch.tensor(3.0))
    x.scatter_(1, torch.zeros(3, 1, dtype=torch.int64, device="cuda"), 1.0)
    torch.mul(x, number, out=torch.empty(3, 4, device="cuda"))


def indices_on_the_host() -> None:
    x = on_gpu(5, 4)
    _ = x[torch.tensor([0, 2])], x[torch.tensor([True, False] * 2 + [True])], x[[0, 1]]
    _ = x[np.array([1, 2])], x[torch.tensor(1)], x[torch.randperm(5)]
    x[torch.tensor([0, 1])] = on_gpu(2, 4)
    x[torch.tensor([0, 1])] = torch.tensor([2.0])
    x[torch.tensor([0, 1])] = torch.tensor(2.0)


def device_index_of_one_host_number() -> object:
    return torch.zeros(5)[torch.tensor(2, device="cuda")]


def parts_are_copied() -> None:
    x, host = on_gpu(5, 4), torch.zeros(5, 4)
    x[1:3], x[0], x[...] = torch.zeros(2, 4), torch.ones(4), torch.zeros(4)
    host[1:3], host[0] = on_gpu(2, 4), on_gpu(4)


def masked_parts_are_filled_with_one_number() -> None:
    x = on_gpu(5)
    x[x > 0] = torch.tensor([1.0])
    x.index_put_((x > 0,), torch.tensor([1.0]))


def host_keeps_values_of_the_device_by_index() -> None:
    kept = torch.zeros(5)
    kept[torch.tensor([1, 2])] = on_gpu(3).sum()
    kept[torch.tensor([True, False, True, False, True])] = on_gpu(3).sum()


def lengths_on_the_host() -> None:
    recurrent, x = nn.GRU(4, 5).cuda(), on_gpu(6, 3, 4)
    for lengths in ([2, 6, 4], torch.tensor([2, 6, 4])):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        output, own = nn.utils.rnn.pad_packed_sequence(recurrent(packed)[0])
        mask = (torch.arange(6)[:, None] < own).cuda()
        (output * mask[..., None]).sum().backward()


def targets_of_ctc_on_the_host() -> None:
    scores = on_gpu(20, 4, 10).log_softmax(2).requires_grad_()
    lengths, sizes = torch.full((4,), 20), torch.full((4,), 8)
    for targets in (torch.randint(1, 10, (4, 8)), torch.randint(1, 10, (32,), dtype=torch.int32)):
        F.ctc_loss(scores, targets, lengths, sizes).backward()
        F.ctc_loss(scores, targets.cuda(), lengths.cuda(), sizes.cuda()).backward()


def lists_of_several_devices() -> None:
    ours, others = [on_gpu(3), torch.zeros(3)], [on_gpu(3), torch.ones(3)]
    torch._foreach_add_(ours, others)
    torch._foreach_mul_(ours, 0.5)
    torch._foreach_lerp_(ours, others, 0.1)
    torch._foreach_norm(ours)


def parameters_on_both_sides() -> None:
    model, head = nn.Linear(3, 3).cuda(), nn.Linear(3, 2)
    head(model(on_gpu(2, 3)).cpu()).sum().backward()
    parameters = [*model.parameters(), *head.parameters()]
    nn.utils.clip_grad_norm_(parameters, 1.0)
    nn.utils.clip_grad_value_(parameters, 1.0)
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        optimizer = kind(parameters, lr=0.1)
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.step()


def state_of_an_optimizer_from_a_file() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model.to("cuda")  # after the optimizer was made
    model(on_gpu(2, 3)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, map_location="cpu"))
    optimizer.step()


def buffers_move_with_their_module() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))
            self.factor = torch.tensor(2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale * self.factor

    Scaled().cuda()(on_gpu(2, 3))


def back_on_the_host() -> None:
    x = on_gpu(3, 4)
    host = torch.zeros(3, 4)
    for copied in (
        x.cpu(), x.to("cpu"), x.to(host), x.type(torch.FloatTensor), torch.tensor(x, device="cpu"),
        torch.as_tensor(x, device="cpu"), torch.asarray(x, device="cpu"),
        torch.empty_like(x, device="cpu").copy_(x), torch.zeros_like(x, device="cpu"),
    ):  # fmt: skip
        host += copied
        copied.numpy()


def copies_stay_on_the_device() -> None:
    x = on_gpu(3, 4)
    row = x.new_tensor([1.0, 2.0, 3.0, 4.0])
    _ = x + torch.as_tensor(x) + torch.asarray(x) + torch.clone(x) + copy.deepcopy(x) + row
    _ = x + torch.tensor(np.zeros(4, np.float32), device="cuda") + x.new_zeros(4)
    _ = torch.tensor([float(x.sum()), 1.0]) + torch.zeros(2)


def hooks_that_collect_on_the_host() -> None:
    model, seen = nn.Linear(3, 3).cuda(), torch.zeros(3)

    def collect(tensor: torch.Tensor) -> None:
        seen.add_(tensor.detach().cpu().sum(0) + torch.zeros(3))

    model.register_forward_hook(lambda _, __, output: collect(output))
    model.weight.register_hook(collect)
    model(on_gpu(2, 3)).sum().backward()


def recomputed_on_both_sides() -> None:
    model, table = nn.Linear(3, 3).cuda(), torch.zeros(5, 3)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(x) + table[torch.arange(2)].cuda() + torch.zeros(3).to(x.device)

    for reentrant in (False, True):
        x = on_gpu(2, 3).requires_grad_()
        checkpoint(forward, x, use_reentrant=reentrant).sum().backward()


def gradients_of_each_sample() -> None:
    model = nn.Linear(3, 1).cuda()
    weights = dict(model.named_parameters())

    def loss(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        shifted = x + torch.zeros(3, device=x.device)
        return torch.func.functional_call(model, own, (shifted,)).square().mean()

    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, on_gpu(4, 3))
    torch.func.jacrev(lambda x: x * torch.ones(3, device=x.device))(on_gpu(3))


def sparse_tensors_made_for_the_device() -> None:
    places = torch.tensor([[0, 1], [1, 0]])
    for made in (
        torch.sparse_coo_tensor(places, torch.ones(2), (2, 2), device="cuda"),
        torch.sparse_coo_tensor(places, torch.ones(2), (2, 2)).cuda(),
        torch.sparse_coo_tensor(places.cuda(), on_gpu(2), (2, 2)),
    ):
        torch.sparse.mm(made, on_gpu(2, 3))


def written_and_read_again() -> None:
    x, file = on_gpu(3), io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    _ = torch.load(file) + x
    _ = pickle.loads(pickle.dumps(x.cpu())) + torch.zeros(3)


def averages_on_either_side() -> None:
    model = nn.Linear(3, 3).cuda()
    for device in ("cpu", "cuda"):
        average = torch.optim.swa_utils.AveragedModel(model, device=device)
        average.update_parameters(model)
        average.update_parameters(model)


def boundaries_beside_the_input() -> None:
    torch.bucketize(on_gpu(5), torch.linspace(0, 1, 4, device="cuda"))
    torch.bucketize(0.3, torch.linspace(0, 1, 4, device="cuda"))
    F.interpolate(on_gpu(1, 3, 8, 8), scale_factor=float(torch.tensor(2.0)))


TAKEN = (
    numbers_on_the_host, indices_on_the_host, device_index_of_one_host_number, parts_are_copied,
    masked_parts_are_filled_with_one_number, host_keeps_values_of_the_device_by_index,
    lengths_on_the_host, targets_of_ctc_on_the_host, lists_of_several_devices,
    parameters_on_both_sides, state_of_an_optimizer_from_a_file, buffers_move_with_their_module,
    back_on_the_host, copies_stay_on_the_device, hooks_that_collect_on_the_host,
    recomputed_on_both_sides, gradients_of_each_sample, sparse_tensors_made_for_the_device,
    written_and_read_again, averages_on_either_side, boundaries_beside_the_input,
)  # fmt: skip


class Forgets(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * torch.ones(3)


def embedding_is_given_host_indices() -> object:
    return nn.Embedding(5, 3).cuda()(torch.tensor([1, 2]))


def own_average_stays_on_the_host() -> None:
    torch._foreach_lerp_([torch.zeros(3)], [on_gpu(3)], 0.1)


def one_number_with_a_dimension() -> object:
    return F.binary_cross_entropy_with_logits(
        on_gpu(3), torch.ones(3, device="cuda"), pos_weight=torch.tensor([3.0])
    )


def host_sum_with_a_dimension() -> None:
    torch.zeros(1).add_(on_gpu(3).sum())


def written_from_the_host_by_index() -> None:
    on_gpu(5)[torch.tensor([0, 1])] = torch.tensor([1.0, 2.0])


REFUSED: tuple[Piece, ...] = (
    lambda: on_gpu(2, 3) @ torch.zeros(3, 2),
    lambda: on_gpu(3) + torch.zeros(3),
    lambda: torch.cat([on_gpu(3), torch.zeros(2)]),
    lambda: torch.cdist(on_gpu(3, 4), torch.zeros(5, 4)),
    lambda: torch.bucketize(on_gpu(5), torch.linspace(0, 1, 4)),
    lambda: torch.where(on_gpu(3) > 0, on_gpu(3), torch.zeros(3)),
    lambda: torch.zeros(5, 3)[torch.tensor([1, 2], device="cuda")],
    lambda: F.cross_entropy(
        on_gpu(2, 3), torch.zeros(2, dtype=torch.int64, device="cuda"), weight=torch.ones(3)
    ),
    lambda: torch.distributions.Normal(on_gpu(3), torch.tensor(1.0)).rsample(),
    lambda: on_gpu(3).numpy(),
    lambda: np.asarray(on_gpu(3)),
    embedding_is_given_host_indices,
    own_average_stays_on_the_host,
    one_number_with_a_dimension,
    host_sum_with_a_dimension,
    written_from_the_host_by_index,
    lambda: Forgets.apply(on_gpu(3).requires_grad_()).sum().backward(),
)


@pytest.mark.parametrize("piece", TAKEN, ids=lambda piece: piece.__name__)
# In reading the gradient of no leaf and the like, which are not of interest here.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_legal_mixture_is_no_fault(piece: Piece) -> None:
    with pretending() as recorder:
        piece()
    assert not recorder.faults


@pytest.mark.parametrize("piece", REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mixture_that_cuda_refuses_is_a_fault(piece: Piece) -> None:
    with pretending() as recorder:
        piece()
    assert len(recorder.faults) == 1


def test_value_written_on_the_host_is_read_back() -> None:
    with pretending() as recorder:
        kept, loss = torch.zeros(5), on_gpu(3).sum()
        recorder.start_step()
        line = next_line()
        kept[torch.tensor([1, 2])] = loss
    (written,) = (e for e in recorder.events if isinstance(e, Op) and "index_put" in e.name)
    (wait,) = (e for e in recorder.events if isinstance(e, Sync))
    assert written.is_on_host
    assert wait.location is not None
    assert (wait.kind, wait.location.line) == ("copy_", line)


def test_tensor_of_the_device_that_is_built_anew_on_the_host_is_copied() -> None:
    with pretending() as recorder:
        x = on_gpu(3)
        recorder.start_step()
        copied = torch.as_tensor(x, device="cpu")
    assert copied.device.type == "cpu"
    assert [e.kind for e in recorder.events if isinstance(e, Sync)] == ["cpu"]
    assert not [e for e in recorder.events if isinstance(e, Copy)]


def test_gradients_are_clipped_by_device() -> None:
    with pretending() as recorder:
        here, there = nn.Parameter(torch.ones(3)), nn.Parameter(on_gpu(3))
        here.grad, there.grad = torch.ones(3), on_gpu(3)
        recorder.start_step()
        nn.utils.clip_grad_norm_([here, there], 1.0)
    norms = [e for e in recorder.events if isinstance(e, Op) and "_foreach_norm" in e.name]
    assert sorted(op.device for op in norms) == ["cpu", "cuda:0"]


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 3)
        self.scores = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.hidden(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = Head()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def test_fault_names_the_outermost_module_that_was_left_behind() -> None:
    with pretending() as recorder, ModulePath(recorder):
        model = Model()
        model.body.cuda()
        optimizer = torch.optim.Adam(model.parameters())
        model(on_gpu(2, 3)).sum().backward()
        recorder.start_update()
        optimizer.step()
        recorder.end_update()
    # What the update mixes afterwards follows from it.
    assert {fault.module for fault in recorder.faults.values()} == {"Model.head"}


def test_batch_that_was_left_behind_is_no_fault_of_a_module() -> None:
    with pretending() as recorder, ModulePath(recorder):
        Model().cuda()(torch.zeros(2, 3))
    assert {fault.module for fault in recorder.faults.values()} == {""}

"""CUDA graphs of scripts, captured and replayed without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import nn
from torch.optim import adamax

from breakeven.capture.pretend.cuda_graphs import CudaGraphs
from breakeven.capture.pretend.fake_cuda import fake_cuda
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.device_map import DeviceMap
from breakeven.capture.record.recorder import StepRecorder
from breakeven.trace import Copy, GraphLaunch, HostWork, Op, Phase, Sync
from factories.fake_steps import next_line, pretending

Batch = tuple[torch.Tensor, torch.Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]

NUM_WARMUPS = 3


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).view(8, 1, 4, 12).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value).reshape(8, 16)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x.view(8, 4, 4))[0][:, -1]


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5))


def make_model(body: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(body(), nn.Linear(16, 4)).cuda()


def batches(count: int = 5) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator))
        for _ in range(count)
    ]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)


def losses_eagerly(body: Callable[[], nn.Module], make: MakeOptimizer) -> list[float]:
    model = make_model(body)
    optimizer = make(model)
    first = batches()[0]
    found: list[float] = []
    for inputs, targets in [first] * NUM_WARMUPS + batches():
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(inputs.cuda()), targets.cuda())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found[NUM_WARMUPS:]


def losses_of_whole_steps(body: Callable[[], nn.Module], make: MakeOptimizer) -> list[float]:
    model = make_model(body)
    optimizer = make(model)
    inputs, targets = (tensor.cuda() for tensor in batches()[0])

    def step() -> torch.Tensor:
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(NUM_WARMUPS):
            optimizer.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    found: list[float] = []
    for new_inputs, new_targets in batches():
        inputs.copy_(new_inputs)
        targets.copy_(new_targets)
        graph.replay()
        found.append(loss.item())
    return found


def losses_of_graphed_modules(body: Callable[[], nn.Module], make: MakeOptimizer) -> list[float]:
    model = make_model(body)
    optimizer = make(model)
    sample = torch.randn(8, 16, device="cuda")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    model.load_state_dict(state)
    found: list[float] = []
    for inputs, targets in [batches()[0]] * NUM_WARMUPS + batches():
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(graphed(inputs.cuda()), targets.cuda())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found[NUM_WARMUPS:]


def pretend() -> AbstractContextManager[object]:
    return pretending()


def redirect() -> AbstractContextManager[object]:
    return redirect_cuda_to_cpu(has_cuda=True)


@pytest.mark.parametrize("enter", [pretend, redirect])
@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("body", [dense, Attention, Recurrent])
def test_replays_of_whole_steps_give_the_losses_of_eager_ones(
    body: Callable[[], nn.Module],
    make: MakeOptimizer,
    enter: Callable[[], AbstractContextManager[object]],
) -> None:
    with enter():
        eager = losses_eagerly(body, make)
    with enter():
        replayed = losses_of_whole_steps(body, make)
    assert replayed == pytest.approx(eager, rel=1e-5)


@pytest.mark.parametrize("enter", [pretend, redirect])
@pytest.mark.parametrize(
    "body", [lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)), Attention, Recurrent]
)
def test_graphed_modules_give_the_losses_of_eager_ones(
    body: Callable[[], nn.Module], enter: Callable[[], AbstractContextManager[object]]
) -> None:
    with enter():
        eager = losses_eagerly(body, sgd)
    with enter():
        replayed = losses_of_graphed_modules(body, sgd)
    assert replayed == pytest.approx(eager, rel=1e-5)


def test_autocast_holds_within_a_graph_alone() -> None:
    with pretending():
        weight = torch.randn(4, 4, device="cuda")
        static = torch.randn(4, 4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            result = static @ weight
        before = result.clone()
        graph.replay()
        assert result.dtype is torch.bfloat16
        assert torch.equal(result, before)
        full = static @ weight
        graph_of_full = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph_of_full):
            again = static @ weight
        with torch.autocast("cuda", torch.bfloat16):
            graph_of_full.replay()
        assert torch.equal(again, full)


@pytest.mark.parametrize("enter", [pretend, redirect])
def test_a_capture_changes_nothing_outside_of_the_graph(
    enter: Callable[[], AbstractContextManager[object]],
) -> None:
    with enter():
        model = make_model(dense)
        optimizer = sgd(model)
        inputs = torch.randn(8, 16, device="cuda")
        before = {name: value.clone() for name, value in model.state_dict().items()}
        random_state = torch.get_rng_state()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(inputs).sum().backward()
            optimizer.step()
        after = model.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert torch.equal(torch.get_rng_state(), random_state)
        graph.replay()
        assert not torch.equal(model[1].weight, before["1.weight"])


def test_views_of_what_a_graph_makes_show_its_new_values() -> None:
    with redirect():
        static = torch.zeros(2, 3)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        made = static + 1
        column = made[:, 1]
        made.view(torch.int32)[0, 0] = 0
        turned = made.t() * 2
        graph.capture_end()
        static.fill_(4.0)
        graph.replay()
        assert made.tolist() == [[0.0, 5.0, 5.0], [5.0, 5.0, 5.0]]
        assert column.tolist() == [5.0, 5.0]
        assert turned.tolist() == [[0.0, 10.0], [10.0, 10.0], [10.0, 10.0]]


def test_a_script_can_ask_whether_it_captures() -> None:
    with pretending():
        graph = torch.cuda.CUDAGraph()
        other = torch.cuda.CUDAGraph()
        seen = [torch.cuda.is_current_stream_capturing()]
        with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
            seen.append(torch.cuda.is_current_stream_capturing())
        with torch.cuda.graph(other, pool=graph.pool()):
            pass
        seen.append(torch.cuda.is_current_stream_capturing())
        assert seen == [False, True, False]
        assert other.pool() == graph.pool()


def test_a_capture_is_no_part_of_the_step_and_a_replay_is() -> None:
    with pretending() as recorder:
        static = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            line = next_line()
            made = static.add(1).mul(2)
        assert not [event for event in recorder.events if isinstance(event, GraphLaunch)]
        recorder.start_step()
        replayed_at = next_line()
        graph.replay()
        launch, add, multiply = recorder.events
        made.mul(3)
        eager = recorder.events[-1]
    assert isinstance(launch, GraphLaunch)
    assert launch.location is not None
    assert launch.location.line == replayed_at
    for op, name in ((add, "aten.add.Tensor"), (multiply, "aten.mul.Tensor")):
        assert isinstance(op, Op)
        assert op.name == name
        assert op.is_replayed
        assert op.location is not None
        assert op.location.line == line
    assert isinstance(eager, Op)
    assert not eager.is_replayed


def test_the_backward_pass_of_a_graphed_module_is_one_launch() -> None:
    with pretending() as recorder:
        model = nn.Linear(16, 4).cuda()
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 16, device="cuda"),))
        inputs = torch.randn(8, 16, device="cuda")
        recorder.start_step()
        graphed(inputs).sum().backward()
    phases = [event.phase for event in recorder.events if isinstance(event, GraphLaunch)]
    assert phases == [Phase.FORWARD, Phase.BACKWARD]
    replayed = {(o.name, o.phase) for o in recorder.events if isinstance(o, Op) and o.is_replayed}
    assert ("aten.addmm.default", Phase.FORWARD) in replayed
    assert ("aten.mm.default", Phase.BACKWARD) in replayed


def test_what_waits_cannot_be_captured() -> None:
    with pretending() as recorder:
        static = torch.zeros(4, device="cuda")
        on_host = torch.zeros(4)
        pinned = torch.zeros(4).pin_memory()
        graph = torch.cuda.CUDAGraph()
        recorder.start_step()
        with torch.cuda.graph(graph):
            waits = next_line()
            static.sum().item()
            copies = next_line()
            static.copy_(on_host)
            static.copy_(pinned, non_blocking=True)
        lines = {fault.location.line: fault.message for fault in recorder.faults.values()}
        recorder.start_step()
        pinned.fill_(2.0)
        graph.replay()
        assert static.tolist() == [2.0] * 4
    assert set(lines) == {waits, copies}
    assert "(item) while a CUDA graph is captured" in lines[waits]
    assert "pinned memory" in lines[copies]
    events = recorder.events[:-1]
    assert not [event for event in events if isinstance(event, Sync)]
    assert all(event.is_replayed for event in events if isinstance(event, Copy))


def test_an_optimizer_that_counts_on_the_host_cannot_be_captured() -> None:
    with pretending():
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(torch.zeros(2, 4, device="cuda")).sum().backward()
            with pytest.raises(RuntimeError, match="needs capturable=True"):
                optimizer.step()


@pytest.mark.parametrize("is_recorded", [False, True])
def test_updates_count_where_they_are_replayed(is_recorded: bool) -> None:
    recorder = StepRecorder(DeviceMap())
    seen: list[tuple[int, float, int]] = []

    def note(optimizer: int) -> None:
        events = [event for event in recorder.events if not isinstance(event, HostWork)]
        seen.append((optimizer, parameter.item(), len(events)))

    graphs = CudaGraphs(note)
    session = (
        fake_cuda(recorder, lambda: None, graphs=graphs)
        if is_recorded
        else redirect_cuda_to_cpu(graphs=graphs)
    )
    with session, torch.no_grad():
        parameter = torch.zeros(1, device="cuda")
        recorder.start_step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for optimizer in (0, 1):
                parameter.add_(1)
                graphs.end_update(optimizer)
            parameter.mul_(10)
        assert seen == []
        recorder.start_step()
        graph.replay()
        after = parameter.item()
    assert [(optimizer, value) for optimizer, value, _ in seen] == [(0, 1.0), (1, 2.0)]
    assert after == 20
    if is_recorded:
        # The launch and the first operator; one more; and what follows.
        updates = [event for event in recorder.events if isinstance(event, Op)]
        assert [number - seen[0][2] for _, _, number in seen] == [0, 2]
        assert [op.name for op in updates if op.is_replayed] == [
            "aten.add_.Tensor", "aten.add_.Tensor", "aten.mul_.Tensor",
        ]  # fmt: skip


def test_steps_are_settled_neither_on_a_side_stream_nor_just_after_a_capture() -> None:
    graphs = CudaGraphs()
    with redirect_cuda_to_cpu(graphs=graphs):
        settled: list[bool] = []
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(18):
                graphs.end_update(0)
                settled.append(graphs.is_settled)
        assert settled == [False] * 16 + [True] * 2
        assert graphs.is_settled
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            graphs.end_update(0)
        settled = []
        for _ in range(4):
            settled.append(graphs.is_settled)
            graphs.end_update(0)
        assert settled == [False] * 3 + [True]


def test_the_pool_of_a_graph_keeps_what_its_capture_took() -> None:
    size = 1 << 20
    with pretending() as recorder:
        static = torch.zeros(size // 4, device="cuda")
        before = recorder.devices.device_bytes
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = static.add(1).mul(2)
        # The sum, which was freed, and the product, which is kept.
        assert recorder.devices.device_bytes - before == 2 * size
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=graph.pool()):
            static.add(1)
        assert recorder.devices.device_bytes - before == 2 * size
        graph.replay()
        assert recorder.devices.device_bytes - before == 2 * size
        assert kept.numel() == size // 4


def test_a_graph_that_was_not_captured_cannot_be_replayed() -> None:
    with pretending(), pytest.raises(RuntimeError, match="not captured"):
        torch.cuda.CUDAGraph().replay()


@pytest.mark.parametrize("enter", [pretend, redirect])
def test_a_stream_may_be_entered_again(enter: Callable[[], AbstractContextManager[object]]) -> None:
    with enter():
        side = torch.cuda.stream(torch.cuda.Stream())
        sums: list[float] = []
        for value in (1.0, 2.0):
            with side:
                sums.append(torch.full((3,), value, device="cuda").sum().item())
    assert sums == [3.0, 6.0]


def test_a_capture_that_was_not_begun_cannot_be_ended() -> None:
    with pretend(), pytest.raises(RuntimeError, match="not begun"):
        torch.cuda.CUDAGraph().capture_end()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torchscript_compiles_what_optimizers_call() -> None:
    with redirect():
        assert "cpu" in adamax._get_capturable_supported_devices()
        compiled = torch.jit.script(adamax._get_capturable_supported_devices)
    assert "cuda" in compiled()

"""Scripts for several GPUs and several processes, answered for one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from breakeven.capture import record_steps
from breakeven.capture.pretend.parallel import ShardedModelError, offer_torchrun_variables
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.device_map import CudaDevices
from breakeven.trace import Phase, ProcessGroup
from factories.fake_steps import copies, names, next_line, pretending

TORCHRUN = {
    "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "nowhere",
    "MASTER_PORT": "1",
}  # fmt: skip

BOTH = pytest.mark.parametrize(
    "enter",
    [lambda: redirect_cuda_to_cpu(has_cuda=True, is_alone=True), pretending],
    ids=["redirect", "pretend"],
)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not dist.is_initialized()


# Another ordinal.


@BOTH
def test_second_gpu_is_the_first(enter: Callable[[], Any]) -> None:
    with enter():
        torch.cuda.set_device(1)
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_properties(1).name
        with torch.cuda.device(1):
            made = torch.ones(2, device="cuda:1") + torch.ones(2).cuda(1)
        assert torch.equal(made.cpu(), torch.full((2,), 2.0))
        assert nn.Linear(2, 2).to(3).weight.device == torch.ones(1, device="cuda:0").device


def test_work_of_two_gpus_is_that_of_one_and_said() -> None:
    with pretending() as recorder:
        first, second = nn.Linear(4, 8).to("cuda:0"), nn.Linear(8, 2).to("cuda:0")
        line = next_line()
        second.to("cuda:1")
        x = torch.ones(3, 4, device="cuda:0")
        recorder.start_step()
        second(first(x).to("cuda:1"))
    assert names(recorder) == ["t", "addmm", "t", "addmm"]
    assert copies(recorder) == []
    assert not recorder.faults
    (caveat,) = recorder.one_gpu.caveats()
    assert caveat.code == "second-device"
    assert f"cuda:1 ({__file__}:{line})" in caveat.message


def test_script_for_one_gpu_gets_no_caveat() -> None:
    with pretending() as recorder:
        nn.Linear(4, 8).to("cuda:0")
        torch.cuda.set_device(0)
    assert recorder.one_gpu.caveats() == []


def test_device_that_is_not_there_is_refused_where_devices_are_counted() -> None:
    with pytest.raises(RuntimeError, match=r"cuda:1 of 1 device$"):
        CudaDevices().index_of("cuda:1")
    assert CudaDevices(2).index_of("cuda:1") == 1


# Several processes.


@BOTH
@pytest.mark.usefixtures("torchrun")
def test_collectives_return_what_this_process_has(enter: Callable[[], Any]) -> None:
    with enter():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", init_method="env://", device_id=torch.device("cuda:1"))
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (1, 4, "nccl")
        dist.barrier(device_ids=[1])
        x = torch.arange(3.0, device="cuda")
        dist.all_reduce(x, op=dist.ReduceOp.SUM)
        dist.broadcast(x, src=0)
        assert x.tolist() == [0, 1, 2]
        gathered = [torch.zeros_like(x) for _ in range(4)]
        dist.all_gather(gathered, x)
        assert all(torch.equal(each, x) for each in gathered)
        told: list[Any] = [None] * 4
        dist.all_gather_object(told, {"rank": 1})
        assert told == [{"rank": 1}] * 4
        dist.all_reduce(x, async_op=True, group=dist.new_group([0, 1], backend="gloo")).wait()
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
@pytest.mark.usefixtures("torchrun")
def test_missing_variable_is_told_as_torch_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=f"environment variable {name} expected") as real:
        dist.init_process_group("gloo")
    with pretending(), pytest.raises(ValueError, match=name) as ours:
        dist.init_process_group("gloo")
    assert str(ours.value) == str(real.value)


def test_world_may_be_said_by_the_script() -> None:
    with redirect_cuda_to_cpu(is_alone=True):
        dist.init_process_group("gloo", rank=0, world_size=2, init_method="tcp://10.0.0.1:1")
        assert dist.get_world_size() == 2
    assert not dist.is_initialized()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def train_one_of_four() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(Net()).to(rank)
    model = DistributedDataParallel(net, device_ids=[rank], output_device=rank)
    data = TensorDataset(torch.randn(256, 4))
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, 16, sampler=sampler)
    assert len(loader) == 4
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            with model.no_sync():
                loss = model(x.to(rank, non_blocking=True)).square().mean()
                loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())
    assert "module.head.weight" in model.state_dict()


@pytest.mark.usefixtures("torchrun")
def test_distributed_training_is_recorded_as_the_step_of_one_gpu() -> None:
    with record_steps() as recording:
        train_one_of_four()
    with record_steps() as alone:
        net = Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(256, 4)), 16):
            optimizer.zero_grad()
            net(x.to("cuda", non_blocking=True)).square().mean().backward()
            optimizer.step()
    trace = recording.trace
    on_device = [op.name for op in trace.ops if not op.is_on_host]
    # The reduced loss is a view more.
    assert [name for name in on_device if "detach" not in name] == [
        op.name for op in alone.trace.ops if not op.is_on_host and "detach" not in op.name
    ]
    assert not trace.faults
    assert trace.batch_size == 16
    codes = {caveat.code: caveat.message for caveat in trace.caveats}
    assert "one of 4 processes" in codes["one-process"]
    assert "--over num_devices=4" in codes["one-process"]
    assert codes.keys() == {"one-process", "second-device"}


@pytest.mark.usefixtures("torchrun")
def test_exchanges_of_a_step_are_recorded() -> None:
    with record_steps() as recording:
        dist.init_process_group("nccl")
        net = nn.Sequential(nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.Linear(1024, 1)).cuda()
        model = DistributedDataParallel(net, device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            with model.no_sync():
                model(torch.ones(8, 256, device="cuda")).sum().backward()
            views = [model(torch.ones(8, 256, device="cuda")) for _ in range(2)]
            torch.cat(views).sum().backward()
            optimizer.step()
            parts = [torch.zeros(3, device="cuda") for _ in range(4)]
            dist.all_gather(parts, torch.ones(3, device="cuda"))
            dist.reduce_scatter(torch.zeros(3, device="cuda"), parts)
            dist.all_reduce(parts[0])
    group = recording.trace.group
    assert isinstance(group, ProcessGroup)
    assert group.num_processes == 4
    noted = {(each.kind, each.num_bytes, each.phase) for each in group.collectives}
    # The means and variances of 1,024 channels, and a counter.
    broadcast = ("broadcast", 2 * 4 * 1024 + 8, Phase.FORWARD)
    assert noted >= {("all_gather", 12, Phase.FORWARD), ("reduce_scatter", 48, Phase.FORWARD)}
    assert [(each.kind, each.num_bytes, each.phase) for each in group.collectives].count(
        broadcast
    ) == 2  # before the micro-step, and the second view after the first
    buckets = [each for each in group.collectives if each.is_bucket]
    # One exchange for both views, and none for the micro-step: all but the first layer's weight
    # make no MB, so there is one bucket.
    assert [each.num_bytes for each in buckets] == [4 * (256 * 1024 + 1024 + 2048 + 1024 + 1)]
    assert buckets[0].phase is Phase.BACKWARD
    (caveat,) = recording.trace.caveats
    assert "1.06 MB by all_reduce of gradients" in caveat.message


@pytest.mark.usefixtures("torchrun")
def test_compressed_gradients_have_half_the_bytes() -> None:
    with record_steps() as recording:
        dist.init_process_group("nccl")
        model = DistributedDataParallel(nn.Linear(8, 8, bias=False).cuda(), bucket_cap_mb=1)
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(4, 8, device="cuda")).sum().backward()
            optimizer.step()
    group = recording.trace.group
    assert isinstance(group, ProcessGroup)
    assert [each.num_bytes for each in group.collectives] == [2 * 64]


def test_script_without_a_group_has_no_exchanges() -> None:
    with record_steps() as recording:
        net = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            net(torch.ones(4, 8, device="cuda")).sum().backward()
            optimizer.step()
    assert recording.trace.group is msgspec.UNSET


@pytest.mark.usefixtures("torchrun")
def test_sharded_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharded:
        pass

    for name in ("torch.distributed.fsdp", "torch.distributed.optim", "deepspeed"):
        stand_in = ModuleType(name)
        stand_in.FullyShardedDataParallel = stand_in.ZeroRedundancyOptimizer = Sharded  # type: ignore[attr-defined]
        stand_in.initialize = stand_in.init_distributed = None  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, stand_in)
    joins = {"__name__": "deepspeed.comm", "dist": dist}
    exec("def join(): dist.init_process_group('nccl')", joins)
    with pretending(), pytest.raises(ShardedModelError, match="DeepSpeed"):
        joins["join"]()  # type: ignore[operator]
    with pretending():
        dist.init_process_group("nccl")
        with pytest.raises(ShardedModelError, match=r"ZeroRedundancyOptimizer shards the model"):
            Sharded()
        with pytest.raises(ShardedModelError, match="DeepSpeed"):
            sys.modules["deepspeed"].initialize()
        with pytest.raises(ShardedModelError, match="DeviceMesh"):
            init_device_mesh("cpu", (4,))
    Sharded()


def test_missing_variables_of_torchrun_are_those_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.environ, "__class__", type(os.environ))
    offer_torchrun_variables()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
    # A script that asks trains without a group.
    assert "RANK" not in os.environ
    assert os.environ.get("RANK", -1) == -1
    assert os.getenv("LOCAL_RANK") is None
    assert "RANK" not in dict(os.environ)
    assert not {"RANK", "WORLD_SIZE"} & {*os.environ.copy(), *os.environ.keys()}
    assert os.environ.pop("RANK", None) is None
    assert os.environ.pop("RANK", default="7") == "7"
    with pytest.raises(KeyError):
        os.environ.pop("RANK")
    with pytest.raises(KeyError):
        del os.environ["RANK"]
    show = "import os; print('RANK' in os.environ)"
    for env in (None, os.environ, {**os.environ}):
        shown = subprocess.run([sys.executable, "-c", show], env=env, capture_output=True)
        assert shown.stdout.split() == [b"False"]
    assert os.environ.setdefault("RANK", "3") == "3"
    assert os.environ.pop("RANK") == "3"
    assert "RANK" not in os.environ
    os.environ["WORLD_SIZE"] = "4"
    assert os.environ["WORLD_SIZE"] == os.environ.get("WORLD_SIZE") == "4"
    with pytest.raises(KeyError):
        os.environ["NO_VARIABLE_OF_TORCHRUN"]
    with redirect_cuda_to_cpu(is_alone=True):
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (0, 4)
    del os.environ["WORLD_SIZE"]


@pytest.mark.usefixtures("torchrun")
def test_distributed_training_runs_on_the_cpu() -> None:
    with redirect_cuda_to_cpu(has_cuda=True, is_alone=True):
        train_one_of_four()


@pytest.mark.usefixtures("torchrun")
def test_gradients_are_those_of_the_process_itself() -> None:
    with redirect_cuda_to_cpu(is_alone=True):
        dist.init_process_group("nccl")
        module = nn.Linear(3, 1)
        model = DistributedDataParallel(module, device_ids=[0])
        x = torch.randn(5, 3)
        model(x).sum().backward()
        assert torch.allclose(module.weight.grad, x.sum(0, keepdim=True))


def test_first_of_spawned_processes_runs_here() -> None:
    ran: list[Any] = []
    with redirect_cuda_to_cpu(is_alone=True):
        mp.spawn(lambda rank, size: ran.append((rank, size, os.getpid())), args=(2,), nprocs=2)
    assert ran == [(0, 2, os.getpid())]


def test_processes_are_real_unless_the_run_stands_alone() -> None:
    real = dist.init_process_group, mp.spawn, DistributedDataParallel.__init__
    with redirect_cuda_to_cpu(has_cuda=True):
        assert (dist.init_process_group, mp.spawn) == real[:2]
    assert (dist.init_process_group, mp.spawn, DistributedDataParallel.__init__) == real

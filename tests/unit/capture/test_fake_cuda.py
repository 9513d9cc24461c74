from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from breakeven.capture.record.device_map import DEVICE, HOST
from breakeven.trace import Phase
from factories.fake_steps import copies, names, next_line, ops, pretending, syncs


def test_item_is_one_sync_at_its_line() -> None:
    with pretending() as recorder:
        loss = torch.ones(4, device="cuda").sum()
        recorder.start_step()
        line = next_line()
        assert loss.item() == 4.0
    (sync,) = syncs(recorder)
    assert (sync.kind, sync.num_bytes, sync.location.line) == ("item", 4, line)
    assert sync.location.file == __file__


def test_what_is_read_to_note_an_operator_is_no_call_of_the_script_in_backward_either() -> None:
    with pretending() as recorder:
        weight = torch.ones(4, device="cuda", requires_grad=True)
        loss = (weight * 2).tanh().sum()
        recorder.start_step()
        before = recorder.num_calls
        loss.backward()
    assert len(ops(recorder)) > 3
    assert recorder.num_calls - before == 1  # `backward` itself


@pytest.mark.parametrize(
    ("read", "kind", "num_bytes"),
    [
        (lambda x: x.sum().item(), "item", 4),
        (lambda x: float(x.sum()), "float", 4),
        (lambda x: int(x.sum()), "int", 4),
        (lambda x: bool((x > 0).all()), "bool", 1),
        (lambda x: 1 if x.sum() < 3 else 2, "bool", 1),
        (lambda x: max(x[0], x[1]), "bool", 1),
        (lambda x: f"{x.sum():.3f}", "format", 4),
        (lambda x: f"{x}", "print", 40),
        (lambda x: x.tolist(), "tolist", 40),
        (lambda x: x.cpu(), "cpu", 40),
        (lambda x: x.to("cpu"), "cpu", 40),
        (lambda x: x.cpu().numpy(), "cpu", 40),
        (lambda x: repr(x), "print", 40),
        (lambda x: x.nonzero(), "nonzero", 8),
        (lambda x: x[x > 3], "mask", 8),
        (lambda x: torch.masked_select(x, x > 3), "mask", 8),
        (lambda x: torch.unique(x), "unique", 8),
        (lambda x: torch.cuda.synchronize(), "synchronize", 0),
    ],
    ids=[
        "item", "float", "int", "bool", "if", "max", "format", "format-all", "tolist", "cpu", "to",
        "numpy", "repr", "nonzero", "mask",
        "masked_select", "unique", "synchronize",
    ],
)  # fmt: skip
def test_reads_of_the_device_are_one_sync_each(read, kind: str, num_bytes: int) -> None:
    with pretending() as recorder:
        x = torch.arange(10.0, device="cuda")
        recorder.start_step()
        line = next_line()
        read(x)
    (sync,) = syncs(recorder)
    assert (sync.kind, sync.num_bytes) == (kind, num_bytes)
    assert sync.location.line in (line, read.__code__.co_firstlineno)
    assert not recorder.faults


def test_same_reads_of_the_host_are_none() -> None:
    with pretending() as recorder:
        x = torch.arange(10.0)
        _ = x.sum().item(), x.tolist(), x.cpu(), x.numpy(), repr(x), x[x > 3], bool(x.any())
    assert syncs(recorder) == []
    assert ops(recorder) == []


def test_mask_that_selects_by_where_reads_nothing_back() -> None:
    with pretending() as recorder:
        x = torch.arange(10.0, device="cuda")
        torch.where(x > 3, x, 0.0)
        x.masked_fill_(x > 3, 0.0)
        x[2:5] = 1.0
    assert syncs(recorder) == []


def test_tensor_left_on_the_host_is_a_fault_at_its_line() -> None:
    with pretending() as recorder:
        model = nn.Linear(4, 2).cuda()
        line = next_line()
        model(torch.randn(3, 4))
    (fault,) = recorder.faults.values()
    assert (fault.location.file, fault.location.line) == (__file__, line)
    assert "(3, 4)" in fault.message
    assert "still on the CPU" in fault.message


def test_array_of_a_device_tensor_is_a_fault() -> None:
    with pretending() as recorder:
        x = torch.zeros(3, device="cuda")
        line = next_line()
        x.numpy()
    (fault,) = recorder.faults.values()
    assert fault.location.line == line
    assert ".cpu()" in fault.message


def test_scalars_and_indices_of_the_host_are_none() -> None:
    with pretending() as recorder:
        x = torch.arange(10.0, device="cuda")
        _ = x * torch.tensor(2.0), x[torch.tensor([1, 2])], x + 1
    assert not recorder.faults
    assert names(recorder)[1:] == ["mul", "index", "add"]
    # The index travels: two numbers of eight bytes.
    assert [copy.num_bytes for copy in copies(recorder)] == [16]


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copy_in_says_whether_the_host_waits(is_pinned: bool, non_blocking: bool) -> None:
    with pretending() as recorder:
        batch = torch.zeros(100)
        if is_pinned:
            batch = batch.pin_memory()
        recorder.start_step()
        on_device = batch.to("cuda", non_blocking=non_blocking)
        assert on_device.is_cuda
        assert not batch.is_cuda
    (copy_in,) = copies(recorder)
    assert (copy_in.source, copy_in.destination, copy_in.num_bytes) == (HOST, DEVICE, 400)
    assert (copy_in.is_pinned, copy_in.non_blocking) == (is_pinned, non_blocking)
    assert copy_in.is_blocking is not (is_pinned and non_blocking)


def test_copy_goes_both_ways() -> None:
    with pretending() as recorder:
        host, device = torch.zeros(100), torch.ones(100, device="cuda")
        pinned = torch.zeros(100).pin_memory()
        recorder.start_step()
        device.copy_(host)
        host.copy_(device)
        pinned.copy_(device, non_blocking=True)
        device.copy_(device.clone())
    copy_in, copy_out = copies(recorder)
    assert (copy_in.source, copy_in.num_bytes) == (HOST, 400)
    assert (copy_out.source, copy_out.num_bytes) == (DEVICE, 400)
    assert not copy_out.is_blocking
    (sync,) = syncs(recorder)
    assert (sync.kind, sync.num_bytes) == ("copy_", 400)
    assert names(recorder) == ["clone", "copy_"]


def test_tensor_that_is_there_already_does_not_travel() -> None:
    with pretending() as recorder:
        x = torch.zeros(100, device="cuda")
        recorder.start_step()
        assert x.cuda() is x
        assert x.to("cuda:0") is x
    assert recorder.events == []


def test_copied_module_stays_on_the_device() -> None:
    with pretending():
        model = nn.Linear(4, 2).cuda()
        twin = copy.deepcopy(model)
        assert {parameter.device.type for parameter in twin.parameters()} == {"cuda"}


def test_dropout_is_one_operator() -> None:
    with pretending() as recorder:
        x = torch.ones(10, device="cuda", requires_grad=True)
        recorder.start_step()
        functional.dropout(x, 0.5).backward(torch.ones(10, device="cuda"))
    assert [name for name in names(recorder) if "dropout" in name] == [
        "native_dropout",
        "native_dropout_backward",
    ]
    assert not {"bernoulli_", "div_", "mul"} & set(names(recorder))


@pytest.mark.parametrize(("kind", "mode"), [(nn.LSTM, 2), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layer_is_one_operator_each_way(kind: type[nn.RNNBase], mode: int) -> None:
    with pretending() as recorder:
        layer = kind(3, 5, num_layers=2, batch_first=True).cuda()
        x = torch.randn(4, 7, 3, device="cuda")
        recorder.start_step()
        layer(x)[0].sum().backward()
    forward, backward = (op for op in ops(recorder) if "cudnn" in op.name)
    assert forward.name == "aten._cudnn_rnn.default"
    assert forward.attributes["mode"] == mode
    assert (forward.attributes["hidden_size"], forward.attributes["num_layers"]) == (5, 2)
    assert forward.outputs[0].shape == (4, 7, 5)
    assert backward.name == "aten._cudnn_rnn_backward.default"
    assert (forward.phase, backward.phase) == (Phase.FORWARD, Phase.BACKWARD)
    assert not {"addmm", "mm", "sigmoid", "tanh", "linear"} & set(names(recorder))


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of the CPU that stands in
@pytest.mark.parametrize("proj_size", [0, 2])
def test_a_projection_is_told(proj_size: int) -> None:
    with pretending() as recorder:
        layer = nn.LSTM(3, 5, proj_size=proj_size).cuda()
        x = torch.randn(7, 4, 3, device="cuda")
        recorder.start_step()
        layer(x)
    (forward,) = (op for op in ops(recorder) if "cudnn" in op.name)
    assert forward.attributes["proj_size"] == proj_size


@pytest.mark.parametrize(
    ("dtype", "kernel"), [(torch.float32, "efficient"), (torch.bfloat16, "flash")]
)
def test_attention_is_one_operator_each_way(dtype: torch.dtype, kernel: str) -> None:
    with pretending() as recorder:
        q = torch.randn(2, 4, 8, 16, device="cuda", dtype=dtype, requires_grad=True)
        recorder.start_step()
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    found = [name for name in names(recorder) if "attention" in name]
    name = f"_scaled_dot_product_{kernel}_attention"
    assert found == [name, f"{name}_backward"]
    assert not {"bmm", "_softmax", "matmul"} & set(names(recorder))


def attention_of(
    *, dtype: torch.dtype = torch.float16, width: int = 16, has_mask: bool = False
) -> str:
    """Return what attention was recorded as: its implementations, or ``math``."""
    with pretending() as recorder:
        q = torch.randn(2, 4, 8, width, device="cuda", dtype=dtype)
        mask = torch.zeros(8, 8, device="cuda", dtype=dtype) if has_mask else None
        recorder.start_step()
        functional.scaled_dot_product_attention(q, q, q, mask)
    recorded = [op for op in ops(recorder) if "attention" in op.name]
    if not recorded:
        assert "_softmax" in "".join(names(recorder))
        return "math"
    (op,) = recorded
    return str(op.attributes["implementations"])


def test_a_pass_that_keeps_its_graph_goes_back_a_second_time() -> None:
    with pretending():
        q = torch.randn(2, 2, 8, 4, device="cuda", requires_grad=True)
        total = functional.scaled_dot_product_attention(q, q, q).sum()
        total.backward(retain_graph=True)
        once = q.grad.clone()
        total.backward()
        assert torch.equal(q.grad, 2 * once)
        with pytest.raises(RuntimeError, match="a second time"):
            total.backward()


def test_attention_names_the_kernels_that_take_its_operands() -> None:
    assert attention_of() == "cudnn|flash|efficient"
    assert attention_of(dtype=torch.float32) == "efficient"
    assert attention_of(dtype=torch.float64) == "math"
    assert attention_of(width=136) == "flash|efficient"
    assert attention_of(width=320) == "efficient"
    # Flash pads heads to a multiple of 8, the others do not.
    assert attention_of(width=12) == "flash"
    assert attention_of(width=6, dtype=torch.float32) == "math"
    assert attention_of(has_mask=True) == "cudnn|efficient"


def test_attention_follows_what_the_script_switches_on() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert attention_of() == "math"
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert attention_of() == "efficient"
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available"):
        attention_of(dtype=torch.float32)


def test_results_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(3, 5), torch.randn(7, 4, 3)
    expected = layer(x)[0]
    with pretending():
        found = layer.cuda()(x.cuda())[0].detach().cpu()
    assert torch.equal(found, expected)


def test_autocast_multiplies_in_half_precision() -> None:
    with pretending() as recorder:
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).cuda()
        x = torch.randn(4, 8, device="cuda")
        recorder.start_step()
        with torch.autocast("cuda", dtype=torch.float16):
            y = model(x)
        assert y.dtype is torch.float16
        y.float().sum().backward()
    products = [op for op in ops(recorder) if op.name.split(".")[1] in ("addmm", "mm")]
    # Two forward; backward two of the last layer and two of the first but one, whose input needs
    # no gradient.
    assert len(products) == 2 + 3
    assert {spec.dtype for op in products for spec in op.inputs} == {"float16"}
    assert all(parameter.grad.dtype is torch.float32 for parameter in model.parameters())
    assert recorder.autocast_dtype == "float16"


@pytest.mark.parametrize("is_recording", [True, False])
def test_product_into_a_wider_type_is_what_only_a_gpu_has(is_recording: bool) -> None:
    with pretending(is_recording=is_recording) as recorder:
        a = torch.randn(4, 8, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(4, 4, device="cuda")
        product = torch.mm(a, a.t(), out_dtype=torch.float32)
        torch.addmm(product, a, a.t(), out_dtype=torch.float32, beta=0.5, out=out)
        is_recorded = {"mm", "addmm"} <= set(names(recorder))
    wide = a.float() @ a.float().t()
    torch.testing.assert_close(product, wide)
    torch.testing.assert_close(out, 1.5 * wide)
    assert is_recorded == is_recording


def test_what_a_call_keeps_for_its_backward_is_on_the_device() -> None:
    with pretending(is_recording=False) as recorder:
        layer = nn.Linear(8, 8).cuda()
        heads = layer(torch.randn(2, 5, 8, device="cuda")).view(2, 5, 4, 2).transpose(1, 2)
        torch.matmul(heads, heads.transpose(-1, -2)).sum().backward()
        assert layer.weight.grad is not None
        assert recorder.faults == {}


def test_stream_may_be_named() -> None:
    with pretending(), torch.cuda.stream(stream=torch.cuda.Stream()):
        assert torch.ones(1, device="cuda").is_cuda


def test_an_output_of_a_recurrent_layer_that_is_not_used_has_no_gradient() -> None:
    with pretending() as recorder:
        lstm = torch.nn.LSTM(4, 6).cuda()
        output, _ = lstm(torch.randn(3, 2, 4, device="cuda"))
        recorder.start_step()
        output.sum().backward()
    assert "zeros" not in names(recorder)

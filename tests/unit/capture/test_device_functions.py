from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from breakeven.capture.pretend.device_functions import DeviceFunction, device_functions
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from factories.fake_steps import copies, names, pretending

# The one takes a quantized tensor, the other the name of a file.
FUNCTIONS = tuple(
    one for one in device_functions() if one.name not in ("empty_quantized", "from_file")
)
BOTH = pytest.mark.parametrize("is_fake", [False, True], ids=["redirect", "pretend"])

# Arguments by the type in the schema; what needs others is below.
BY_TYPE: dict[str, Any] = {
    "List[int]": [2, 3], "int": 3, "number": 2.0, "float": 2.0, "Tensor": torch.ones(2, 3),
}  # fmt: skip
PARTS = ([torch.ones(2), torch.ones(3)],)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "as_nested_tensor": (*PARTS, None, None, torch.jagged),
    "as_tensor": ([1.0, 2.0],),
    "asarray": ([1.0, 2.0],),
    "cosine": (4,),
    "empty_permuted": ((2, 3), (1, 0)),
    "empty_strided": ((2, 3), (3, 1)),
    "from_dlpack": (torch.ones(3),),
    "general_cosine": (4,),
    "nested_tensor": PARTS,
    "new_empty_strided": ((2, 3), (3, 1)),
    "new_tensor": ([1.0, 2.0],),
    "linspace": (0.0, 1.0, 3),
    "logspace": (0.0, 1.0, 3),
    "normal": (0.0, 1.0, (2, 3)),
    "randint": (0, 9, (2, 3)),
    "randint_like": (torch.ones(2, 3), 9),
    "sparse_bsc_tensor": ([0, 1], [0], [[[1.0]]]),
    "sparse_bsr_tensor": ([0, 1], [0], [[[1.0]]]),
    "sparse_compressed_tensor": ([0, 1], [0], [1.0]),
    "sparse_coo_tensor": ([[0, 1]], [1.0, 2.0]),
    "sparse_csc_tensor": ([0, 1], [0], [1.0]),
    "sparse_csr_tensor": ([0, 1], [0], [1.0]),
    "tensor": ([1.0, 2.0],),
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "as_nested_tensor": {},
    "general_cosine": {"a": [0.5, 0.5]},
    "general_hamming": {},
    "nested_tensor": {"layout": torch.jagged},
    "sparse_compressed_tensor": {"layout": torch.sparse_csr},
}
# The binding of the deprecated `torch.range` turns
# to the device by itself, below everything that could stand in for it.
NOT_ON_CUDA = {"range"}


def arguments_of(found: DeviceFunction) -> tuple[Any, ...]:
    """Return arguments for a call, without the tensor whose method it is."""
    if found.name in ARGUMENTS:
        return ARGUMENTS[found.name]
    if found.owner is torch.signal.windows:
        return (4,)
    function = inspect.unwrap(found.current())
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{function.__name__}")
    first = next(one for one in schemas if any(item.name == "device" for item in one.arguments))
    required = [item for item in first.arguments if not item.has_default_value()]
    values = [BY_TYPE[str(item.type)] for item in required if not item.kwarg_only]
    return tuple(values[1:] if isinstance(found.owner, type) else values)


def identify(found: DeviceFunction) -> str:
    return f"{found.owner.__name__}.{found.name}"


EACH = pytest.mark.parametrize("found", FUNCTIONS, ids=identify)
MAKING = pytest.mark.parametrize(
    "found", [one for one in FUNCTIONS if one.name not in NOT_ON_CUDA], ids=identify
)


def entered(is_fake: bool) -> Any:
    return pretending() if is_fake else redirect_cuda_to_cpu(has_cuda=True)


def test_functions_that_scripts_call_are_found() -> None:
    names = {(one.owner, one.name) for one in FUNCTIONS}
    for name in ("zeros", "tensor", "asarray", "arange", "scalar_tensor", "sparse_coo_tensor"):
        assert (torch, name) in names
    assert {(torch.Tensor, "new_tensor"), (torch.fft, "fftfreq")} <= names
    assert (torch.signal.windows, "hann") in names


@pytest.mark.parametrize("name", ["frombuffer", "from_numpy", "cat", "complex", "stack", "where"])
def test_functions_without_device_are_none(name: str) -> None:
    assert name not in {one.name for one in FUNCTIONS}


def test_what_is_built_from_python_data_is_told_apart() -> None:
    from_data = {one.name for one in FUNCTIONS if one.is_from_data}
    assert {"tensor", "as_tensor", "asarray", "new_tensor", "sparse_coo_tensor"} <= from_data
    assert from_data.isdisjoint({"zeros", "full", "arange", "scalar_tensor", "new_full", "normal"})


def test_conversions_and_choices_of_a_device_are_none() -> None:
    names = {one.name for one in FUNCTIONS}
    assert names.isdisjoint({"to", "cuda", "pin_memory", "set_default_device", "get_device_module"})


def test_no_public_module_of_torch_has_another() -> None:
    """Every function of torch's public modules that makes a tensor on a device is known.

    Modules that need what is not installed, and those for other uses than training, are left out.
    """
    known = {inspect.unwrap(one.current()) for one in FUNCTIONS}
    strange = []
    for info in pkgutil.iter_modules(torch.__path__):
        if info.name.startswith("_") or info.name in ("distributed", "testing", "utils", "onnx"):
            continue
        module = importlib.import_module(f"torch.{info.name}")
        for name, value in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(value) or value in known:
                continue
            signature = inspect.signature(value)
            returns = str(signature.return_annotation)
            if "device" in signature.parameters and returns.endswith("Tensor"):
                strange.append(f"{info.name}.{name}")
    assert strange == []


def test_they_are_the_same_while_torch_is_replaced() -> None:
    with redirect_cuda_to_cpu(), pretending():
        device_functions.cache_clear()
        again = device_functions()
    device_functions.cache_clear()
    assert set(FUNCTIONS) <= set(again)


def spied(
    monkeypatch: pytest.MonkeyPatch, found: DeviceFunction
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Let the function note what it is called with."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    original = found.current()

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, dict(kwargs)))
        return original(*args, **kwargs)

    spy.__wrapped__ = original  # type: ignore[attr-defined]
    monkeypatch.setattr(found.owner, found.name, spy)
    return calls


def call(found: DeviceFunction, *, owner: torch.Tensor | None = None, **keywords: Any) -> Any:
    args, named = arguments_of(found), KEYWORDS.get(found.name, {})
    if isinstance(found.owner, type):
        return getattr(torch.ones(3) if owner is None else owner, found.name)(*args, **keywords)
    return getattr(found.owner, found.name)(*args, **named, **keywords)


@EACH
@BOTH
@pytest.mark.filterwarnings("ignore")
def test_call_that_names_no_device_reaches_torch_unchanged(
    found: DeviceFunction, is_fake: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = spied(monkeypatch, found)
    with entered(is_fake):
        made = call(found)
        assert made.device.type == "cpu"
    (args, kwargs), *_ = calls
    given = (*args[1:],) if isinstance(found.owner, type) else args
    assert len(given) == len(arguments_of(found))
    assert all(one is other for one, other in zip(given, arguments_of(found), strict=True))
    assert kwargs == KEYWORDS.get(found.name, {})


@MAKING
@BOTH
@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0), 0], ids=["str", "dev", "int"])
@pytest.mark.filterwarnings("ignore")
def test_call_that_names_the_gpu_makes_a_tensor_there(
    found: DeviceFunction, is_fake: bool, device: Any
) -> None:
    with entered(is_fake):
        if found.position >= 0:
            args = list(arguments_of(found))
            args[found.position] = device
            made = getattr(found.owner, found.name)(*args)
        else:
            made = call(found, device=device)
        assert made.device.type == ("cuda" if is_fake else "cpu")
        assert made.is_cuda is is_fake
    if found.owner is not torch.nested:  # those keep what they were told
        assert made.device.type == "cpu"


@pytest.mark.parametrize(
    "found",
    [
        one
        for one in FUNCTIONS
        if "pin_memory=" in str(one.current().__doc__).split("->")[0] and one.name != "new_tensor"
    ],
    ids=identify,
)
@BOTH
@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_pinned_memory_may_be_asked_for(
    found: DeviceFunction, is_fake: bool, is_pinned: bool
) -> None:
    with entered(is_fake):
        made = call(found, pin_memory=is_pinned)
        assert made.is_pinned() is (is_pinned and is_fake)


def test_memory_of_the_host_may_be_wrapped() -> None:
    array = bytearray(np.arange(4, dtype=np.float32).tobytes())
    for is_fake in (False, True):
        with entered(is_fake):
            made = torch.frombuffer(array, dtype=torch.float32, count=2, offset=4)
            assert made.tolist() == [1.0, 2.0]
            assert made.device.type == "cpu"


@BOTH
def test_default_device_is_where_python_data_goes(is_fake: bool) -> None:
    expected = "cuda" if is_fake else "cpu"
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: torch.tensor([1.0]),
        lambda: torch.as_tensor([1.0]),
        lambda: torch.asarray(np.ones(2)),
        lambda: torch.ones(2),
    ]
    with entered(is_fake), torch.device("cuda"):
        assert [make().device.type for make in makers] == [expected] * 4
        assert torch.frombuffer(bytearray(8), dtype=torch.float32).device.type == "cpu"
        assert torch.tensor([1.0], device="cpu").device.type == "cpu"


def test_from_data_is_one_copy_and_scalars_are_filled_in_place() -> None:
    with pretending() as recorder:
        torch.tensor([1.0, 2.0], device="cuda")
        torch.scalar_tensor(3.0, device="cuda")
    assert [one.num_bytes for one in copies(recorder)] == [8]
    assert names(recorder) == ["scalar_tensor"]


def test_gradient_flows_through_as_tensor_and_tensor_makes_a_leaf() -> None:
    with pretending():
        source = torch.ones(3, requires_grad=True)
        torch.as_tensor(source, device="cuda").sum().backward()
        assert source.grad is not None
        leaf = torch.tensor([1.0], device="cuda", requires_grad=True)
        assert leaf.is_leaf
        assert leaf.requires_grad
        on_gpu = torch.ones(3, device="cuda", requires_grad=True)
        assert torch.as_tensor(on_gpu, device="cuda") is on_gpu
        assert torch.asarray([1.0], device="cuda", requires_grad=True).requires_grad


def test_data_of_the_gpu_comes_back_when_the_host_is_named() -> None:
    with pretending() as recorder:
        on_gpu = torch.ones(3, device="cuda")
        recorder.start_step()
        assert torch.as_tensor(on_gpu).is_cuda
        assert not torch.as_tensor(on_gpu, device="cpu").is_cuda
        assert not torch.tensor(on_gpu.detach()[0].item(), device="cpu").is_cuda
        assert torch.ones(1).new_tensor([1.0]).device.type == "cpu"
        assert on_gpu.new_tensor([1.0]).is_cuda
        assert not on_gpu.new_tensor([1.0], device="cpu").is_cuda


def test_modules_and_conversions_take_a_device_by_position() -> None:
    for is_fake in (False, True):
        with entered(is_fake):
            expected = "cuda" if is_fake else "cpu"
            model = nn.Linear(2, 2)
            for device in ("cuda", torch.device("cuda"), 0):
                assert model.to(device).weight.device.type == expected
                assert torch.ones(1).to(device).device.type == expected
                assert torch.ones(1).to(device, torch.float64, True).dtype is torch.float64
                assert nn.Linear(2, 2, device=device).weight.device.type == expected
            assert model.to("cuda", torch.float64, True).weight.dtype is torch.float64
            assert model.cuda(0).weight.device.type == expected
            assert nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight.is_cuda is (
                is_fake
            )


@BOTH
def test_generator_takes_its_device_by_position_and_says_it(is_fake: bool) -> None:
    with entered(is_fake):
        generator = torch.Generator("cuda").manual_seed(3)
        assert isinstance(generator, torch.Generator)
        assert isinstance(torch.default_generator, torch.Generator)
        assert isinstance(torch.Generator(), torch.Generator)
        assert generator.device.type == ("cuda" if is_fake else "cpu")
        drawn = torch.randn(2, generator=generator, device="cuda")
        assert torch.equal(drawn, torch.randn(2, generator=generator.manual_seed(3), device="cuda"))


@EACH
def test_stand_ins_are_pickled_as_the_functions_of_torch(found: DeviceFunction) -> None:
    with redirect_cuda_to_cpu():
        text = pickle.dumps(found.current())
    assert pickle.loads(text) is found.current()

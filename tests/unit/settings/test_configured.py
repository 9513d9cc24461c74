"""What is put into effect around code that does not know of it, and that all of it is undone."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config  # adds filters of warnings
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from breakeven.settings import configured
from breakeven.settings.kernels import is_flushing_denormals
from breakeven.trace import Configuration

OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
]


def global_state() -> dict[str, Any]:
    """Return everything of torch's that a configuration changes."""
    return {
        "threads": torch.get_num_threads(),
        "flushes": is_flushing_denormals(),
        "functions": [
            DataLoader.__init__, _BaseDataLoaderIter.__next__,
            _MultiProcessingDataLoaderIter._reset,
            _MapDatasetFetcher.fetch, nn.Module.__call__, nn.Module.compile, torch.compile,
            torch.Tensor.to, torch.Tensor.cuda, torch.set_num_threads, torch.set_flush_denormal,
        ],
        "optimizers": [kind.__init__ for kind in OPTIMIZERS],
        "shadowed": ["to" in vars(torch.Tensor), "cuda" in vars(torch.Tensor)],
        "hooks": len(torch_optimizer._global_optimizer_post_hooks),
        "precision": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32),
        "autocast": torch.is_autocast_enabled("cpu"),
        "warnings": (warnings.showwarning, list(warnings.filters)),
    }  # fmt: skip


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int = 2) -> torch.Tensor:
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


@pytest.fixture
def fake_compile(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace ``torch.compile`` by one that notes what it is asked for."""
    asked: list[dict[str, Any]] = []

    def compile_nothing(call: Any = None, **options: Any) -> Any:
        asked.append(options)
        return lambda *args, **kwargs: call(*args, **kwargs)

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr("breakeven.configure.model_calls._num_graphs", lambda: len(asked))
    return asked


@pytest.fixture
def other_threads() -> Iterator[int]:
    """Return a number of threads that is not the one in use."""
    before = torch.get_num_threads()
    yield 2 if before == 1 else 1
    torch.set_num_threads(before)


ALL_ON_CPU = Configuration(
    num_threads=3, flushes_denormals=True,
    channels_last=True, optimizer="fused", autocast="bfloat16", compile_mode="default",
    gathers_batches=True, num_workers=1, loader_batch_size=3,
    new_batch_size=5,
)  # fmt: skip
ON_CUDA = Configuration(
    pins_memory=True, keeps_data_on_device=True, allows_tf32=True, benchmarks_cudnn=True
)


@pytest.mark.parametrize(
    "configuration",
    [*(Configuration(**{name: value}) for name, value in ALL_ON_CPU.changes.items()), ALL_ON_CPU],
    ids=lambda configuration: "+".join(configuration.changes)[:40],
)
@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before_when_the_context_is_left(
    configuration: Configuration, fails: bool, fake_compile: list[dict[str, Any]]
) -> None:
    before = global_state()
    model = network()
    settings = configured(configuration)
    try:
        with settings:
            optimizer = torch.optim.Adam(model.parameters())
            DataLoader([1, 2, 3], batch_size=3)  # type: ignore[arg-type]
            train(model, optimizer)
            if fails:
                raise KeyError("the script's own")
    except KeyError:
        assert fails
    assert global_state() == before
    assert "_compiled_call_impl" not in vars(model)
    assert set(settings.effects()) == set(configuration.changes)


def test_settings_for_cuda_are_undone_and_mean_nothing_on_the_cpu() -> None:
    before = global_state()
    with configured(ON_CUDA, device="cuda") as settings:
        inside = global_state()
    assert inside["precision"] == "high"
    assert inside["cudnn"] == (True, True)
    assert global_state() == before
    with configured(ON_CUDA) as settings:
        assert global_state() == before
    assert settings.effects() == dict.fromkeys(ON_CUDA.changes, 0)


def test_nothing_is_touched_by_the_script_s_own_configuration() -> None:
    before = global_state()
    with configured(Configuration()) as settings:
        assert global_state() == before
    assert settings.effects() == {}


def test_threads_and_denormals_are_set_unless_the_script_sets_them(other_threads: int) -> None:
    wanted = Configuration(num_threads=other_threads, flushes_denormals=True)
    with configured(wanted) as settings:
        assert torch.get_num_threads() == other_threads
        assert (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() == 0.0
        assert settings.effects() == {"num_threads": 1, "flushes_denormals": 1}
        torch.set_num_threads(other_threads + 1)
        torch.set_flush_denormal(False)
        assert settings.effects() == {"num_threads": 0, "flushes_denormals": 0}


# --- models ---


def test_trained_model_alone_is_compiled_once_and_keeps_its_names(
    fake_compile: list[dict[str, Any]],
) -> None:
    class Training(nn.Module):
        """The call of the whole counts; frozen models and losses have nothing to train."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model, frozen = Training(), network()
    names = list(model.state_dict())
    with configured(Configuration(compile_mode="max-autotune-no-cudagraphs")) as settings:
        frozen(torch.ones(3, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, num_steps=3)
        frozen(torch.ones(3, 4))
        assert list(model.state_dict()) == names
        # What is saved and copied is the model as it is.
        torch.save(model.state_dict(), io.BytesIO())
        assert "_compiled_call_impl" not in vars(copy.deepcopy(model))
        assert settings.effects() == {"compile_mode": 1}
    assert fake_compile == [{"mode": "max-autotune-no-cudagraphs"}]
    assert vars(model.inner).get("_compiled_call_impl") is None


def test_models_of_two_optimizers_are_both_compiled(fake_compile: list[dict[str, Any]]) -> None:
    generator, critic = network(), network()
    with configured(Configuration(compile_mode="default")) as settings:
        updates = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, critic)]
        train(critic, updates[1], num_steps=5)
        train(generator, updates[0])
        assert nn.Module.__call__.__name__ == "_wrapped_call_impl"
        assert not hasattr(nn.Module.__call__, "__wrapped__"), "calls are no longer looked at"
    assert settings.effects() == {"compile_mode": 2}


class Compiled(nn.Module):
    """A model as ``torch.compile`` returns it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(x)


@pytest.mark.parametrize("way", ["module", "method"])
def test_model_that_the_script_compiles_is_left_alone(
    way: str, fake_compile: list[dict[str, Any]]
) -> None:
    model = network()
    wanted = Configuration(compile_mode="max-autotune")
    with configured(wanted) as settings:
        if way == "module":
            model = Compiled(model)
        else:
            model.compile()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert {"mode": "max-autotune"} not in fake_compile
    assert settings.effects() == {"compile_mode": 0}


def test_model_runs_in_an_autocast_region_and_hands_on_float32() -> None:
    seen: list[torch.dtype] = []
    model = network()
    model[2].register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    with configured(Configuration(autocast="bfloat16")) as settings:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        output = model(torch.ones(3, 4))
        assert output.dtype is torch.float32
        assert not torch.is_autocast_enabled("cpu")
        train(model, optimizer)
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert settings.effects() == {"autocast": 1}


def test_outputs_of_any_shape_are_handed_on_in_float32() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            y = self.linear(x)
            return {"pair": (y, y.argmax(1)), "name": "y", "double": y.double()}

    model = Many()
    with configured(Configuration(autocast="bfloat16")) as settings:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = model(x=torch.ones(3, 4))
        found["pair"][0].sum().backward()
        optimizer.step()
    assert settings.effects() == {"autocast": 1}
    assert [tensor.dtype for tensor in found["pair"]] == [torch.float32, torch.int64]
    assert (found["name"], found["double"].dtype) == ("y", torch.float64)


@pytest.mark.parametrize("is_on", [True, False])
def test_region_of_the_script_wins(is_on: bool) -> None:
    seen: list[torch.dtype] = []

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
                seen.append(self.linear(x).dtype)
            return self.linear(x)

    model = Own()
    with configured(Configuration(autocast="bfloat16")) as settings:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu"):
            # Nothing is handed on in another format than in the script itself.
            assert model(torch.ones(3, 4)).dtype is torch.bfloat16
        assert settings.effects() == {"autocast": 0}
        model(torch.ones(3, 4))
        assert settings.effects() == {"autocast": 1}
        train(model, optimizer)
    assert seen == [torch.bfloat16 if is_on else torch.float32] * 4


def test_model_of_another_precision_gets_no_region() -> None:
    model = network().double()
    with configured(Configuration(autocast="bfloat16")) as settings:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert model(torch.ones(3, 4, dtype=torch.float64)).dtype is torch.float64
        optimizer.step()
    assert settings.effects() == {"autocast": 0}


# --- ranges for a profiler ---


def _update() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()


def test_ranges_are_skipped_without_a_profiler() -> None:
    original = torch.autograd.profiler.record_function
    with configured(Configuration(skips_profiler_ranges=True)) as settings:
        _update()
        assert settings.effects()["skips_profiler_ranges"] >= 1
    assert torch.autograd.profiler.record_function is original


def test_a_profiler_sees_every_range() -> None:
    with configured(Configuration(skips_profiler_ranges=True)) as settings:
        with torch.autograd.profiler.profile() as profile:
            _update()
        assert settings.effects()["skips_profiler_ranges"] == 0
    assert any("Optimizer.step#SGD.step" in event.name for event in profile.function_events)

"""`breakeven.ask` of real trainers: answered, and left as they were."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from breakeven import Report, ask, verdict_callback, verdict_tracker
from breakeven.errors import BreakevenError, UsageError
from breakeven.timing import Source

pytestmark = [
    pytest.mark.slow,
    # Lightning's own, of a function of torch.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*(does not have many workers|smaller than the logging)"),
]


def copied(value: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that names states; they, and all else, must be as before at the end."""
    monkeypatch.chdir(tmp_path)
    states: list[tuple[Callable[[], Any], Any]] = []
    yield lambda *reads: states.extend((read, copied(read())) for read in reads)
    assert states
    for read, before in states:
        torch.testing.assert_close(read(), before, rtol=0, atol=0)


def numbers() -> tuple[Any, ...]:
    return torch.get_rng_state(), np.random.get_state()[1], random.getstate()


def answers(report: Report, batch_size: int | None) -> None:
    value = report.value
    assert value.results[0].source is Source.MEASURED
    assert value.results[0].num_samples > 0
    assert [one.device for one in value.results[1:]] == ["T4"]
    assert value.step.batch_size == batch_size
    assert logging.root.manager.disable == 0
    assert ask(report, question="explain").value.device == "T4"


def test_function(kept: Callable[..., None]) -> None:
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(48, 20), torch.randint(0, 3, (48,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    kept(model.state_dict, optimizer.state_dict, numbers)
    answers(ask(step, devices=["T4"], host="reference"), 48)


@pytest.mark.parametrize("has_trained", [False, True])
def test_lightning(kept: Callable[..., None], has_trained: bool) -> None:
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 3, (160,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip
    module = Classifier()
    if has_trained:
        trainer.fit(module, loader)
    kept(module.state_dict, numbers, lambda: trainer.global_step, lambda: module.training)
    if has_trained:
        kept(lambda: trainer.optimizers[0].state_dict())
        assert module.trainer is trainer
    answers(ask((trainer, module, loader), devices=["T4"], host="reference"), 16)
    with pytest.raises(UsageError, match="the module has no train_dataloader"):
        ask((trainer, module))
    with pytest.raises(UsageError, match="a Lightning Trainer needs its module"):
        ask(trainer)
    assert not list(Path.cwd().iterdir())


class Sentences(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(5, 100, (12,))
        return {"input_ids": tokens, "labels": torch.tensor(index % 2)}


@pytest.mark.parametrize("has_optimizer", [False, True])
def test_transformers(kept: Callable[..., None], has_optimizer: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments = transformers.TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, max_steps=2, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=Sentences(),
        optimizers=(optimizer if has_optimizer else None, None),
    )  # fmt: skip
    if has_optimizer:
        trainer.train()
        kept(optimizer.state_dict)
    parts = {name: value for name, value in vars(trainer).items() if name != "_memory_tracker"}
    kept(model.state_dict, numbers, lambda: trainer.state.global_step)
    answers(ask(trainer, devices=["T4"], host="reference"), 8)
    assert {name: vars(trainer)[name] for name in parts} == parts
    assert arguments.max_steps == 2
    assert not list(Path.cwd().glob("out/*"))
    trainer.train_dataset = None
    with pytest.raises(UsageError, match="no train_dataset"):
        ask(trainer)


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_stable_baselines(
    kept: Callable[..., None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("stable_baselines3")
    few = {"n_steps": 64} if name == "PPO" else {"learning_starts": 20, "buffer_size": 500}
    agent = getattr(library, name)("MlpPolicy", "CartPole-v1", device="cpu", **few)
    agent.learn(64)
    optimizer = agent.policy.optimizer
    kept(
        agent.policy.state_dict, optimizer.state_dict, numbers, lambda: agent.num_timesteps,
        lambda: torch.tensor(agent.env.envs[0].unwrapped.state),
        lambda: agent.env.envs[0].unwrapped.np_random.bit_generator.state["state"]["state"] % 2**60,
    )  # fmt: skip
    answers(ask(agent, devices=["T4"], host="reference"), None if name == "PPO" else 32)

    def fail(*_: Any) -> None:
        raise TypeError("cannot pickle a window")

    monkeypatch.setattr(type(agent.env), "__deepcopy__", fail, raising=False)
    with pytest.raises(
        BreakevenError, match=r"environment cannot be copied \(cannot pickle a window\)"
    ):
        ask(agent)


def test_callback_logs_the_verdict_once_and_trains_alike(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    loggers = pytest.importorskip("lightning.pytorch.loggers")

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))

        def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def train(*callbacks: Any, num_batches: int = 200) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module = Line()
        data = TensorDataset(torch.randn(32 * num_batches, 8), torch.randn(32 * num_batches, 1))
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", callbacks=list(callbacks),
            logger=loggers.CSVLogger(tmp_path, name=str(len(callbacks))),
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(module, DataLoader(data, batch_size=32, shuffle=True))  # fmt: skip
        return module.state_dict()

    def callback() -> Any:
        return verdict_callback(["T4"], "reference")

    torch.testing.assert_close(train(callback()), train(), rtol=0, atol=0)
    (log,) = (tmp_path / "1").rglob("metrics.csv")
    names, *rows = log.read_text("utf-8").splitlines()
    assert "breakeven/verdict" in names
    assert len(rows) == 1
    assert "T4" in rows[0]
    # A training that ends within the first steps has no verdict, and no patch is left.
    before = torch.optim.Optimizer.__init__
    with pytest.warns(RuntimeWarning, match="no verdict: the training was too short"):
        train(callback(), num_batches=3)
    assert torch.optim.Optimizer.__init__ is before


def test_tracker_hands_the_verdict_to_those_after_it() -> None:
    accelerate = pytest.importorskip("accelerate")
    seen: list[dict[str, Any]] = []

    class Seen(accelerate.tracking.GeneralTracker):
        name, requires_logging_directory, tracker = "seen", False, None

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            seen.append(dict(values))

    accelerator = accelerate.Accelerator(
        log_with=[verdict_tracker(["T4"], "reference"), Seen()], cpu=True
    )
    accelerator.init_trackers("run")
    model = nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    for number in range(120):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        accelerator.log({"number": number}, step=number)
    accelerator.end_training()
    (told,) = (values for values in seen if "breakeven/verdict" in values)
    assert told["number"] <= 100
    assert "T4" in told["breakeven/verdict"]
    assert told["breakeven/step_ms"] > 0

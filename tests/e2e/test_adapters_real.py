"""The adapters with the packages that they are for.

The second device is torch's "meta", which every machine has: what reads no value runs there. The
other models race a second copy of themselves.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from breakeven.adapters import accelerator, training_arguments
from breakeven.placement import auto, automatic, choose_device

pytestmark = [
    pytest.mark.slow,
    # Lightning's own, of a function of torch; what breakeven warns of stays an error.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\):FutureWarning"),
]

CPU = torch.device("cpu")


@pytest.fixture
def has_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives the machine these devices."""
    return lambda *names: monkeypatch.setattr(
        automatic, "devices_present", lambda: tuple(map(torch.device, names))
    )


def measured_in(caplog: pytest.LogCaptureFixture) -> str:
    return next(text for text in caplog.messages if text.startswith("trains on"))


def test_lightning_trains_on_the_accelerator(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, has_devices: Callable[..., None]
) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    has_devices("cpu", "meta")

    class Regressor(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            noise = torch.zeros(len(x), 1, device=self.device)
            loss = nn.functional.mse_loss(self.network(x) + noise, y)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> object:
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    model, batch = Regressor(), next(iter(loader))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with caplog.at_level(logging.INFO, logger="breakeven"):
        chosen = accelerator(model, batch, budget_s=0.1)
    assert "meta: " in measured_in(caplog), "the step ran there, self.device and all"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    trainer = lightning.Trainer(
        accelerator=chosen, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, loader)
    assert trainer.global_step == 4
    # Also when a trainer is attached, after a first fit.
    assert accelerator(model, batch, budget_s=0.1) == "cpu"


@pytest.fixture
def bert() -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    batch = {
        "input_ids": torch.randint(0, 50, (4, 8)),
        "attention_mask": torch.ones(4, 8, dtype=torch.long),
        "labels": torch.tensor([0, 1, 0, 1]),
    }
    return transformers.BertForSequenceClassification(config), transformers.BatchEncoding(batch)


def num_trained(model: Any, batch: Any, arguments: Any) -> int:
    """Train, and return the number of steps."""
    import transformers

    data = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    return trainer.state.global_step


def test_transformers_trains_with_the_arguments(
    bert: tuple[Any, Any], tmp_path: Path, has_devices: Callable[..., None]
) -> None:
    has_devices("cpu", "cpu")
    choice = choose_device(*bert, optimizer=torch.optim.AdamW)
    assert len(choice.times) == 2, choice.reason
    arguments = training_arguments(
        *bert, output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4,
        report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    assert arguments.use_cpu is True
    assert arguments.max_steps == 2
    assert num_trained(*bert, arguments) == 2


@pytest.mark.parametrize("policy", ["PPO", "A2C"])
def test_stable_baselines_trains_on_the_device(
    policy: str, has_devices: Callable[..., None]
) -> None:
    baselines = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is absent")
    has_devices("cpu", "cpu")
    make = getattr(baselines, policy)
    agent = make("MlpPolicy", "CartPole-v1", device="cpu", n_steps=64, seed=0)
    observations = np.stack([agent.observation_space.sample() for _ in range(64)])
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    states = random.getstate(), torch.get_rng_state().tolist()
    choice = choose_device(agent.policy, observations, optimizer=agent.policy.optimizer)
    assert len(choice.times) == 2, choice.reason
    assert (random.getstate(), torch.get_rng_state().tolist()) == states
    after = agent.policy.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    device = auto(agent.policy, observations)
    agent = make("MlpPolicy", "CartPole-v1", device=device, n_steps=64, seed=0)
    agent.learn(64)
    assert agent.policy.device == CPU

"""Thirty small networks whose steps are the host's work: families, optimizers, hooks.

Shapes: B batch, T time or position, D features, C channels, H height, W width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

LEARNING_RATE = 1e-3

Losses = Callable[[], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a training loop needs.

    Args:
        loss: Computes the loss of one batch.
        optimizers: All that are stepped, in this order.
        before_update: Runs between the backward pass and the update.
    """

    loss: Losses
    optimizers: tuple[Optimizer, ...]
    before_update: Callable[[], object] | None = None


def mlp(
    *widths: int, batch: int, activation: type[nn.Module] = nn.Tanh
) -> tuple[nn.Module, Losses]:
    """Return a network of linear layers, and its squared error."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    network = nn.Sequential(*layers[:-1])
    x, y = torch.randn(batch, widths[0]), torch.randn(batch, widths[-1])
    return network, lambda: functional.mse_loss(network(x), y)


def trained(made: tuple[nn.Module, Losses], kind: type[Optimizer], **options: object) -> Training:
    """Return the training of a network by an optimizer of this kind."""
    network, loss = made
    optimizer = kind(network.parameters(), lr=LEARNING_RATE, **options)  # type: ignore[arg-type]
    return Training(loss=loss, optimizers=(optimizer,))


def sequential(*layers: nn.Module, x: Tensor) -> tuple[nn.Module, Losses]:
    """Return layers in a row, and the mean square of what comes out."""
    network = nn.Sequential(*layers)
    return network, lambda: network(x).square().mean()


def disc(depth: int) -> Training:
    """Return a classifier of points in a disc, of width 3."""
    widths = [2, *[3] * depth, 1]
    network, _ = mlp(*widths, batch=32)
    x, y = torch.randn(32, 2), torch.randint(0, 2, (32, 1)).float()
    return trained(
        (network, lambda: functional.binary_cross_entropy_with_logits(network(x), y)), SGD
    )


def chain_of_norms() -> Training:
    """Return twelve blocks of linear, layer norm and GELU."""
    layers = [m for _ in range(12) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())]
    return trained(sequential(*layers, x=torch.randn(16, 8)), AdamW)


def pointwise_chain() -> Training:
    """Return one parameter and forty operators on it."""
    weight = nn.Parameter(torch.randn(64))

    def loss() -> Tensor:
        x = weight
        for _ in range(20):
            x = torch.tanh(x) * 1.1
        return x.sum()

    return Training(loss=loss, optimizers=(SGD([weight], lr=LEARNING_RATE),))


def embeddings() -> Training:
    """Return four tables of embeddings and a head, as for tabular data."""
    tables = nn.ModuleList(nn.Embedding(50, 4) for _ in range(4))
    head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    codes, y = torch.randint(0, 50, (64, 4)), torch.randn(64, 1)

    def loss() -> Tensor:
        x = torch.cat([table(codes[:, i]) for i, table in enumerate(tables)], dim=1)
        return functional.mse_loss(head(x), y)

    return trained((nn.ModuleList([tables, head]), loss), Adam)


def two_towers() -> Training:
    """Return two embeddings with an MLP each, and the product of both."""
    users, items = nn.Embedding(100, 8), nn.Embedding(100, 8)
    towers = nn.ModuleList(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2)
    )
    user, item = torch.randint(0, 100, (2, 64))
    y = torch.randint(0, 2, (64,)).float()

    def loss() -> Tensor:
        score = (towers[0](users(user)) * towers[1](items(item))).sum(dim=1)
        return functional.binary_cross_entropy_with_logits(score, y)

    return trained((nn.ModuleList([users, items, towers]), loss), Adam)


def convolutional(*, has_norm: bool) -> Training:
    """Return two convolutions and a linear layer on pictures of 8 x 8."""
    norms = [nn.BatchNorm2d(4), nn.BatchNorm2d(8)] if has_norm else [nn.Identity(), nn.Identity()]
    return trained(
        sequential(
            nn.Conv2d(1, 4, 3), norms[0], nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3), norms[1], nn.ReLU(), nn.Flatten(), nn.Linear(8, 4),
            x=torch.randn(4, 1, 8, 8),
        ),
        SGD, momentum=0.9,
    )  # fmt: skip


def convolution_in_time() -> Training:
    """Return three dilated convolutions with dropout, as in a TCN."""
    layers: list[nn.Module] = []
    for level in range(3):
        layers += [
            nn.Conv1d(4, 4, 3, padding="same", dilation=2**level), nn.ReLU(), nn.Dropout(0.1),
        ]  # fmt: skip
    return trained(sequential(*layers, x=torch.randn(4, 4, 32)), Adam)


def cell_loop(cell: nn.Module) -> Training:
    """Return a cell that is called ten times by a Python loop."""
    head = nn.Linear(16, 1)
    x_TBD = torch.randn(10, 8, 8)  # noqa: N806

    def loss() -> Tensor:
        state = None
        for x in x_TBD:
            state = cell(x, state)
        hidden = state[0] if isinstance(state, tuple) else state
        return head(hidden).square().mean()

    return trained((nn.ModuleList([cell, head]), loss), RMSprop)


def recurrent(kind: type[nn.RNNBase]) -> Training:
    """Return a recurrent layer over ten positions, and a head on the last."""
    layer, head = kind(8, 16), nn.Linear(16, 4)
    x, y = torch.randn(10, 8, 8), torch.randint(0, 4, (8,))

    def loss() -> Tensor:
        return functional.cross_entropy(head(layer(x)[0][-1]), y)

    made = (nn.ModuleList([layer, head]), loss)
    training = trained(made, Adam)
    clip = lambda: nn.utils.clip_grad_norm_(made[0].parameters(), 1.0)  # noqa: E731
    return Training(loss=loss, optimizers=training.optimizers, before_update=clip)


def transformer() -> Training:
    """Return two encoder layers of torch's own, and a head."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    head = nn.Linear(16, 4)
    x, y = torch.randn(4, 8, 16), torch.randint(0, 4, (4,))

    def loss() -> Tensor:
        return functional.cross_entropy(head(encoder(x).mean(dim=1)), y)

    return trained((nn.ModuleList([encoder, head]), loss), AdamW)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x_BTD: Tensor) -> Tensor:  # noqa: N803
        batch, length, width = x_BTD.shape
        parts = self.qkv(self.norm1(x_BTD)).split(width, dim=2)
        q, k, v = (part.view(batch, length, 2, width // 2).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(y.transpose(1, 2).reshape(batch, length, width))  # noqa: N806
        return x_BTD + self.mlp(self.norm2(x_BTD))


def language_model() -> Training:
    """Return three blocks written as in a small GPT."""
    words, places = nn.Embedding(64, 16), nn.Embedding(8, 16)
    blocks, head = nn.Sequential(*(_Attention() for _ in range(3))), nn.Linear(16, 64, bias=False)
    tokens = torch.randint(0, 64, (4, 9))

    def loss() -> Tensor:
        x = words(tokens[:, :-1]) + places(torch.arange(8, device=tokens.device))
        logits = head(blocks(x))
        return functional.cross_entropy(logits.view(-1, 64), tokens[:, 1:].reshape(-1))

    return trained((nn.ModuleList([words, places, blocks, head]), loss), AdamW, betas=(0.9, 0.95))


def variational() -> Training:
    """Return an autoencoder with a sampled code."""
    encoder, decoder = nn.Linear(16, 8), nn.Sequential(nn.Linear(4, 16), nn.Sigmoid())
    x = torch.rand(16, 16)

    def loss() -> Tensor:
        mean, log_variance = torch.relu(encoder(x)).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return functional.binary_cross_entropy(decoder(code), x, reduction="sum") + divergence

    return trained((nn.ModuleList([encoder, decoder]), loss), Adam)


def differential_equation() -> Training:
    """Return a neural ODE: ten steps of Runge and Kutta."""
    network, _ = mlp(2, 16, 2, batch=1)
    start, end = torch.randn(8, 2), torch.randn(8, 2)

    def loss() -> Tensor:
        y, h = start, 0.1
        for _ in range(10):
            k1 = network(y)
            k2 = network(y + h / 2 * k1)
            k3 = network(y + h / 2 * k2)
            k4 = network(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return functional.mse_loss(y, end)

    return trained((network, loss), Adam)


def graph_network() -> Training:
    """Return two rounds of messages along the edges of a graph."""
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    head = nn.Linear(8, 3)
    x, y = torch.randn(20, 8), torch.randint(0, 3, (20,))
    source, target = torch.randint(0, 20, (2, 60))

    def loss() -> Tensor:
        hidden = x
        for layer in layers:
            messages = layer(hidden)[source]
            hidden = torch.relu(torch.zeros_like(hidden).index_add(0, target, messages))
        return functional.nll_loss(functional.log_softmax(head(hidden), dim=1), y)

    return trained((nn.ModuleList([layers, head]), loss), Adam, weight_decay=5e-4)


def q_learning() -> Training:
    """Return a step of a DQN: two networks, one of them without gradients."""
    network, _ = mlp(4, 32, 32, 2, batch=1, activation=nn.ReLU)
    target, _ = mlp(4, 32, 32, 2, batch=1, activation=nn.ReLU)
    states, others = torch.randn(2, 32, 4)
    actions, rewards = torch.randint(0, 2, (32, 1)), torch.randn(32)

    def loss() -> Tensor:
        with torch.no_grad():
            best = target(others).max(1).values
        chosen = network(states).gather(1, actions).squeeze(1)
        return functional.smooth_l1_loss(chosen, rewards + 0.99 * best)

    training = trained((network, loss), AdamW, amsgrad=True)
    clip = lambda: nn.utils.clip_grad_value_(network.parameters(), 100)  # noqa: E731
    return Training(loss=loss, optimizers=training.optimizers, before_update=clip)


def with_hooks() -> Training:
    """Return an MLP whose modules call hooks, as a framework's do."""
    network, loss = mlp(8, 16, 16, 16, 1, batch=16)
    for module in network:
        module.register_forward_pre_hook(lambda *_: None)
        module.register_forward_hook(lambda *_: None)
    return trained((network, loss), SGD)


def with_average() -> Training:
    """Return an MLP whose weights are averaged after each step."""
    made = mlp(8, 16, 16, 1, batch=16, activation=nn.ReLU)
    averages = [parameter.detach().clone() for parameter in made[0].parameters()]

    def average() -> None:
        with torch.no_grad():
            for old, new in zip(averages, made[0].parameters(), strict=True):
                old.mul_(0.99).add_(new, alpha=0.01)

    training = trained(made, Adam)
    return Training(loss=training.loss, optimizers=training.optimizers, before_update=average)


def policy_gradient() -> Training:
    """Return a step of PPO on a minibatch: ratios, clipping, entropy."""
    actor, _ = mlp(4, 64, 64, 2, batch=1)
    critic, _ = mlp(4, 64, 64, 1, batch=1)
    x, actions = torch.randn(64, 4), torch.randint(0, 2, (64,))
    old, advantages, returns = torch.randn(3, 64)

    def loss() -> Tensor:
        chosen = torch.distributions.Categorical(logits=actor(x))
        ratio = (chosen.log_prob(actions) - old).exp()
        clipped = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()
        value = 0.5 * ((critic(x).view(-1) - returns) ** 2).mean()
        return clipped - 0.01 * chosen.entropy().mean() + 0.5 * value

    both = nn.ModuleList([actor, critic])
    training = trained((both, loss), Adam, eps=1e-5)
    clip = lambda: nn.utils.clip_grad_norm_(both.parameters(), 0.5)  # noqa: E731
    return Training(loss=loss, optimizers=training.optimizers, before_update=clip)


def mixture() -> Training:
    """Return four experts, of which a gate weighs the answers."""
    experts = nn.ModuleList(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(4)
    )
    gate = nn.Linear(8, 4)
    x = torch.randn(32, 8)

    def loss() -> Tensor:
        weights = torch.softmax(gate(x), dim=-1)
        answers = torch.stack([expert(x) for expert in experts], dim=1)
        return (weights.unsqueeze(-1) * answers).sum(dim=1).square().mean()

    return trained((nn.ModuleList([experts, gate]), loss), AdamW)


def weight_normed() -> Training:
    """Return linear layers whose weights are computed before each use."""
    layers = [nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)) for _ in range(4)]
    return trained(sequential(*layers, x=torch.randn(16, 8)), Adam)


NETWORKS: dict[str, Callable[[], Training]] = {
    "disc, depth 2": lambda: disc(2),
    "disc, depth 8": lambda: disc(8),
    "MLP 2-8-8-1, SGD": lambda: trained(mlp(2, 8, 8, 1, batch=16), SGD),
    "MLP 11-32-32-1, Adam": lambda: trained(mlp(11, 32, 32, 1, batch=32), Adam),
    "MLP, ReLU, Adagrad": lambda: trained(mlp(8, 16, 16, 1, batch=16, activation=nn.ReLU), Adagrad),
    "MLP, SiLU, NAdam": lambda: trained(mlp(8, 16, 16, 1, batch=16, activation=nn.SiLU), NAdam),
    "MLP, SGD foreach": lambda: trained(mlp(8, 16, 16, 1, batch=16), SGD, foreach=True),
    "MLP, Adam fused": lambda: trained(mlp(8, 16, 16, 1, batch=16), Adam, fused=True),
    "MLP with hooks": with_hooks,
    "MLP with average": with_average,
    "norm chain": chain_of_norms,
    "pointwise chain": pointwise_chain,
    "embeddings": embeddings,
    "two towers": two_towers,
    "mixture of experts": mixture,
    "weight norm": weight_normed,
    "convolutional": lambda: convolutional(has_norm=False),
    "convolutional, batch norm": lambda: convolutional(has_norm=True),
    "temporal convolution": convolution_in_time,
    "RNN cell": lambda: cell_loop(nn.RNNCell(8, 16)),
    "LSTM cell": lambda: cell_loop(nn.LSTMCell(8, 16)),
    "RNN layer": lambda: recurrent(nn.RNN),
    "GRU layer": lambda: recurrent(nn.GRU),
    "transformer": transformer,
    "language model": language_model,
    "autoencoder, sampled": variational,
    "neural ODE": differential_equation,
    "graph network": graph_network,
    "Q-learning": q_learning,
    "PPO": policy_gradient,
}


def create(name: str, device: torch.device | str = "cpu") -> Training:
    """Return the training of that name on a device, its weights new and alike each time."""
    torch.manual_seed(0)
    with torch.device(device):
        return NETWORKS[name]()


def train_step(training: Training) -> Callable[[], None]:
    """Return a function that does a step."""

    def step() -> None:
        for optimizer in training.optimizers:
            optimizer.zero_grad()
        training.loss().backward()
        if training.before_update:
            training.before_update()
        for optimizer in training.optimizers:
            optimizer.step()

    return step

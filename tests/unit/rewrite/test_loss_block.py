"""Loops that do more than call a model and a loss: their statements become a function."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import pytest

from breakeven.rewrite import NoPatch, SourcePatch, propose_fast_step
from factories.patched_scripts import output_of, proposed
from faststep import FastStep, fast_step

HEAD = """\
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
loader = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(4)]
SCALE, SHIFT = 0.5, 2
STATE = {"beta": 1.0}
LOG = []
"""
TAIL = "\nprint([float(p.detach().double().sum()) for p in model.parameters()])\n"

STYLES = {
    "accuracy from the output": """
        model, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters())
        for epoch in range(3):
            correct, total, running = 0, 0, 0.0
            for inputs, targets in loader:
                optimizer.zero_grad()
                outputs = model(inputs)
                loss = criterion(outputs, targets)
                loss.backward()
                optimizer.step()
                running += loss.item() * inputs.size(0)
                _, predicted = outputs.max(1)
                total += targets.size(0)
                correct += predicted.eq(targets).sum().item()
            print(running / total, correct / total)
    """,
    "state from step to step": """
        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.out = nn.Linear(7, 3), nn.Linear(7, 3)
            def forward(self, x, hidden):
                both = torch.cat((x, hidden), dim=1)
                return self.out(both), torch.tanh(self.inner(both))
        model, hidden = Cell(), torch.zeros(8, 3)
        optimizer = torch.optim.RMSprop(model.parameters())
        for x, c in loader:
            optimizer.zero_grad()
            output, hidden = model(x, hidden.detach())
            loss = F.cross_entropy(output, c)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            print(loss.item(), hidden.sum().item())
    """,
    "several losses, logged before the update, in a function that a loop calls": """
        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.mean, self.value = nn.Linear(4, 2), nn.Linear(4, 1)
            def evaluate(self, x):
                distribution = Normal(self.mean(x), 1.0)
                return self.value(x), distribution.log_prob(x[:, :2]).sum(dim=1)
        def train(policy, optimizer, batches, losses):
            policy.train()
            for x, c in batches:
                values, log_prob = policy.evaluate(x)
                values = values.flatten()
                c = c.float() - c.float().mean()
                ratio = torch.exp(log_prob - log_prob.detach())
                policy_loss = -torch.min(c * ratio, c * torch.clamp(ratio, 1 - SCALE, SHIFT)).mean()
                losses.append(policy_loss.item())
                value_loss = F.mse_loss(values, c)
                loss = policy_loss + SCALE * value_loss
                with torch.no_grad():
                    print((ratio - 1).mean().cpu().numpy())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        def main():
            policy, losses = Policy(), []
            optimizer = torch.optim.Adam(policy.parameters())
            for _ in range(3):
                train(policy, optimizer, loader, losses)
            print(losses)
            return policy
        model = main()
    """,
    "a function of the script calls the model": """
        def solve(func, y, num_steps):
            states = [y]
            for _ in range(num_steps):
                y = y + 0.1 * func(y)
                states.append(y)
            return torch.stack(states)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            x, _ = loader[step % 4]
            optimizer.zero_grad()
            loss = torch.mean(torch.abs(solve(model, x, 3) - x))
            loss.backward()
            optimizer.step()
            if step % 2 == 0:
                with torch.no_grad():
                    print(f"step {step} loss {loss.item():.6f}")
    """,
    "the model gives the loss, and a function makes the optimizer": """
        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(4, 3)
            def forward(self, x, targets=None):
                logits = self.net(x)
                return logits, F.cross_entropy(logits, targets)
        def configure(model):
            return torch.optim.AdamW(list(model.parameters()), lr=0.01)
        model = Whole()
        optimizer = configure(model)
        for X, Y in loader:
            _, loss = model(X, targets=Y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            print(loss.item())
    """,
    "two targets, and a penalty on the weights": """
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        chosen = torch.arange(5)
        for x, c in loader:
            model.train()
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out[chosen], c[chosen])
            loss = loss + 0.1 * sum(p.square().sum() for p in model.parameters())
            loss.backward()
            optimizer.step()
            print(loss.item())
    """,
    "a loss of parts without a name": """
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, c in loader:
            optimizer.zero_grad()
            out = model(x)
            first, second = F.cross_entropy(out, c), out.square().mean()
            (first + second).backward()
            optimizer.step()
            print(first.item(), second.item())
    """,
}


@pytest.mark.parametrize("style", STYLES)
def test_the_changed_script_computes_the_same(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[FastStep] = []
    num_compiled: list[int] = []

    def make(*arguments: Any, **options: Any) -> FastStep:
        assert options["calls_model"]
        steps.append(fast_step(*arguments, **options))
        return steps[-1]

    def do_stock(step: FastStep, batch: Any, indices: Any) -> Any:
        num_compiled.append(1)
        return step.do_stock(batch, indices)

    monkeypatch.setattr(FastStep, "compile", do_stock)
    monkeypatch.setattr(sys.modules["breakeven"], "fast_step", make, raising=False)
    source = HEAD + textwrap.dedent(STYLES[style]) + TAIL
    expected = output_of(source)
    assert not steps
    patch = proposed(source)
    assert output_of(patch.text) == expected
    assert len(steps) == 1
    assert len(num_compiled) >= 3


LOOP = """
class Annealer:
    def __init__(self):
        self.beta = 1.0
    def advance(self):
        self.beta *= 0.9
    def value(self):
        return self.beta
def bump():
    STATE["beta"] *= 0.9
def counted(x):
    LOG.append(1)
    return x
def noisy(x):
    return x + np.random.rand()
def stated(x):
    return x * STATE["beta"]
def printed(x):
    print(x.shape)
    return x
def main():
    model, criterion, annealer = nn.Linear(4, 3), nn.CrossEntropyLoss(), Annealer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    factor, weights = 1.0, [1.0]
    for epoch in range(3):
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            annealer.advance()
            bump()
            print(loss.item(), out.shape)
"""
# What takes the place of the loss, and what the reason says of it.
STALE = {
    "criterion(out, y) * annealer.beta": "`annealer.beta` may change",
    "criterion(out, y) * annealer.value()": "calls annealer.value",
    'criterion(out, y) * STATE["beta"]': "`STATE`",
    "criterion(stated(out), y)": "`STATE`",
    "criterion(noisy(out), y)": "calls np.random.rand",
    "criterion(counted(out), y)": "calls LOG.append",
    "criterion(printed(out), y)": "calls print",
    "criterion(out, y) * i": "`i`, which changes in the loop",
    "criterion(out, y) * epoch": "`epoch`, which changes in the loop",
    "criterion(out, y) * random.random()": "calls random.random",
    "criterion(out, y) * len(open('factor').read())": "calls open",
    "F.cross_entropy(out, y, weight=torch.tensor([1.0, 2, 3]))": "calls torch.tensor",
    "criterion(helper.change(out), y)": "calls helper.change",
    'criterion(out, y) * optimizer.param_groups[0]["lr"]': "changes in the loop|may change",
}


def _refusal(source: str) -> str:
    found = propose_fast_step(HEAD + source, file="train.py")
    assert isinstance(found, NoPatch), found.text
    return found.reason


def test_the_loop_that_the_refusals_start_from_is_taken() -> None:
    assert isinstance(propose_fast_step(HEAD + LOOP, file="train.py"), SourcePatch)


@pytest.mark.parametrize("loss", STALE)
def test_what_would_be_compiled_in_and_change_is_refused(loss: str) -> None:
    reason = _refusal(LOOP.replace("criterion(out, y)", loss))
    assert any(part in reason for part in STALE[loss].split("|")), reason


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "loss.backward()",
            "if loss.isnan(): break\n            loss.backward()",
            "past the update",
        ),
        ("loss.backward()", "monitor.check(out)\n            loss.backward()", "monitor.check"),
        ("loss.backward()", "factor = out.sum().item()\n            loss.backward()", ""),
        ("    bump()", "    criterion.label_smoothing = epoch / 9", "`criterion`, which changes"),
        ("    bump()", "    criterion = nn.CrossEntropyLoss()", "`criterion`, which changes"),
        ("out = model(x)", "out = self.out = model(x)", "other than a variable"),
        (
            "out = model(x)",
            "out = model(x)\n            x = torch.rand(8, 4)",
            "before the forward pass",
        ),
    ],
)
def test_what_may_be_wrong_is_refused(old: str, new: str, said: str) -> None:
    source = LOOP.replace(old, new, 1)
    if not said:  # a value that is read before the update is read after it, and is the same
        assert isinstance(propose_fast_step(HEAD + source, file="train.py"), SourcePatch)
    else:
        assert said in _refusal(source)


def test_a_function_that_a_loop_calls_keeps_what_only_it_knows() -> None:
    source = """
def train(model, optimizer, batches):
    model.train()
    criterion = nn.L1Loss()
    for x, y in batches:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        print(out)
net = nn.Linear(4, 3)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    train(net, sgd, loader)
"""
    assert "`criterion`" in _refusal(source)

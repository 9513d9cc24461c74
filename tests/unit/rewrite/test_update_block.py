"""Loops with several losses and updates: all of it becomes one function."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import pytest

from breakeven.rewrite import NoPatch, SourcePatch, propose_fast_step
from factories.patched_scripts import output_of, proposed
from faststep import FastStep, fast_step

HEAD = """\
import copy
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
loader = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
TAU = 0.1
LOG = []
"""
TAIL = "\nprint([float(p.detach().double().sum()) for m in models for p in m.parameters()])\n"

STYLES = {
    "a generator and a discriminator": """
        generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        discriminator = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2)
        d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-2)
        criterion = nn.BCEWithLogitsLoss()
        for epoch in range(2):
            for real, _ in loader:
                d_optimizer.zero_grad()
                noise = torch.randn(real.size(0), 2)
                fake = generator(noise)
                loss_d = criterion(discriminator(real), torch.ones(8, 1))
                loss_d = loss_d + criterion(discriminator(fake.detach()), torch.zeros(8, 1))
                loss_d.backward()
                nn.utils.clip_grad_norm_(discriminator.parameters(), 0.5)
                d_optimizer.step()
                LOG.append(loss_d.item())

                g_optimizer.zero_grad()
                loss_g = criterion(discriminator(fake), torch.ones(8, 1))
                loss_g.backward()
                g_optimizer.step()
                print(f"{loss_g.item():.6f}", LOG[-1])
        models = [generator, discriminator]
    """,
    "an actor, a critic and its target, followed by a function": """
        def polyak(params, target_params, tau):
            '''Follow.'''
            with torch.no_grad():
                for param, target in zip(params, target_params):
                    target.data.mul_(1 - tau)
                    torch.add(target.data, param.data, alpha=tau, out=target.data)

        actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
        target = copy.deepcopy(critic)
        actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
        critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
        for states, rewards in loader:
            mean = actor(states)
            actions = mean + 0.1 * torch.randn_like(mean)
            with torch.no_grad():
                others = actor(states + 1)
                wanted = rewards + 0.9 * target(torch.cat((states, others), dim=1))
            value = critic(torch.cat((states, actions.detach()), dim=1))
            critic_loss = F.mse_loss(value, wanted)
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
            actor_loss = -critic(torch.cat((states, actions), dim=1)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            polyak(critic.parameters(), target.parameters(), TAU)
            print(critic_loss.item(), actor_loss.item())
        models = [actor, critic, target]
    """,
    "a loss that retains the graph, and a target that follows in the loop": """
        body, head = nn.Linear(4, 4), nn.Linear(4, 1)
        target = copy.deepcopy(head)
        body_optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
        head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for x, y in loader:
            body_optimizer.zero_grad()
            head_optimizer.zero_grad()
            features = body(x)
            loss = F.mse_loss(head(features), y)
            loss.backward(retain_graph=True)
            other = features.square().mean() + target(features).mean()
            other.backward()
            body_optimizer.step()
            head_optimizer.step()
            for p, q in zip(head.parameters(), target.parameters()):
                q.data.copy_(TAU * p.data + (1 - TAU) * q.data)
            print(loss.item())
        models = [body, head, target]
    """,
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_changed_script_computes_the_same(
    style: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[FastStep] = []

    def make(*arguments: Any, **options: Any) -> FastStep:
        steps.append(fast_step(*arguments, **options))
        return steps[-1]

    if not is_compiled:
        monkeypatch.setattr(FastStep, "compile", FastStep.do_stock)
    monkeypatch.setattr(sys.modules["breakeven"], "fast_step", make, raising=False)
    source = HEAD + textwrap.dedent(STYLES[style]) + TAIL
    expected = output_of(source)
    patch = proposed(source)
    found = output_of(patch.text)
    assert len(steps) == 1
    if not is_compiled:
        assert found == expected
        return
    assert steps[0].engine == "generated C"
    assert _numbers(found) == pytest.approx(_numbers(expected), rel=1e-4, abs=1e-5)


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.translate(str.maketrans("[],", "   ")).split()]


LOOP = textwrap.dedent(STYLES["a generator and a discriminator"])


def _reason(source: str) -> str:
    patch = propose_fast_step(HEAD + source, file="train.py")
    assert isinstance(patch, NoPatch), patch.change.diff
    return patch.reason


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("g_optimizer.step()", "if epoch:\n            g_optimizer.step()", "several places"),
        ("g_optimizer.step()", "g_optimizer.step()\n        g_optimizer.step()", "in another way"),
        (
            "loss_g.backward()",
            "if epoch:\n            loss_g.backward()",
            "another place than directly",
        ),
        ("loss_g.backward()", "loss_g.backward(torch.tensor(1.0))", "with arguments"),
        ("loss_g =", "loss_d =", "reads `loss_d`, which is another value"),
        ("loss_g.backward()", "loss_g.backward()\n        draw(LOG)", "calls draw"),
        ("loss_g.backward()", "loss_g.backward()\n        real.mul_(2)", "calls real.mul_"),
        (
            "fake = generator(noise)",
            "fake = generator(noise) * (1 + epoch)",
            "`epoch`, which changes",
        ),
        ("loss_g.backward()", "generator.eval()\n        loss_g.backward()", "sets a model's mode"),
        (
            "loss_d.backward()",
            "scale = loss_d.item()\n        loss_d = loss_d * scale\n        loss_d.backward()",
            "line",
        ),
        ("generator.parameters()", "list(MODELS)", "`g_optimizer`"),
        (
            "loss_g.backward()",
            "loss_g.backward()\n        print(generator.weight)",
            "past the update",
        ),
    ],
)
def test_what_may_be_wrong_is_refused(old: str, new: str, said: str) -> None:
    assert isinstance(propose_fast_step(HEAD + LOOP, file="train.py"), SourcePatch)
    source = LOOP.replace(old, new, 1)
    assert source != LOOP
    assert said in _reason(source)


@pytest.mark.parametrize(
    ("statement", "stays"),
    [
        ("q.data.copy_(TAU * p.data)", False),
        ("q.data.copy_(noise[0, 0] * p.data)", True),
        ("LOG.append(q)", True),
        ("real.copy_(p.data)", True),
    ],
)
def test_a_loop_over_parameters_is_of_the_step_where_it_only_moves_them(
    statement: str, stays: bool
) -> None:
    follow = (
        "        for p, q in zip(generator.parameters(), target.parameters()):\n"
        f"            {statement}\n"
    )
    source = LOOP.replace("for epoch in", "target = copy.deepcopy(generator)\nfor epoch in")
    source = source.replace("        print(", f"{follow}        print(")
    patch = propose_fast_step(HEAD + source, file="train.py")
    assert isinstance(patch, SourcePatch)
    _, _, loop = patch.text.partition("for epoch in")
    assert (statement in loop) == stays


def test_a_copy_is_of_a_model_by_keyword_too() -> None:
    source = LOOP.replace("for epoch in", "target = copy.deepcopy(x=generator)\nfor epoch in")
    source = source.replace("        print(", "        target.eval()\n        print(")
    patch = propose_fast_step(HEAD + source, file="train.py")
    assert isinstance(patch, SourcePatch)
    (line,) = (line for line in patch.text.splitlines() if "fast_step(" in line)
    assert "target" in line

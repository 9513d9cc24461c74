"""The change of a script that makes its training loop call ``breakeven.fast_step``."""

from __future__ import annotations

import difflib
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import breakeven
from breakeven.rewrite import NoPatch, propose_fast_step
from factories.patched_scripts import output_of, proposed

HEAD = """\
# A script as people write it.
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
data = [(torch.randn(8, 4), torch.randn(8, 1), torch.randint(0, 3, (8,))) for _ in range(4)]
regression = [(x, y) for x, y, _ in data]
classes = [(x, c) for x, _, c in data]
"""
TAIL = """
print([float(p.detach().double().sum()) for p in MODEL.parameters()])
"""

# Each as one would write it; those with MODEL print the trained parameters at the end.
STYLES = {
    "tutorial": """
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        loss_fn = nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters())
        for epoch in range(3):
            running = 0.0
            for i, (x, c) in enumerate(classes):
                optimizer.zero_grad()
                out = model(x)
                loss = loss_fn(out, c)
                loss.backward()
                optimizer.step()
                running += loss.item()
            print(epoch, running)
    """,
    "functional, in one expression": """
        model = nn.Linear(4, 3)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, c in classes:
            loss = F.cross_entropy(model(x), c)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            print(loss.item())
    """,
    "criterion made on the spot": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in regression:
            model.zero_grad()
            nn.MSELoss()(model(x), y).backward()
            optimizer.step()
    """,
    "zero_grad at the end": """
        model = nn.Linear(4, 1)
        criterion = nn.MSELoss()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
        for x, y in regression:
            prediction = model(x)
            loss = criterion(prediction, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print("loss", loss.detach())
    """,
    "output squeezed": """
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for x, y in regression:
            y = y.squeeze(1)
            optimizer.zero_grad()
            pred = model(x).squeeze(1)
            loss = F.mse_loss(pred, y, reduction="sum")
            loss.backward()
            optimizer.step()
            print(loss.item())
    """,
    "loss written out": """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weight = 0.5
        for x, y in regression:
            optimizer.zero_grad()
            output = model(x)
            loss = ((output - y) ** 2).mean() * weight + 0.01 * output.abs().mean()
            loss.backward()
            optimizer.step()
            print(loss.item())
    """,
    "attributes of a trainer": """
        class Trainer:
            def __init__(self):
                self.model = nn.Linear(4, 3)
                self.criterion = nn.CrossEntropyLoss()
                self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
                self.history = []

            def fit(self, loader, num_epochs):
                for epoch in range(num_epochs):
                    for batch in loader:
                        inputs, labels = batch
                        self.optimizer.zero_grad()
                        logits = self.model(inputs)
                        loss = self.criterion(logits, labels)
                        loss.backward()
                        self.optimizer.step()
                        self.history.append(loss.item())

        trainer = Trainer()
        trainer.fit(classes, 2)
        print(trainer.history)
        model = trainer.model
    """,
    "in a function, with a scheduler and clipping": """
        def main(lr: float = 0.1) -> nn.Module:
            device = torch.device("cpu")
            net = nn.Linear(4, 3).to(device)
            optimizer = torch.optim.SGD(net.parameters(), lr=lr)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            limit = 0.5
            for epoch in range(2):
                net.train()
                for inputs, targets in classes:
                    inputs, targets = inputs.to(device), targets.to(device)
                    optimizer.zero_grad()
                    loss = F.cross_entropy(net(inputs), targets, label_smoothing=0.1)
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=limit)
                    optimizer.step()
                    scheduler.step()
                print(epoch, scheduler.get_last_lr(), loss.item())
            return net


        model = main()
    """,
    "full batch, while": """
        X, Y = regression[0]
        model = nn.Linear(4, 1)
        criterion = nn.L1Loss()
        optimizer = torch.optim.Adam(params=model.parameters(), lr=0.1)
        loss, num_steps = torch.tensor(9.0), 0
        while num_steps < 5 and loss > 1e-3:
            y_pred = model(X)
            loss = criterion(y_pred, Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            num_steps += 1
        print(loss.item())
        y_pred = model(X)
        print(y_pred.sum().item())
    """,
    "logging before the backward pass": """
        model = nn.Linear(4, 3)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses, total = [], 0.0
        for x, c in classes:
            outputs = model(x)
            c = c.long()
            loss = criterion(outputs, c)
            losses.append(loss.item())
            total += float(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(losses, total)
    """,
    "a dictionary for a batch, and two inputs": """
        class Sum(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 1)

            def forward(self, a, b):
                return self.layer(a + b)

        batches = [{"a": x, "b": x.flip(0), "y": y} for x, y in regression]
        model = Sum()
        optimizer = torch.optim.Adagrad(model.parameters())
        for batch in batches:
            optimizer.zero_grad()
            out = model(batch["a"], batch["b"])
            loss = F.smooth_l1_loss(out.flatten(), batch["y"].flatten())
            loss.backward()
            optimizer.step()
            print(loss.item())
    """,
    "autoencoder": """
        model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))
        mse = nn.MSELoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for x, _ in regression:
            loss = mse(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """,
    "handed over": """
        def train(model, loader, optimizer, loss_fn, epochs=2):
            model.train()
            for _ in range(epochs):
                for x, c in loader:
                    pred = model(x)
                    loss = loss_fn(pred, c)

                    # Backpropagation
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()

        net = nn.Linear(4, 3)
        train(net, classes, torch.optim.SGD(net.parameters(), lr=0.1), nn.CrossEntropyLoss())
        model = net
    """,
    "a model for each fold": """
        for fold in range(2):
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(2):
                for x, y in regression:
                    y_hat = torch.tanh(model(x))
                    loss = (y_hat - y).pow(2).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                print(fold, epoch, loss.item())
    """,
    "over several lines, tabs and names in use": """
        model = nn.Linear(4, 3)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, (x, c) in enumerate(classes):
        \tif step == 3:
        \t\tcontinue
        \toptimizer.zero_grad()  # gradients of the step before
        \tprobabilities = model(
        \t\tx,  # the inputs
        \t)
        \tloss: torch.Tensor = criterion(
        \t\tprobabilities,
        \t\tc,
        \t)
        \tloss.backward()
        \toptimizer.step()
        \tprint(step, loss.item())
    """,
    "evaluation after each epoch": """
        model = nn.Linear(4, 3)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            for x, c in classes:
                out = model(x)
                loss = criterion(out, c)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            correct = 0
            with torch.no_grad():
                for x, c in classes:
                    out = model(x)
                    correct += (out.argmax(1) == c).sum().item()
            print(epoch, loss.item(), correct)
    """,
    "a function for each epoch": """
        def train(dataloader, model, loss_fn, optimizer):
            size = len(dataloader)
            model.train()
            for batch, (X, y) in enumerate(dataloader):
                X, y = X.to("cpu"), y.to("cpu")

                # Compute prediction error
                pred = model(X)
                loss = loss_fn(pred, y)

                # Backpropagation
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

                if batch % 2 == 0:
                    loss, current = loss.item(), (batch + 1) * len(X)
                    print(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")


        def test(dataloader, model, loss_fn):
            model.eval()
            with torch.no_grad():
                for X, y in dataloader:
                    pred = model(X)
                    print(loss_fn(pred, y).item())


        net = nn.Linear(4, 3)
        loss_fn = nn.CrossEntropyLoss()
        sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
        for t in range(3):
            train(classes, net, loss_fn, sgd)
            test(classes, net, loss_fn)
        model = net
    """,
    "an epoch with arguments, called in a function": """
        def train(args, model, device, train_loader, optimizer, epoch, limit=1.0):
            model.train()
            for batch_idx, (data, target) in enumerate(train_loader):
                data, target = data.to(device), target.to(device)
                optimizer.zero_grad()
                output = model(data)
                loss = F.nll_loss(F.log_softmax(output, dim=1), target)
                loss.backward()
                optimizer.step()
                print(epoch, batch_idx, loss.item())


        def main(args):
            model = nn.Linear(4, 3)
            optimizer = torch.optim.Adadelta(model.parameters(), lr=args["lr"])
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
            for epoch in range(1, 3):
                train(args, model, "cpu", classes, optimizer, epoch=epoch)
                scheduler.step()
            return model


        if __name__ == "__main__":
            model = main({"lr": 1.0})
    """,
    "a method for each epoch": """
        class Trainer:
            def __init__(self):
                self.model = nn.Linear(4, 3)
                self.criterion = nn.CrossEntropyLoss()
                self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

            def train_epoch(self):
                total = 0.0
                for x, c in classes:
                    self.optimizer.zero_grad()
                    loss = self.criterion(self.model(x), c)
                    loss.backward()
                    self.optimizer.step()
                    total += loss.item()
                return total

            def fit(self):
                for epoch in range(3):
                    print(epoch, self.train_epoch())


        trainer = Trainer()
        trainer.fit()
        model = trainer.model
    """,
    "several terms added up": """
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, c in classes:
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, c)
            loss = loss + 0.01 * logits.pow(2).mean()
            loss.backward()
            optimizer.step()
            print(loss.item())
    """,
}


class StockStep:
    """What ``fast_step`` promises, done with torch's own calls."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float | None = None,
    ) -> None:
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.max_grad_norm = max_grad_norm
        self.num_calls = 0

    def __call__(self, inputs: object, targets: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        self.optimizer.zero_grad()
        output = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        loss = self.loss_fn(output, targets)
        loss.backward()
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def script(style: str) -> str:
    return HEAD + textwrap.dedent(STYLES[style]) + TAIL.replace("MODEL", "model")


@pytest.mark.parametrize("style", STYLES)
def test_a_changed_script_computes_the_same(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[StockStep] = []

    def fast_step(*arguments: object, **options: object) -> StockStep:
        steps.append(StockStep(*arguments, **options))  # type: ignore[arg-type]
        return steps[-1]

    monkeypatch.setattr(breakeven, "fast_step", fast_step, raising=False)
    source = script(style)
    expected = output_of(source)
    assert not steps
    assert output_of(proposed(source).text) == expected
    # One for each model, before its loops: it is compiled when it is made.
    assert len(steps) == (2 if "fold" in style else 1)
    assert all(step.num_calls > 2 for step in steps)


@pytest.mark.parametrize("style", STYLES)
def test_other_lines_stay_byte_for_byte(style: str) -> None:
    source = script(style)
    changed = proposed(source).text
    matcher = difflib.SequenceMatcher(
        None, source.splitlines(True), changed.splitlines(True), autojunk=False
    )
    blocks = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    # The import, the step before the loop, and the step itself, which may be in pieces.
    inserted = sum(end - start for _, _, _, start, end in blocks)
    # An epoch's function and its call each have a line more that changes.
    is_handed_over = "epoch" in style and "after" not in style
    assert inserted == (5 if is_handed_over else 3)
    assert len(blocks) <= 9
    assert changed.endswith(TAIL.replace("MODEL", "model"))


def test_the_tutorial_in_full() -> None:
    patch = proposed(script("tutorial"))
    assert patch.change.line == 2
    assert patch.change.file == "train.py"
    assert patch.change.diff == textwrap.dedent("""\
        --- train.py
        +++ train.py
        @@ -1,4 +1,5 @@
         # A script as people write it.
        +import breakeven
         import torch
         import torch.nn.functional as F
         from torch import nn
        @@ -11,14 +12,11 @@
         model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
         loss_fn = nn.CrossEntropyLoss()
         optimizer = torch.optim.Adam(model.parameters())
        +step = breakeven.fast_step(model, loss_fn, optimizer)
         for epoch in range(3):
             running = 0.0
             for i, (x, c) in enumerate(classes):
        -        optimizer.zero_grad()
        -        out = model(x)
        -        loss = loss_fn(out, c)
        -        loss.backward()
        -        optimizer.step()
        +        loss = step(x, c)
                 running += loss.item()
             print(epoch, running)

    """).replace("running)\n\n", "running)\n \n")


@pytest.mark.parametrize(
    ("style", "lines"),
    [
        (
            "output squeezed",
            (
                "step = breakeven.fast_step(model, lambda output, y: "
                "F.mse_loss(output.squeeze(1), y, reduction='sum'), optimizer)",
                "    loss = step(x, y)",
            ),
        ),
        (
            "attributes of a trainer",
            (
                "        step = breakeven.fast_step(self.model, self.criterion, self.optimizer)",
                "                loss = step(inputs, labels)",
            ),
        ),
        ("criterion made on the spot", ("    step(x, y)",)),
        (
            "a dictionary for a batch, and two inputs",
            (
                "step = breakeven.fast_step(model, lambda output, target: "
                "F.smooth_l1_loss(output.flatten(), target.flatten()), optimizer)",
                '    loss = step((batch["a"], batch["b"]), batch["y"])',
            ),
        ),
        (
            "in a function, with a scheduler and clipping",
            (
                "    step = breakeven.fast_step(net, lambda output, targets: F.cross_entropy("
                "output, targets, label_smoothing=0.1), optimizer, max_grad_norm=limit)",
            ),
        ),
        (
            "over several lines, tabs and names in use",
            ("train_step = breakeven.fast_step(model, criterion, optimizer)",),
        ),
    ],
)
def test_the_lines_that_are_proposed(style: str, lines: tuple[str, ...]) -> None:
    changed = proposed(script(style)).text.splitlines()
    for line in lines:
        assert line in changed


LOOP = """\
import torch
from torch import nn
import torch.nn.functional as F

model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        print(loss.item())
"""
STEP = LOOP[LOOP.index("        optimizer.zero") : LOOP.index("        print")]
INDENTED = textwrap.indent(STEP, "    ")

# What is changed in the loop above, and what the reason says.
REFUSED = {
    "condition": (
        "criterion(out, y)",
        "criterion(out, y) if mode else y.sum()",
        "not a plain expression",
    ),
    "accumulation": (
        "        optimizer.step()\n",
        "        if epoch % 2:\n            optimizer.step()\n",
        "no optimizer.step() after line 13",
    ),
    "never cleared": ("        optimizer.zero_grad()\n", "", "not cleared"),
    "scaled": (
        "loss.backward()\n        optimizer.step()",
        "scaler.scale(loss).backward()\n        scaler.step(optimizer)",
        "no optimizer.step()",
    ),
    "scaler class": (
        "criterion = nn",
        "scaler = torch.amp.GradScaler()\ncriterion = nn",
        "line 7 scales gradients",
    ),
    "autocast": (
        "        out = model(x)\n        loss = criterion(out, y)\n",
        "        with torch.autocast('cpu'):\n            out = model(x)\n"
        "            loss = criterion(out, y)\n",
        "line 11 calls the model in another way",
    ),
    "autocast around the loop": (
        "for epoch in range(3):\n    for x, y in loader:\n" + STEP + "        print(loss.item())\n",
        "with torch.autocast('cpu'):\n    for x, y in loader:\n" + STEP,
        "with torch.autocast('cpu')",
    ),
    "retained graph": ("backward()", "backward(retain_graph=True)", "with arguments"),
    "two losses": (
        "loss.backward()\n",
        "loss.backward()\n        other.backward()\n",
        "several places: lines 13, 14",
    ),
    "two optimizers": (
        "optimizer.step()\n",
        "optimizer.step()\n        other.step()\n",
        "line 15 calls other.step()",
    ),
    "two clearings": (
        "optimizer.zero_grad()\n",
        "optimizer.zero_grad()\n        other.zero_grad()\n",
        "clears gradients of `other` too",
    ),
    "closure": ("optimizer.step()", "optimizer.step(closure)", "closure"),
    "L-BFGS": ("torch.optim.SGD", "torch.optim.LBFGS", "LBFGS"),
    "gradients are read": (
        "print(loss.item())",
        "print(model.weight.grad.norm())",
        "line 15 reads gradients",
    ),
    "gradients are changed": (
        "optimizer.step()",
        "for p in model.parameters():\n            p.grad.mul_(2)\n        optimizer.step()",
        "reads gradients",
    ),
    "norm is used": (
        "optimizer.step()",
        "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()",
        "cannot move line 14 past the update",
    ),
    "norm of another kind": (
        "optimizer.step()",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)\n        optimizer.step()",
        "to a constant norm",
    ),
    "clipped by value": (
        "optimizer.step()",
        "nn.utils.clip_grad_value_(model.parameters(), 1.0)\n        optimizer.step()",
        "clips single gradients",
    ),
    "skipped update": (
        "        loss.backward()\n",
        "        if torch.isnan(loss):\n            break\n        loss.backward()\n",
        "cannot move line 13 past the update",
    ),
    "unknown call in between": (
        "loss.backward()\n",
        "loss.backward()\n        monitor.check()\n",
        "cannot move line 14 past the update",
    ),
    "penalty over a list": (
        "criterion(out, y)",
        "criterion(out, y) + sum(p.norm() for p in ps)",
        "not a plain expression",
    ),
    "weight that changes": (
        "criterion(out, y)",
        "criterion(out, y) * epoch",
        "the loss reads epoch, y|`epoch`, which changes",
    ),
    "criterion that changes": (
        "        optimizer.zero_grad()\n",
        "        criterion = nn.CrossEntropyLoss(label_smoothing=epoch / 9)\n"
        "        optimizer.zero_grad()\n",
        "`criterion`, which changes",
    ),
    "attribute of the criterion that changes": (
        "        optimizer.zero_grad()\n",
        "        criterion.label_smoothing = epoch / 9\n        optimizer.zero_grad()\n",
        "`criterion`, which changes",
    ),
    "batch changed in between": (
        "loss = criterion",
        "x += 1\n        loss = criterion",
        "before the forward pass",
    ),
    "model made in the loop": (
        "        optimizer.zero_grad()\n",
        "        model = nn.Linear(4, 3)\n        optimizer.zero_grad()\n",
        "`model` changes in the loop",
    ),
    "thawed in the loop": (
        "    for x, y in loader:\n",
        "    model.bias.requires_grad = epoch > 1\n    for x, y in loader:\n",
        "freezes or thaws",
    ),
    "two models": (
        "model.parameters(), lr",
        "[*model.parameters(), *head.parameters()], lr",
        "other than one named model",
    ),
    "part of a model": ("model.parameters(), lr", "model.fc.parameters(), lr", "not computed"),
    "compiled already": (
        "criterion = nn",
        "model = torch.compile(model)\ncriterion = nn",
        "compiles by itself",
    ),
    "on several devices": (
        "model = nn.Linear(4, 3)",
        "model = nn.DataParallel(nn.Linear(4, 3))",
        "several devices",
    ),
    "one line": (
        STEP,
        "        optimizer.zero_grad(); out = model(x); loss = criterion(out, y)\n"
        "        loss.backward(); optimizer.step()\n",
        "more than one statement",
    ),
    "in an if": (STEP, "        if epoch:\n" + INDENTED, "directly in a loop"),
    "in a with": (STEP, "        with timer:\n" + INDENTED, "directly in a loop"),
    "no loop": (
        LOOP[LOOP.index("for epoch") :],
        "out = model(x)\ncriterion(out, y).backward()\noptimizer.step()\n",
        "directly in a loop",
    ),
    "no backward": ("loss.backward()", "accelerate(loss)", "does not call backward()"),
    "through a library": ("loss.backward()", "fabric.backward(loss)", "with arguments"),
    "not Python": ("for epoch in", "for epoch of", "cannot be parsed"),
    "a name in use": ("criterion = nn", "breakeven = 3\ncriterion = nn", "`breakeven`"),
    "done already": ("criterion = nn", "s = breakeven.fast_step()\ncriterion = nn", "already"),
}


def test_the_loop_that_the_refusals_start_from_is_accepted() -> None:
    assert "loss = step(x, y)" in proposed(LOOP).text


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_be_wrong_is_refused(name: str) -> None:
    old, new, reason = REFUSED[name]
    assert LOOP.count(old) >= 1
    patch = propose_fast_step(LOOP.replace(old, new, 1), file="train.py")
    assert isinstance(patch, NoPatch), patch.text
    assert any(part in patch.reason for part in reason.split("|")), patch.reason


# What the model and a loss function do not make up, but a function of the batch does: what is
# changed in the loop above, and why it is not of the simple form.
TAKEN = {
    "accuracy": (
        "print(loss.item())",
        "print((out.argmax(1) == y).sum())",
        "`out` is used in line 15",
    ),
    "output after the loop": (
        "print(loss.item())\n",
        "pass\nprint(out)\n",
        "`out` is used in line 16",
    ),
    "output in a function": (
        "print(loss.item())\n",
        "show()\ndef show():\n    print(out)\n",
        "`out` is used in line 17",
    ),
    "output is deleted": ("print(loss.item())", "del loss, out", "`out` is used in line 15"),
    "output is added to": ("print(loss.item())", "out += 1", "`out` is used in line 15"),
    "output from the step before": (
        "for x, y in loader:\n",
        "out = 0\n    for x, y in loader:\n        print(out)\n",
        "`out` is used in line 11",
    ),
    "output for some": (
        "print(loss.item())",
        "if epoch:\n            out = 3\n        print(out)",
        "`out` is used in line 17",
    ),
    "no target": ("criterion(out, y)", "torch.sum(out, 0)", "reads no target"),
    "penalty on parameters": (
        "criterion(out, y)",
        "criterion(out, y) + model.weight.norm()",
        "the loss uses `model`",
    ),
    "two targets": (
        "criterion(out, y)",
        "(criterion(out, y) * x.mean()).mean()",
        "the loss reads x, y",
    ),
    "model twice": ("out = model(x)", "out = model(x)\n        b = model(y)", "once more"),
    "model on its output": ("out = model(x)", "out = model(model(x))", "on its own output"),
    "keywords": ("model(x)", "model(input=x)", "with keywords"),
    "several results": ("out = model(x)", "out, state = model(x)", "another way than x"),
    "state from step to step": (
        "        optimizer.zero_grad()\n        out = model(x)\n",
        "        x = x + out.detach()\n        optimizer.zero_grad()\n        out = model(x)\n",
        "`out` is used in line 10",
    ),
    "drawn twice": (
        "loss = criterion(out, y)",
        "out = F.dropout(out)\n        loss = criterion(out, y) + out.mean()",
        "`out` enters the loss more than once",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_loop_of_another_form_has_its_loss_in_a_function(name: str) -> None:
    old, new, reason = TAKEN[name]
    text = proposed(LOOP.replace(old, new, 1)).text
    assert "def compute_loss(x" in text
    assert "breakeven.fast_step(model, compute_loss, optimizer, calls_model=True" in text
    # Where the loop reads the output, it gets it.
    assert ("loss, (out,) = step((x, y))" in text) == ("is used in" in reason)


EPOCHS = """\
import torch
from torch import nn

def train_epoch(model, optimizer, loader, criterion):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

def main(loader):
    net = nn.Linear(4, 3)
    mse = nn.MSELoss()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(9):
        train_epoch(net, sgd, loader, mse)

main([])
"""


def test_a_function_that_a_loop_calls_gets_the_step_handed_over() -> None:
    changed = proposed(EPOCHS).text
    for line in (
        "def train_epoch(model, optimizer, loader, criterion, *, step):",
        "    step = breakeven.fast_step(net, mse, sgd)",
        "        train_epoch(net, sgd, loader, mse, step=step)",
        "        loss = step(x, y)",
    ):
        assert line in changed.splitlines()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("def main", "train_epoch(0, 0, 0, 0)\n\ndef main", "line 19 calls `train_epoch`"),
        ("def main", "other = train_epoch\n\ndef main", "line 19 calls `train_epoch`"),
        ("main([])", "for fold in range(3):\n    main([])", "line 17 calls `train_epoch`"),
        ("loader, mse)", "*rest)", "line 17 calls `train_epoch`"),
        ("loader, criterion)", "loader, *criterion)", "line 17 calls `train_epoch`"),
        ("loader, mse)", "loader, nn.MSELoss())", "`criterion` in `train_epoch` is not one name"),
        (
            "    model.train()\n",
            "    model = model.to(0)\n    model.train()\n",
            "`model` in `train_epoch`",
        ),
        (
            "    model.train()\n    for x, y in loader:\n",
            "    model.train()\n    criterion = nn.L1Loss()\n    for x, y in loader:\n",
            "`criterion` in `train_epoch`",
        ),
        (
            "        train_",
            "        mse = nn.MSELoss()\n        train_",
            "`mse` changes in the loop",
        ),
        ("SGD(net.p", "SGD(other.p", "which model `sgd` updates"),
        (
            "model.train()\n    for x, y in loader:\n        optimizer.zero_grad()\n"
            "        loss = criterion(",
            "model.train()\n    kind = 'sum'\n    for x, y in loader:\n"
            "        optimizer.zero_grad()\n        loss = nn.MSELoss(reduction=kind)(",
            "`kind` exists only in `train_epoch`",
        ),
        (
            "    for epoch in range(9):\n",
            "    with torch.autocast('cpu'):\n     for epoch in range(9):\n",
            "autocast",
        ),
        (
            "        train_",
            "        net.weight.requires_grad = epoch > 3\n        train_",
            "freezes",
        ),
    ],
)
def test_a_step_that_cannot_be_handed_over_is_refused(old: str, new: str, reason: str) -> None:
    source = EPOCHS.replace(old, new, 1)
    patch = propose_fast_step(source, file="a.py")
    assert isinstance(patch, NoPatch), patch.text
    assert reason in patch.reason, patch.reason


def test_a_call_within_an_expression_gets_the_step_too() -> None:
    call = "train_epoch(net, sgd, loader, mse)"
    source = EPOCHS.replace(call, "[train_epoch(net, sgd, x, mse) for x in loader]")
    assert "[train_epoch(net, sgd, x, mse, step=step) for x in loader]" in proposed(source).text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train_epoch(net, sgd, loader, (mse))", "train_epoch(net, sgd, loader, (mse), step=step)"),
        ("(train_epoch(net, sgd, loader, mse))", "(train_epoch(net, sgd, loader, mse, step=step))"),
        (
            "train_epoch(net, sgd, loader, criterion=( (mse) ),)",
            "train_epoch(net, sgd, loader, criterion=( (mse) ), step=step,)",
        ),
        (
            "train_epoch(net, sgd, loader, (  # the loss\n            mse  # squared )\n        ))",
            "train_epoch(net, sgd, loader, (  # the loss\n            mse  # squared )\n        ), "
            "step=step)",
        ),
    ],
)
def test_the_step_follows_an_argument_in_parentheses(old: str, new: str) -> None:
    source = EPOCHS.replace("train_epoch(net, sgd, loader, mse)", old)
    assert new in proposed(source).text


@pytest.mark.parametrize("last", ["criterion", "criterion=(None)", "criterion: (object)"])
@pytest.mark.parametrize("end", ["", ",", " , "])
def test_the_step_follows_a_parameter_in_parentheses(last: str, end: str) -> None:
    source = EPOCHS.replace("loader, criterion):", f"loader, {last}{end}) -> (None):")
    assert f"loader, {last}, *, step{end}) -> (None):" in proposed(source).text


def test_a_batch_that_is_taken_apart_is_handed_over_as_one_input() -> None:
    source = LOOP.replace("for x, y in", "for batch in").replace("model(x)", "model(batch)")
    source = source.replace("(out, y)", "(out, batch[1])")
    assert "loss = step((batch,), batch[1])" in proposed(source).text


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("is_ended", [True, False])
@pytest.mark.parametrize("name", ["train.py", "my folder/train model.py"])
@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
def test_the_diff_is_one_that_patch_takes(
    tmp_path: Path, end: str, is_ended: bool, name: str
) -> None:
    # A blank line of spaces, an accent and a form feed: all must come through.
    source = "# café\n\x0c\n" + LOOP.replace("        loss.b", "   \n        loss.b")
    source = source.replace("\n", end) + ("" if is_ended else "# end")
    patch = proposed(source, name)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(source.encode())
    done = subprocess.run(
        ["patch", "-p0", "--binary"],
        cwd=tmp_path,
        input=patch.change.diff.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.read_bytes() == patch.text.encode()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_diff_is_one_that_git_takes(tmp_path: Path) -> None:
    patch = proposed(LOOP)
    file = tmp_path / "train.py"
    file.write_text(LOOP)
    subprocess.run(
        ["git", "apply", "-p0"], cwd=tmp_path, input=patch.change.diff.encode(), check=True
    )
    assert file.read_text() == patch.text


def test_the_import_follows_docstring_and_future() -> None:
    source = '"""Doc."""\nfrom __future__ import annotations\nfrom mine import *\n'
    body = LOOP[LOOP.index("model =") :].replace("torch.optim.", "").replace("nn.", "")
    changed = proposed(source + body).text.splitlines()
    assert changed[2:4] == ["import breakeven", "from mine import *"]


def test_an_import_that_is_there_is_used() -> None:
    assert proposed("import breakeven\n" + LOOP).text.count("import breakeven") == 1

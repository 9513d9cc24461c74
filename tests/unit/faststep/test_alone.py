"""`faststep` needs torch and numpy, and nothing of breakeven."""

from __future__ import annotations

import subprocess
import sys

import faststep

ALONE = """
import sys
for name in ("breakeven", "msgspec", "platformdirs", "rich", "tomlkit"):
    sys.modules[name] = None  # importing it fails
import faststep
assert "torch" not in sys.modules
import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = faststep.fast_step(model, torch.nn.MSELoss(), optimizer)
x = torch.randn(8, 2)
losses = [step(x, x.sum(1, keepdim=True)).item() for _ in range(3)]
print(losses[0] > losses[-1])
try:
    faststep.fast_step(model, torch.nn.MSELoss(), optimizer, engine="none")
except faststep.FastStepError as error:
    print(bool(error.message))
"""


def test_every_name_of_the_package_is_where_it_says() -> None:
    assert all(getattr(faststep, name) is not None for name in faststep.__all__)


def test_a_step_is_made_where_nothing_else_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True", "True"], done.stderr

"""The neural ODE's own solver, on the system that it is to learn."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
import torch

from breakeven.systems import script_path


@pytest.fixture
def script() -> ModuleType:
    """Return the script as a module of its own."""
    spec = spec_from_file_location("neural_ode_script", script_path("neural_ode.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_trajectory_is_that_of_the_lorenz_system(script: ModuleType) -> None:
    trajectory = script.generate_trajectory()
    assert trajectory.shape == (101, 3)
    assert trajectory.dtype == torch.float32
    # Runge and Kutta's classical method in steps of 0.0001, worked out apart.
    state = torch.tensor(script.INITIAL_STATE, dtype=torch.float64)
    for _ in range(1_000):
        k1 = script.lorenz(None, state)
        k2 = script.lorenz(None, state + 5e-5 * k1)
        k3 = script.lorenz(None, state + 5e-5 * k2)
        k4 = script.lorenz(None, state + 1e-4 * k3)
        state = state + 1e-4 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    assert torch.allclose(trajectory[10].double(), state, rtol=1e-6, atol=0)


def test_solver_that_reads_no_number_finds_the_same_states(script: ModuleType) -> None:
    script.MOST_TRIED = 24
    trajectory = script.generate_trajectory()
    step, times = script.make_step(script.lorenz), torch.tensor(script.TIMES)
    read = script.integrate(step, script.lorenz, trajectory[0], script.TIMES)
    unread, reached = script.integrate_unread(step, script.lorenz, trajectory[0], times)
    assert float(reached) == 1.0
    assert torch.allclose(unread, read, rtol=0, atol=1e-3)
    assert torch.allclose(read, trajectory, rtol=0, atol=0.5)


def test_too_few_steps_come_to_no_end(script: ModuleType) -> None:
    script.MOST_TRIED = 10
    start, times = torch.tensor(script.INITIAL_STATE), torch.tensor(script.TIMES)
    step = script.make_step(script.lorenz)
    _, reached = script.integrate_unread(step, script.lorenz, start, times)
    assert 0 < float(reached) < 1


def test_rounding_does_not_choose_the_steps(script: ModuleType) -> None:
    # The error of so short a first step is all rounding.
    script.FIRST_STEP = 0.001
    step, start = script.make_step(script.lorenz), torch.tensor(script.INITIAL_STATE)
    found = script.integrate(step, script.lorenz, start, script.TIMES)
    moved = script.integrate(step, script.lorenz, start * (1 + 1e-7), script.TIMES)
    assert torch.allclose(moved, found, rtol=0, atol=0.01)

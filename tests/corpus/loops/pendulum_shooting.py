# may find: LAUNCH_FLOOR, BATCH_SMALL, TIME_LOOP
"""Optimises a control sequence through a simulated pendulum (one trajectory, Euler steps)."""

import torch


class Pendulum:
    g, length, dt = 9.81, 1.0, 0.02

    def step(self, theta, omega, torque):
        alpha = -self.g / self.length * torch.sin(theta) - 0.1 * omega + torque
        omega = omega + self.dt * alpha
        return theta + self.dt * omega, omega

    def rollout(self, torques):
        theta = torch.zeros((), device=torques.device)
        omega = torch.zeros((), device=torques.device)
        cost = torch.zeros((), device=torques.device)
        for torque in torques.unbind():  # or: LAUNCH via SOLVER
            theta, omega = self.step(theta, omega, torque)
            cost = cost + (theta - 3.1416) ** 2 + 1e-3 * torque**2
        return cost


class Planner:
    def __init__(self, horizon=150):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.torques = torch.zeros(horizon, device=device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.torques], lr=0.2)
        self.system = Pendulum()

    def plan(self, iterations):
        for _ in range(iterations):
            self.optimizer.zero_grad()
            cost = self.system.rollout(self.torques)  # finds: LAUNCH via SOLVER
            cost.backward()
            self.optimizer.step()
        return cost.item()


print(Planner().plan(8))

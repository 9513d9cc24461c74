# may find: LAUNCH_FLOOR, BATCH_SMALL
"""The update of a soft actor-critic; replay lives on the device."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(i, o):
    return nn.Sequential(
        nn.Linear(i, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, o)
    )


class Agent:
    def __init__(self, obs=11, act=3, tau=0.005):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tau = tau
        self.critic, self.target = (
            nn.ModuleList([mlp(obs + act, 1), mlp(obs + act, 1)]).to(self.device) for _ in "ab"
        )
        self.target.load_state_dict(self.critic.state_dict())
        weights = self.critic.parameters()
        self.opt = torch.optim.Adam(weights, lr=3e-4, foreach=False)  # finds: OPT_LOOP

    def soft_update(self):
        for p, slow in zip(self.critic.parameters(), self.target.parameters()):  # or: OPT_LOOP
            slow.data.copy_(self.tau * p.data + (1 - self.tau) * slow.data)  # finds: OPT_LOOP

    def update(self, batch):
        sa, reward = batch
        with torch.no_grad():
            backup = reward + 0.99 * torch.min(self.target[0](sa), self.target[1](sa))
        loss = sum(F.mse_loss(q(sa), backup) for q in self.critic)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.soft_update()
        return loss.detach()


if __name__ == "__main__":
    agent = Agent()
    replay = torch.randn(5000, 14, device=agent.device)
    rewards = torch.randn(5000, 1, device=agent.device)
    for _ in range(60):
        pick = torch.randint(0, 5000, (256,), device=agent.device)
        loss = agent.update((replay[pick], rewards[pick]))
    print(loss.item())

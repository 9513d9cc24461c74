# finds in the step: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn as nn
import torch.optim as optim


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(4, 64)
        self.layer2 = nn.Linear(64, 64)
        self.layer3 = nn.Linear(64, 2)

    def forward(self, x):
        x = torch.relu(self.layer1(x))
        x = torch.relu(self.layer2(x))
        return self.layer3(x)


class Learner:
    batch_size = 16

    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.policy = DQN().to(self.device)
        self.optimizer = optim.AdamW(self.policy.parameters(), lr=1e-4, amsgrad=True)
        self.states = torch.randn(1000, 4, device=self.device)
        self.targets = torch.randn(1000, 2, device=self.device)

    def optimize_model(self):
        pick = torch.randint(0, 1000, (self.batch_size,), device=self.device)
        loss = nn.functional.smooth_l1_loss(self.policy(self.states[pick]), self.targets[pick])
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self.policy.parameters(), 100)
        self.optimizer.step()


learner = Learner()
for i in range(150):
    learner.optimize_model()

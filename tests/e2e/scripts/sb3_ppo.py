"""PPO of Stable-Baselines3 on a task made up here."""

import gymnasium
import numpy as np
from stable_baselines3 import PPO


class Drift(gymnasium.Env):
    """Keep a drifting point near the origin by pushing it left or right."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2).astype(np.float32)
        self.num_steps = 0
        return self.state, {}

    def step(self, action):
        position, speed = self.state
        speed = 0.9 * speed + 0.1 * (2 * action - 1) + 0.01 * self.np_random.normal()
        self.state = np.array([position + speed, speed], np.float32).clip(-10, 10)
        self.num_steps += 1
        return self.state, -abs(float(position)), False, self.num_steps == 50, {}


model = PPO("MlpPolicy", Drift(), n_steps=128, batch_size=32, n_epochs=4)
model.learn(100_000)

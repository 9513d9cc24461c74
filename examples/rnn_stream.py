"""A recurrent network watches a stream of frames and predicts the next one, frame by frame."""

import argparse
import time

import torch
from torch import nn

INPUT_SIZE = 8
HIDDEN_SIZE = 256


class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.i2o = nn.Linear(input_size + hidden_size, output_size)

    def forward(self, frame, hidden):
        combined = torch.cat((frame, hidden), dim=1)
        hidden = torch.tanh(self.i2h(combined))
        output = self.i2o(combined)
        return output, hidden

    def init_hidden(self, batch_size):
        return torch.zeros(batch_size, self.hidden_size)


class Stream:
    """An endless stream: each channel is a sine wave with a speed and a phase of its own."""

    def __init__(self, batch_size, device):
        self.speed = 0.05 + 0.2 * torch.rand(batch_size, INPUT_SIZE, device=device)
        self.phase = 6.3 * torch.rand(batch_size, INPUT_SIZE, device=device)

    def next_frame(self):
        self.phase += self.speed
        return torch.sin(self.phase)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=100, help="streams watched at once")
    parser.add_argument("--steps", type=int, default=3_000, help="frames to learn from")
    args = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"training on {device}")

    rnn = RNN(INPUT_SIZE, HIDDEN_SIZE, INPUT_SIZE).to(device)
    hidden = rnn.init_hidden(args.batch_size).to(device)
    stream = Stream(args.batch_size, device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(rnn.parameters(), lr=1e-3)

    frame = stream.next_frame()
    mean_loss = 1.0
    last_step, last_print = 0, time.time()
    for step in range(1, args.steps + 1):
        target = stream.next_frame()
        optimizer.zero_grad()
        output, hidden = rnn(frame, hidden.detach())
        loss = criterion(output, target)
        loss.backward()
        nn.utils.clip_grad_norm_(rnn.parameters(), 10)
        optimizer.step()

        mean_loss = 0.99 * mean_loss + 0.01 * loss.item()
        frame = target
        now = time.time()
        if now - last_print >= 1 or step == args.steps:
            speed = (step - last_step) / (now - last_print)
            print(f"step {step:5d}  loss {mean_loss:.4f}  {speed:.0f} it/s", flush=True)
            last_step, last_print = step, now


if __name__ == "__main__":
    main()

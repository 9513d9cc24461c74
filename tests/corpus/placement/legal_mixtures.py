# healthy
# looks like: PART_ON_CPU, NOT_ON_GPU
# may find: DATA_NOT_RESIDENT, LAUNCH_FLOOR, H2D_PAGEABLE, H2D_CREATE, H2D_SCALAR, SYNC_SHAPE, BATCH_SMALL, CPU_ROUNDTRIP, SYNC_METRICS, SYNC_ITEM, LOG_HEAVY, CONV_BIAS, CUDNN_BENCH_OFF
"""A line recogniser that keeps on the host what CUDA takes from there: lengths, targets of CTC,
indices, numbers, statistics of its hooks, and what a checkpoint computes again."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class Reader(nn.Module):
    def __init__(self, width=96, letters=40):
        super().__init__()
        self.columns = nn.Conv1d(32, width, 3, padding=1)
        self.mix = nn.Linear(width, width)
        self.memory = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.letters = nn.Linear(2 * width, letters)
        self.floor = torch.tensor(0.0)  # without dimensions: taken as a number

    def refine(self, x):
        places = torch.linspace(0, 1, 64)[torch.arange(x.shape[1])]
        return torch.maximum(self.mix(x) + places.to(x.device)[:, None], self.floor)

    def forward(self, lines, lengths):
        x = self.columns(lines).transpose(1, 2)
        x = checkpoint(self.refine, x, use_reentrant=False)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.memory(packed)[0], batch_first=True)
        return self.letters(x).log_softmax(2).transpose(0, 1)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Reader().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
    ctc = nn.CTCLoss()
    sizes = torch.zeros(model.mix.out_features)
    kept = torch.zeros(1000)

    def note(grad):
        sizes.add_(grad.abs().sum(1).cpu())

    model.mix.weight.register_hook(note)
    lines = torch.randn(1000, 32, 64)
    for step in range(12):
        chosen = torch.randint(0, 1000, (32,))
        lengths = torch.randint(40, 65, (32,))
        lengths[0] = 64
        scores = model(lines[chosen].to(device), lengths)
        targets = torch.randint(1, 40, (32, 10))
        loss = ctc(scores, targets, lengths, torch.full((32,), 10))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept[chosen[:1]] = loss.detach()
    print(kept.sum(), sizes.mean())


main()

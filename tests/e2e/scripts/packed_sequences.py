"""Sequences of several lengths; ``device`` as an argument puts the lengths there, which raises."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

lstm = nn.LSTM(4, 6, batch_first=True, bidirectional=True).cuda()
optimizer = torch.optim.Adam(lstm.parameters())
lengths = torch.tensor([5, 4, 2])
if "device" in sys.argv:
    lengths = lengths.cuda()
for _ in range(1_000):
    x = torch.randn(3, 5, 4, device="cuda")
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    output, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    optimizer.zero_grad()
    output.mean().backward()
    optimizer.step()

# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
import torch
from torch import nn


def collate(utterances):
    """Pad to the longest of the batch, so that each batch has a length of its own."""
    longest = max(u.size(-1) for u in utterances)
    return torch.stack([nn.functional.pad(u, (0, longest - u.size(-1))) for u in utterances])


class SpeechModel(nn.Module):
    def __init__(self, mels=40, width=96):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, width, 9, padding=4)
        self.conv2 = nn.Conv1d(width, width, 9, padding=4)
        self.head = nn.Conv1d(width, 30, 1)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        return self.head(torch.relu(self.conv2(x)))


def run(batches, device):
    torch.backends.cudnn.enabled = True
    torch.backends.cudnn.benchmark = True  # finds: CUDNN_BENCH_VARY
    model = SpeechModel().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in batches:
        logits = model(batch)
        loss = logits.logsumexp(1).mean() - logits[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(200, 500, (15, 8), generator=generator).tolist()
    batches = [collate([torch.randn(40, n) for n in row]).to(device) for row in lengths]
    print(run(batches, device))

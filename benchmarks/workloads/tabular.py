"""A perceptron with embeddings reads rows of a table of the size of the Adult census.

After the tabular learner of fastai (https://docs.fast.ai/tabular.model.html; Guo and Berkhahn,
"Entity Embeddings of Categorical Variables", 2016), written by hand as in the many notebooks that
follow it: a data set class of one's own that hands out rows, embeddings of the categories, hidden
layers of 200 and 100 with batch normalization, Adam. The table is random.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

# Values of each categorical column of the Adult census, one more for what is missing.
CARDINALITIES = (10, 17, 8, 16, 7, 6, 3, 43)
NUM_CONTINUOUS, NUM_ROWS, BATCH_SIZE = 5, 32_561, 64


class TabularDataset(Dataset):
    """The rows of a table."""

    def __init__(self):
        columns = [torch.randint(0, size, (NUM_ROWS,)) for size in CARDINALITIES]
        self.categorical = torch.stack(columns, dim=1)
        self.continuous = torch.randn(NUM_ROWS, NUM_CONTINUOUS)
        score = self.continuous[:, 0] + (self.categorical[:, 0] > 4).float() - 0.5
        self.labels = (score + torch.randn(NUM_ROWS) > 0).long()

    def __len__(self):
        return NUM_ROWS

    def __getitem__(self, index):
        return self.categorical[index], self.continuous[index], self.labels[index]


class TabularModel(nn.Module):
    """Embeddings and numbers, two hidden layers, two classes."""

    def __init__(self):
        super().__init__()
        sizes = [(size, min(600, round(1.6 * size**0.56))) for size in CARDINALITIES]
        self.embeds = nn.ModuleList(nn.Embedding(size, width) for size, width in sizes)
        self.bn_cont = nn.BatchNorm1d(NUM_CONTINUOUS)
        num_inputs = sum(width for _, width in sizes) + NUM_CONTINUOUS
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, 200, bias=False), nn.ReLU(), nn.BatchNorm1d(200),
            nn.Linear(200, 100, bias=False), nn.ReLU(), nn.BatchNorm1d(100),
            nn.Linear(100, 2),
        )  # fmt: skip

    def forward(self, x_cat, x_cont):
        """Return one logit per class."""
        x = torch.cat([embed(x_cat[:, i]) for i, embed in enumerate(self.embeds)], dim=1)
        x = torch.cat([x, self.bn_cont(x_cont)], dim=1)
        return self.layers(x)


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(TabularDataset(), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    model = TabularModel()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step = 0
    while step < args.steps:
        model.train()
        running_loss, num_batches = 0.0, 0
        for x_cat, x_cont, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x_cat, x_cont), y)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            num_batches += 1
            step += 1
            if step == args.steps:
                break
        print(f"step {step:5d}  loss {running_loss / num_batches:.4f}")


if __name__ == "__main__":
    main()

"""A graph convolutional network labels the nodes of a graph of Cora's size.

After pygcn (https://github.com/tkipf/pygcn; Kipf and Welling, "Semi-Supervised Classification with
Graph Convolutional Networks", ICLR 2017): its layers, sizes, optimizer and loop, with the pass over
the validation nodes that it makes after each update. Edges and features are random.
"""

import argparse
import math

import torch
import torch.nn.functional as F  # noqa: N812, everyone's name
from torch import nn, optim
from torch.nn.parameter import Parameter

NUM_NODES, NUM_EDGES, NUM_FEATURES, NUM_CLASSES = 2_708, 5_429, 1_433, 7
HIDDEN, DROPOUT = 16, 0.5


class GraphConvolution(nn.Module):
    """A linear layer, and then the sum over the neighbours."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = Parameter(torch.empty(in_features, out_features))
        self.bias = Parameter(torch.empty(out_features))
        stdv = 1.0 / math.sqrt(out_features)
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input, adj):
        """Return the features of the next layer."""
        support = torch.mm(input, self.weight)
        output = torch.spmm(adj, support)
        return output + self.bias


class GCN(nn.Module):
    """Two graph convolutions."""

    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        """Return log probabilities of the classes, for every node."""
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, adj)
        return F.log_softmax(x, dim=1)


def generate_graph():
    """Return a normalized sparse adjacency, bag-of-words features and labels."""
    edges = torch.randint(0, NUM_NODES, (2, NUM_EDGES))
    loops = torch.arange(NUM_NODES).expand(2, -1)
    indices = torch.cat((edges, edges.flip(0), loops), dim=1).unique(dim=1)
    values = 1.0 / torch.bincount(indices[0])[indices[0]]
    adj = torch.sparse_coo_tensor(
        indices, values, (NUM_NODES, NUM_NODES), is_coalesced=True, check_invariants=True
    )
    features = (torch.rand(NUM_NODES, NUM_FEATURES) < 0.0127).float()
    features = features / features.sum(dim=1, keepdim=True).clamp(min=1)
    return adj, features, torch.randint(0, NUM_CLASSES, (NUM_NODES,))


def accuracy(output, labels):
    """Return the share of the nodes with the right label."""
    return (output.max(1)[1] == labels).double().sum() / len(labels)


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(42)
    adj, features, labels = generate_graph()
    idx_train, idx_val = torch.arange(140), torch.arange(200, 500)
    model = GCN(NUM_FEATURES, HIDDEN, NUM_CLASSES, DROPOUT)
    optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    for epoch in range(1, args.steps + 1):
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()

        # Evaluate validation set performance separately, deactivates dropout.
        model.eval()
        output = model(features, adj)
        loss_val = F.nll_loss(output[idx_val], labels[idx_val])
        acc_val = accuracy(output[idx_val], labels[idx_val])
        print(
            f"epoch {epoch:04d}  loss_train {loss_train.item():.4f}  "
            f"loss_val {loss_val.item():.4f}  acc_val {acc_val.item():.4f}"
        )


if __name__ == "__main__":
    main()

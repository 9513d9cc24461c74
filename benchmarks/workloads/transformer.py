"""A small transformer learns to continue a text, character by character.

After nanoGPT with the settings that its README gives for a laptop without a GPU
(https://github.com/karpathy/nanoGPT, "I only have a macbook"): 128 channels, 4 heads, 64
characters of context, no dropout, AdamW, gradients clipped at 1. Two layers and batches of 16. The
text is random words.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812, everyone's name

VOCAB_SIZE, BLOCK_SIZE, BATCH_SIZE = 65, 64, 16
N_LAYER, N_HEAD, N_EMBD = 2, 4, 128


class CausalSelfAttention(nn.Module):
    """Each position attends to those before it."""

    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(N_EMBD, 3 * N_EMBD, bias=False)
        self.c_proj = nn.Linear(N_EMBD, N_EMBD, bias=False)

    def forward(self, x):
        """Return the attended values."""
        B, T, C = x.size()  # noqa: N806, batch size, sequence length, embedding
        q, k, v = self.c_attn(x).split(N_EMBD, dim=2)
        k = k.view(B, T, N_HEAD, C // N_HEAD).transpose(1, 2)
        q = q.view(B, T, N_HEAD, C // N_HEAD).transpose(1, 2)
        v = v.view(B, T, N_HEAD, C // N_HEAD).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(N_EMBD, bias=False)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(N_EMBD, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(N_EMBD, 4 * N_EMBD, bias=False),
            nn.GELU(),
            nn.Linear(4 * N_EMBD, N_EMBD, bias=False),
        )

    def forward(self, x):
        """Return the features of the next layer."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Embeddings, blocks, and a head that shares the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB_SIZE, N_EMBD)
        self.wpe = nn.Embedding(BLOCK_SIZE, N_EMBD)
        self.h = nn.ModuleList(Block() for _ in range(N_LAYER))
        self.ln_f = nn.LayerNorm(N_EMBD, bias=False)
        self.lm_head = nn.Linear(N_EMBD, VOCAB_SIZE, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets):
        """Return the logits and the loss."""
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


def generate_text(num_words):
    """Return the characters of words drawn from a small vocabulary."""
    words = [torch.randint(1, VOCAB_SIZE, (int(n),)) for n in torch.randint(2, 9, (200,))]
    space = torch.zeros(1, dtype=torch.long)
    chosen = torch.randint(0, len(words), (num_words,)).tolist()
    return torch.cat([part for number in chosen for part in (words[number], space)])


def get_batch(data):
    """Return pieces of the text, and the same one character later."""
    ix = torch.randint(len(data) - BLOCK_SIZE, (BATCH_SIZE,))
    x = torch.stack([data[i : i + BLOCK_SIZE] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK_SIZE] for i in ix])
    return x, y


def configure_optimizers(model):
    """Return an AdamW that decays the matrices only."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 1e-1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(1337)
    data = generate_text(50_000)
    model = GPT()
    optimizer = configure_optimizers(model)

    for iter_num in range(1, args.steps + 1):
        X, Y = get_batch(data)  # noqa: N806
        _, loss = model(X, Y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if iter_num % 10 == 0:
            print(f"iter {iter_num}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""A character language model: a small GPT learns sums such as "17+25=42;" from random crops."""

import argparse
import random

import torch
from torch import nn


def generate_text(num_sums):
    chance = random.Random(0)
    pairs = [(chance.randrange(100), chance.randrange(100)) for _ in range(num_sums)]
    return "".join(f"{a}+{b}={a + b};" for a, b in pairs)


class SelfAttention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.num_heads, width // self.num_heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, num_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocabulary_size, context, width, num_layers, num_heads):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary_size, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        return self.head(self.norm(self.blocks(x)))


def get_batch(tokens, batch_size, context, device):
    starts = torch.randint(0, len(tokens) - context - 1, (batch_size,)).tolist()
    x = torch.stack([tokens[i : i + context] for i in starts])
    y = torch.stack([tokens[i + 1 : i + 1 + context] for i in starts])
    return x.to(device), y.to(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = generate_text(20_000)
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(character) for character in text])

    model = TinyGPT(len(characters), args.context, width=128, num_layers=4, num_heads=4).to(device)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{num_parameters:,} parameters, {len(tokens):,} characters, on {device}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    for step in range(args.steps):
        x, y = get_batch(tokens, args.batch_size, args.context, device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

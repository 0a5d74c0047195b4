"""A small decoder-only transformer over bytes, after nanoGPT (https://github.com/karpathy/nanoGPT).

Attention is written out: the fused kernels choose another algorithm by device and size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 256


class Block(nn.Module):
    """Pre-norm causal self-attention and a two-layer perceptron, dropout after each."""

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.size = width // heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        future = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # Heads outermost, and as many as this rank has: a rank that holds some of the columns holds whole heads.
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, -1, 3, self.size)
        heads = qkv.shape[2]
        q, k, v = qkv.permute(3, 0, 2, 1, 4).reshape(3, batch * heads, length, self.size)
        scores = torch.baddbmm(self.mask[:length, :length].to(q.dtype), q, k.transpose(1, 2), alpha=self.size**-0.5)
        mixed = torch.bmm(scores.softmax(-1), v).view(batch, heads, length, self.size).transpose(1, 2)
        x = x + self.dropout(self.out(mixed.reshape(batch, length, heads * self.size)))
        return x + self.dropout(self.down(nn.functional.relu(self.up(self.mlp_norm(x)))))


class Transformer(nn.Module):
    """Logits of the next byte.

    Args:
        width: size of the residual stream.
        layers: number of blocks.
        heads: attention heads; divides ``width``.
        context: longest input, in bytes.
        dropout: probability, on embeddings and on what each branch adds.
    """

    def __init__(self, *, width: int, layers: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, context, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens``: int64, batch x length; returns logits, batch x length x 256."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

# A block of Llama and the gradients of all its parameters, as in tools/examples/llama_block.cpp.
import torch
from torch import nn
from torch.nn import functional as F


def rope(x):
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.outer(torch.arange(x.shape[-2]), rates)
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
                   for layer in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(64, eps=1e-5)
        self.attention = Attention(64, heads=4, kv_heads=2)
        self.mlp_norm = nn.RMSNorm(64, eps=1e-5)
        self.mlp = Mlp(64, 160)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


block = Block()
loss = block(torch.randn(2, 16, 64)).square().mean()
loss.backward()
gradients = [p.grad for p in block.parameters() if p.grad is not None]
print(f"loss {loss.item():.4f}, {len(gradients)} gradients")

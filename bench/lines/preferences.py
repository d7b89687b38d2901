# Direct preference optimisation with a frozen reference, as in tools/examples/preferences.cpp.
import copy

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, PROMPT, ANSWER, PAIRS = 12, 48, 4, 3, 8
TOKENS = PROMPT + ANSWER - 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 3, 4 * WIDTH, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, nn.LayerNorm(WIDTH),
                                            enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        x = self.tokens(ids) + self.positions.weight
        return self.head(self.blocks(x, mask, is_causal=True))


def log_probabilities(model, text):
    logits = model(text[:, :-1])[:, PROMPT - 1:]
    losses = F.cross_entropy(logits.transpose(1, 2), text[:, PROMPT:], reduction="none")
    return -losses.sum(1)


def batch():  # answers of even tokens are preferred to those of odd ones
    prompts = torch.randint(VOCABULARY, (PAIRS, PROMPT)).repeat(2, 1)
    answers = 2 * torch.randint(VOCABULARY // 2, (2 * PAIRS, ANSWER))
    answers[PAIRS:] += 1
    return torch.cat([prompts, answers], dim=1)


torch.manual_seed(1)
policy = Model()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01, weight_decay=0.0)
for step in range(40):
    text = batch()
    ratios = log_probabilities(policy, text) - log_probabilities(reference, text)
    loss = -F.logsigmoid(0.5 * (ratios[:PAIRS] - ratios[PAIRS:])).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"preferences: loss {loss.item():.4f} after 40 steps, 0.6931 before")
raise SystemExit(loss.item() >= 0.2)

# A two-layer perceptron that learns XOR, as in tools/examples/perceptron.cpp.
import torch
from torch import nn


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(2, 16)
        self.out = nn.Linear(16, 1, bias=False)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


torch.manual_seed(1)
model = Perceptron()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
target = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
for step in range(400):
    loss = nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"xor: loss {loss.item():.6f} after 400 steps")
raise SystemExit(loss.item() >= 1e-3)

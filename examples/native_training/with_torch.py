"""Train in PyTorch's own loop, with `torch.optim`: `attention.layer` is a member of an `nn.Module`."""

import torch
from task import D, H, T, V, W_digits, W_head, W_places, epochs, unseen
from torch import nn

import mha


class Model(nn.Module):
    """Digits (B, T) to scores (B, T, V): an embedding of digits and places, attention, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = nn.Embedding.from_pretrained(torch.tensor(W_digits), freeze=False)
        self.places = nn.Embedding.from_pretrained(torch.tensor(W_places), freeze=False)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight.data = torch.tensor(W_head.T)
        self.attention = mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="torch").layer

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        X = self.digits(digits) + self.places(torch.arange(T))  # (B, T, D)
        return self.head(self.attention(X, X, X))  # (B, T, V)


model = Model()
adam = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in torch.tensor(epochs):
    losses = []
    for digits in epoch:
        loss = nn.functional.cross_entropy(model(digits).mT, digits.flip(1))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    print(f"loss: {sum(losses) / len(losses):.4f}")
scores = model(torch.tensor(unseen)).numpy(force=True)
print(f"accuracy: {(scores.argmax(-1) == unseen[:, ::-1]).mean():.4f}")

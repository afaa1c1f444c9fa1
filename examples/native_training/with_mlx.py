"""Train in MLX's own loop, with `mlx.optimizers`: `attention.layer` is a member of an `nn.Module`."""

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from task import D, H, T, V, W_digits, W_head, W_places, epochs, unseen

import mha


class Model(nn.Module):
    """Digits (B, T) to scores (B, T, V): an embedding of digits and places, attention, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.digits, self.places, self.head = nn.Embedding(V, D), nn.Embedding(T, D), nn.Linear(D, V, bias=False)
        self.digits.weight, self.places.weight = mx.array(W_digits), mx.array(W_places)
        self.head.weight = mx.array(W_head.T)
        self.attention = mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="mlx").layer

    def __call__(self, digits: mx.array) -> mx.array:
        X = self.digits(digits) + self.places(mx.arange(T))  # (B, T, D)
        return self.head(self.attention(X, X, X))  # (B, T, V)


model, adam = Model(), optimizers.Adam(3e-3, bias_correction=True)  # which MLX else leaves out
loss_and_gradients = nn.value_and_grad(
    model, lambda digits: nn.losses.cross_entropy(model(digits), digits[:, ::-1], reduction="mean")
)
for epoch in mx.array(epochs):
    losses = []
    for digits in epoch:
        loss, gradients = loss_and_gradients(digits)
        adam.update(model, gradients)
        mx.eval(model.parameters(), adam.state)
        losses.append(loss.item())
    print(f"loss: {sum(losses) / len(losses):.4f}")
scores = np.array(model(mx.array(unseen)))
print(f"accuracy: {(scores.argmax(-1) == unseen[:, ::-1]).mean():.4f}")

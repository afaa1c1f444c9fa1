"""Train a Flax module in a loop with `optax`: `attention.layer` is a field of an `nn.Module`."""

import jax
import optax
from flax import linen as nn
from task import D, H, T, V, W_digits, W_head, W_places, epochs, unseen

import mha


class Model(nn.Module):
    """Digits (B, T) to scores (B, T, V): an embedding of digits and places, attention, and a dense layer."""

    digits: nn.Module = nn.Embed(V, D)
    places: nn.Module = nn.Embed(T, D)
    head: nn.Module = nn.Dense(V, use_bias=False)
    attention: nn.Module = mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="jax").layer

    def __call__(self, digits: jax.Array) -> jax.Array:
        X = self.digits(digits) + self.places(jax.numpy.arange(T))  # (B, T, D)
        return self.head(self.attention(X, X, X))  # (B, T, V)


model, adam, cross_entropy = Model(), optax.adam(3e-3), optax.softmax_cross_entropy_with_integer_labels
own = {"digits": {"embedding": W_digits}, "places": {"embedding": W_places}, "head": {"kernel": W_head}}
weights = {"params": own | {"attention": model.attention.variables["params"]}}
state = adam.init(weights)
loss_and_gradients = jax.jit(
    jax.value_and_grad(lambda weights, digits: cross_entropy(model.apply(weights, digits), digits[:, ::-1]).mean())
)
for epoch in epochs:
    losses = []
    for digits in epoch:
        loss, gradients = loss_and_gradients(weights, digits)
        updates, state = adam.update(gradients, state)
        weights = optax.apply_updates(weights, updates)
        losses.append(loss.item())
    print(f"loss: {sum(losses) / len(losses):.4f}")
scores = jax.device_get(model.apply(weights, unseen))
print(f"accuracy: {(scores.argmax(-1) == unseen[:, ::-1]).mean():.4f}")

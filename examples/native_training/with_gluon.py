"""Train in Gluon's own loop, with `gluon.Trainer`: `attention.layer` is a member of an `nn.Block`."""

import mha  # isort: skip
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn
from task import D, H, T, V, W_digits, W_head, W_places, epochs, unseen

npx.set_np()


class Model(nn.Block):
    """Digits (B, T) to scores (B, T, V): an embedding of digits and places, attention, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = nn.Embedding(V, D, weight_initializer=init.Constant(W_digits))
        self.places = nn.Embedding(T, D, weight_initializer=init.Constant(W_places))
        self.head = nn.Dense(V, flatten=False, use_bias=False, weight_initializer=init.Constant(W_head.T))
        self.initialize()  # before the layer is added, which has its weights already
        self.attention = mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="mxnet").layer

    def forward(self, digits: np.ndarray) -> np.ndarray:
        X = self.digits(digits) + self.places(np.arange(T))  # (B, T, D)
        return self.head(self.attention(X, X, X))  # (B, T, V)


model = Model()
adam, cross_entropy = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 3e-3}), gluon.loss.SoftmaxCELoss()
for epoch in np.array(epochs):
    losses = []
    for digits in epoch:
        with autograd.record():
            loss = cross_entropy(model(digits), np.flip(digits, 1)).mean()
        loss.backward()
        adam.step(1)
        losses.append(loss.item())
    print(f"loss: {sum(losses) / len(losses):.4f}")
scores = model(np.array(unseen)).asnumpy()
print(f"accuracy: {(scores.argmax(-1) == unseen[:, ::-1]).mean():.4f}")

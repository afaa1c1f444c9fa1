"""Train in Keras's own loop, `fit`: `attention.layer` is a member of a `keras.Model`."""

import keras
from keras import layers
from keras.initializers import Constant
from task import B, D, H, T, V, W_digits, W_head, W_places, epochs, unseen

import mha


class Model(keras.Model):
    """Digits (B, T) to scores (B, T, V): an embedding of digits and places, attention, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        # No Embedding: Keras's Adam squares its gradients digit by digit, before it adds them up, and steps too far.
        self.digits = layers.Dense(D, use_bias=False, kernel_initializer=Constant(W_digits))
        self.places = layers.Embedding(T, D, embeddings_initializer=Constant(W_places))
        self.head = layers.Dense(V, use_bias=False, kernel_initializer=Constant(W_head))
        self.attention = mha.MultiHeadAttention(D, H, bias=True, seed=0, backend="tensorflow").layer

    def call(self, digits: keras.KerasTensor) -> keras.KerasTensor:
        X = self.digits(keras.ops.one_hot(digits, V)) + self.places(keras.ops.arange(T))  # (B, T, D)
        return self.head(self.attention(X, X, X))  # (B, T, V)


model = Model()
adam = keras.optimizers.Adam(3e-3, epsilon=1e-8)
model.compile(adam, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
for digits in epochs.reshape(-1, 20 * B, T):  # (20 * B, T)
    fitted = model.fit(digits, digits[:, ::-1], batch_size=B, shuffle=False, verbose=0)
    print(f"loss: {fitted.history['loss'][0]:.4f}")
scores = model.predict(unseen, verbose=0)
print(f"accuracy: {(scores.argmax(-1) == unseen[:, ::-1]).mean():.4f}")

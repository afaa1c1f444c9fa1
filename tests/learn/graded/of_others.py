"""Mistakes in JAX and TensorFlow."""

from .mistaken import AXIS, LONG, one

IN_JAX = (
    one("jax_book", {1: LONG}, "[None, :] < valid_len[:, None]", "[None, :] <= valid_len[:, None]"),
    one(
        "jax_nnx",
        {7: "keys are detached"},
        "transpose_qkv(self.W_k(keys), self.num_heads)",
        "jax.lax.stop_gradient(transpose_qkv(self.W_k(keys), self.num_heads))",
    ),
    one(
        "jax_nnx",
        {4: AXIS},
        "jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)",
        "jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-2)",
    ),
)

IN_TENSORFLOW = (
    one("tensorflow_book", {1: LONG}, "[None, :] < tf.cast(", "[None, :] <= tf.cast("),
    one("tensorflow_book", {1: "weak mask fill"}, "value=-1e6", "value=-20.0"),
    one(
        "tensorflow_einsum",
        {7: "queries are detached"},
        "q = transpose_qkv(self.W_q(queries), self.num_heads)",
        "q = tf.stop_gradient(transpose_qkv(self.W_q(queries), self.num_heads))",
    ),
)

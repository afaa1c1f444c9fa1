"""Mistakes in JAX and TensorFlow."""

from .mistaken import AXIS, LONG, of_style

IN_JAX = (
    *of_style(
        "jax_book",
        ({1: LONG}, "[None, :] < valid_len[:, None]", "[None, :] <= valid_len[:, None]"),
    ),
    *of_style(
        "jax_nnx",
        (
            {7: "keys are detached"},
            "transpose_qkv(self.W_k(keys), self.num_heads)",
            "jax.lax.stop_gradient(transpose_qkv(self.W_k(keys), self.num_heads))",
        ),
        (
            {4: AXIS},
            "jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)",
            "jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-2)",
        ),
    ),
)

IN_TENSORFLOW = (
    *of_style(
        "tensorflow_book",
        ({1: LONG}, "[None, :] < tf.cast(", "[None, :] <= tf.cast("),
        ({1: "weak mask fill"}, "value=-1e6", "value=-20.0"),
    ),
    *of_style(
        "tensorflow_einsum",
        (
            {7: "queries are detached"},
            "q = transpose_qkv(self.W_q(queries), self.num_heads)",
            "q = tf.stop_gradient(transpose_qkv(self.W_q(queries), self.num_heads))",
        ),
    ),
)

"""Mistakes in JAX and TensorFlow."""

from .mistaken import AXIS, LONG, MERGE, NO_SCALE, OF_D, SPLIT, TILED, one

IN_JAX = (
    one("jax_book", {1: LONG}, "[None, :] < valid_len[:, None]", "[None, :] <= valid_len[:, None]"),
    one("jax_book", {2: NO_SCALE}, " / jnp.sqrt(d)", ""),
    one(
        "jax_book",
        {3: SPLIT},
        "        X = jnp.transpose(X, (0, 2, 1, 3))\n        return X.reshape(-1, X.shape[2], X.shape[3])",
        "        return X.reshape(-1, X.shape[1], X.shape[3])",
    ),
    one(
        "jax_book",
        {6: TILED},
        "jnp.repeat(valid_lens, self.num_heads, axis=0)",
        "jnp.concatenate([valid_lens] * self.num_heads)",
    ),
    one(
        "jax_book",
        {4: "W_q is used for W_k, too"},
        "self.transpose_qkv(self.W_k(keys))",
        "self.transpose_qkv(self.W_q(keys) + 0 * self.W_k(keys))",
    ),
    one("jax_nnx", {4: "the scale lacks its root"}, "/ jnp.sqrt(q.shape[-1])", "/ q.shape[-1]"),
    one("jax_nnx", {6: "causal order is reversed"}, "jnp.tril", "jnp.triu"),
    one(
        "jax_nnx",
        {1: "hidden keys are blanked after the softmax"},
        "        X = jnp.where(jnp.arange(X.shape[-1]) < lens, X, jnp.finfo(X.dtype).min)\n",
        "        return jax.nn.softmax(X, axis=-1) * (jnp.arange(X.shape[-1]) < lens)\n",
    ),
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
    one("tensorflow_book", {2: NO_SCALE}, " / tf.math.sqrt(tf.cast(d, dtype=tf.float32))", ""),
    one(
        "tensorflow_book",
        {3: MERGE},
        "    X = tf.transpose(X, perm=(0, 2, 1, 3))\n    return tf.reshape(X, shape=(X.shape[0], X.shape[1], -1))",
        "    return tf.reshape(X, shape=(X.shape[0], X.shape[2], -1))",
    ),
    one(
        "tensorflow_book",
        {6: TILED},
        "tf.repeat(valid_lens, repeats=self.num_heads, axis=0)",
        "tf.concat([valid_lens] * self.num_heads, 0)",
    ),
    one(
        "tensorflow_einsum",
        {6: "the mask is inverted"},
        "(mask if mask.shape.rank == 2 else mask[:, None])",
        "~(mask if mask.shape.rank == 2 else mask[:, None])",
    ),
    one(
        "tensorflow_einsum",
        {4: "Q and K are swapped"},
        "self.W_q(queries)",
        "self.W_k(queries)",
        "self.W_k(keys)",
        "self.W_q(keys)",
    ),
    one(
        "tensorflow_einsum",
        {7: "queries are detached"},
        "q = transpose_qkv(self.W_q(queries), self.num_heads)",
        "q = tf.stop_gradient(transpose_qkv(self.W_q(queries), self.num_heads))",
    ),
    one("tensorflow_einsum", {5: OF_D}, "tf.sqrt(float(q.shape[-1]))", "tf.sqrt(float(queries.shape[-1]))"),
)

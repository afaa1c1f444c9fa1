"""Mistakes in NumPy."""

from .mistaken import AXIS, IGNORED, LATE, LONG, MERGE, NO_SCALE, OF_D, SPLIT, TILED, of_style

IN_NUMPY = (
    *of_style(
        "numpy_layer",
        (
            {1: LONG},
            "np.arange(X.shape[-1]) < lens[..., None], X, -1e6",
            "np.arange(X.shape[-1]) <= lens[..., None], X, -1e6",
        ),
        (
            {1: "the mask is inverted"},
            "np.where(np.arange(X.shape[-1]) < lens[..., None], X, -1e6)",
            "np.where(np.arange(X.shape[-1]) >= lens[..., None], X, -1e6)",
        ),
        ({1: IGNORED}, "        X = np.where(", "        np.where("),
        ({1: "the softmax overflows"}, "np.exp(X - X.max(axis=-1, keepdims=True))", "np.exp(X)"),
        (
            {1: AXIS},
            "    e = np.exp(X - X.max(axis=-1, keepdims=True))\n    return e / e.sum(axis=-1, keepdims=True)",
            "    e = np.exp(X - X.max(axis=1, keepdims=True))\n    return e / e.sum(axis=1, keepdims=True)",
        ),
        ({2: NO_SCALE}, "keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])", "keys.transpose(0, 2, 1)"),
        (
            {2: "the scale lacks its root"},
            "keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])",
            "keys.transpose(0, 2, 1) / queries.shape[-1]",
        ),
        (
            {3: SPLIT},
            "X.reshape(B, T, num_heads, -1).transpose(0, 2, 1, 3).reshape(B * num_heads, T, -1)",
            "X.reshape(B * num_heads, T, -1)",
        ),
        (
            {3: MERGE},
            "X.reshape(-1, num_heads, T, d).transpose(0, 2, 1, 3).reshape(-1, T, num_heads * d)",
            "X.reshape(-1, T, num_heads * d)",
        ),
        ({5: OF_D}, "/ np.sqrt(q.shape[-1])\n        Q, K", "/ np.sqrt(queries.shape[-1])\n        Q, K"),
        (
            {4: "Q and K are swapped", 8: "raised"},
            'self.dense(queries, "q")',
            'self.dense(queries, "k")',
            'self.dense(keys, "k")',
            'self.dense(keys, "q")',
        ),
        ({4: "W_o is left out"}, 'output = self.dense(merged, "o")', "output = merged"),
        ({4: "W_k is used for W_v, too"}, 'self.dense(values, "v")', 'self.dense(values, "k")'),
        (
            {6: TILED},
            "np.repeat(np.arange(K) < lens[..., None], H, 0)",
            "np.tile(np.arange(K) < lens[..., None], (H, 1, 1))",
        ),
        (
            {6: "causal order is reversed", 9: "causal order is ignored"},
            "np.arange(K) <= start + np.arange(Q)[:, None]",
            "np.arange(K) >= start + np.arange(Q)[:, None]",
            "if causal:",
            "if causal and cache is None:",
        ),
        (
            {6: "the mask is inverted"},
            "(mask if mask.ndim == 2 else np.repeat(mask, H, 0))",
            "~(mask if mask.ndim == 2 else np.repeat(mask, H, 0))",
        ),
        ({7: "the scale is forgotten in gradients"}, "by_scores = by_scores / np.sqrt(q.shape[-1])", "pass"),
        (
            {7: "the gradient of the softmax lacks its sum"},
            "weights * (by_weights - (by_weights * weights).sum(-1, keepdims=True))",
            "weights * by_weights",
        ),
        (
            {8: "heads of keys are tiled, not repeated"},
            "k, v = np.repeat(k, H // G, 0), np.repeat(v, H // G, 0)",
            "k, v = (np.tile(X.reshape(-1, G, *X.shape[1:]), (1, H // G, 1, 1)).reshape(-1, *X.shape[1:]) for X in (k, v))",
        ),
        (
            {8: "the rotation goes backwards"},
            "a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)",
            "a * np.cos(angles) + b * np.sin(angles), b * np.cos(angles) - a * np.sin(angles)",
        ),
        ({9: "causal order begins again at every offset"}, "start + np.arange(Q)[:, None]", "np.arange(Q)[:, None]"),
        (
            {1: LONG, 2: NO_SCALE},
            "np.arange(X.shape[-1]) < lens[..., None], X, -1e6",
            "np.arange(X.shape[-1]) <= lens[..., None], X, -1e6",
            "keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])",
            "keys.transpose(0, 2, 1)",
        ),
    ),
    *of_style(
        "numpy_functions",
        (
            {2: "the scale is applied twice"},
            "/ np.sqrt(queries.shape[-1])",
            "/ np.sqrt(queries.shape[-1]) / np.sqrt(keys.shape[-1])",
        ),
        (
            {1: LATE},
            "    return e / np.maximum(e.sum(-1, keepdims=True), 1e-30)",
            "    return e / n",
            "    e = np.exp(X)\n",
            "    e = np.exp(X)\n    n = e.sum(-1, keepdims=True)\n",
        ),
        (
            {3: "the heads stay behind the tokens"},
            "np.concatenate(np.split(X[:, None], num_heads, axis=-1), axis=1)",
            "X.reshape(*X.shape[:2], num_heads, -1)",
        ),
        (
            {5: "the heads are added up"},
            "np.concatenate(heads, axis=-1) @ W_o",
            "np.concatenate([sum(heads)] * num_heads, axis=-1) @ W_o",
        ),
        ({4: "keys are taken for values"}, "transpose_qkv(values @ W_v", "transpose_qkv(keys @ W_v"),
        (
            {1: "missing", 2: NO_SCALE},
            "def masked_softmax(X, valid_lens=None):",
            "def masked_softmax(X, valid_lens=None):\n    raise NotImplementedError",
            " / np.sqrt(queries.shape[-1])",
            "",
        ),
        ({4: "there is more than attention"}, "axis=-1) @ W_o", "axis=-1) @ W_o + queries"),
        (
            {5: "the heads are merged in reverse"},
            "dot_product_attention(q[:, h], k[:, h], v[:, h], valid_lens)[0] for h in range(num_heads)",
            "dot_product_attention(q[:, h], k[:, h], v[:, h], valid_lens)[0] for h in reversed(range(num_heads))",
        ),
        ({4: "W_o.kernel is not transposed"}, "axis=-1) @ W_o", "axis=-1) @ W_o.T"),
    ),
    *of_style(
        "numpy_layer",
        (
            {1: "1 is added to the sum of the softmax"},
            "return e / e.sum(axis=-1, keepdims=True)",
            "return e / (1 + e.sum(axis=-1, keepdims=True))",
        ),
        ({1: "weak mask fill"}, "X, -1e6)", "X, -100)"),
        (
            {2: "keys are pooled, not values"},
            "return self.attention_weights @ values",
            "return self.attention_weights @ keys",
        ),
        (
            {4: "every bias is dropped"},
            'return X + getattr(self, f"b_{letter}") if hasattr(self, f"b_{letter}") else X',
            "return X",
        ),
        (
            {7: "gradients of kernels are transposed"},
            'np.einsum("bti,bto->io", queries, by_q)',
            'np.einsum("bti,bto->oi", queries, by_q)',
        ),
        ({8: "another base"}, "base ** (-np.arange(half) / half)", "10.0 ** (-np.arange(half) / half)"),
        ({7: "a projection gets no gradient"}, '            "W_q": np.einsum("bti,bto->io", queries, by_q),\n', ""),
        (
            {6: f"{TILED} and the mask is inverted"},
            "np.repeat(np.arange(K) < lens[..., None], H, 0)",
            "np.tile(np.arange(K) < lens[..., None], (H, 1, 1))",
            "(mask if mask.ndim == 2 else np.repeat(mask, H, 0))",
            "~(mask if mask.ndim == 2 else np.repeat(mask, H, 0))",
        ),
        (
            {1: AXIS},
            "X.max(axis=-1, keepdims=True)",
            "X.max(axis=0, keepdims=True)",
            "e.sum(axis=-1, keepdims=True)",
            "e.sum(axis=0, keepdims=True)",
        ),
    ),
)

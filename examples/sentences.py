"""Run a BERT on sentences: for `minilm.py` and `pruning.py`, with the model of `mha heads`.

Letters: B sentences, T tokens of the longest sentence, H heads, D width.
"""

import numpy as np

from mha.learn.heads.bert import Encoder


def states(
    model: Encoder, tokens: np.ndarray, valid: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """The last hidden states (B, T, D), each attention layer's output (B, T, D), and its weights (B, H, T, T).

    tokens: numbers (B, T); valid: booleans (B, T), False = padding, which comes last.
    """
    X, outputs, weights = model.embedded(tokens), [], []
    for number, attention in enumerate(model.attentions):
        output, weight = attention(X, X, X, valid.sum(1), return_weights=True)  # (B, T, D), (B, H, T, T)
        X = model.after(number, X, output)
        outputs.append(output)
        weights.append(weight)
    return X, outputs, weights


def sentence_embeddings(X: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The means of the last hidden states (B, T, D) over the valid tokens (B, T), scaled to length 1: (B, D)."""
    means = np.where(valid[:, :, None], X, 0).sum(1) / valid.sum(1, keepdims=True).astype(X.dtype)  # (B, D)
    return means / np.linalg.norm(means, axis=1, keepdims=True)

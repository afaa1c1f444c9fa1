"""Compute the vectors of single calls without `mha`: put your code in place of `computed`; docs/vectors.md."""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open


def computed(config, call, arrays):
    """Your code: some or all of a file's results, by their names in the file."""
    H = config["num_heads"]

    def project(name, X):
        return X @ arrays[f"weights/{name}.kernel"] + arrays.get(f"weights/{name}.bias", 0)

    def split(X):
        return X.reshape(*X.shape[:2], H, -1).swapaxes(1, 2)  # (B, H, T, d)

    q, k, v = (project(f"W_{name[0]}", arrays[f"inputs/{name}"]) for name in ("queries", "keys", "values"))
    scores = split(q) @ split(k).swapaxes(2, 3) / q.dtype.type(np.sqrt(config["key_dim"]))  # (B, H, Q, K)
    B, _, Q, K = scores.shape
    sees, key = np.ones((B, 1, Q, K), bool), np.arange(K)
    if "call/valid_lens" in arrays:
        sees = sees & (key < arrays["call/valid_lens"].reshape(B, 1, -1, 1))  # (B, 1, 1 or Q, 1)
    if "call/mask" in arrays:
        mask = arrays["call/mask"]
        sees = sees & (mask[:, None] if mask.ndim == 3 else mask)
    if call["causal"]:
        offset = arrays.get("call/offset", np.array([call.get("offset")]))
        sees = sees & (key <= offset.reshape(-1, 1, 1, 1) + np.arange(Q)[:, None])  # (B or 1, 1, 1, 1)
    scores = np.where(sees, scores, -1e9)
    shares = np.exp(scores - scores.max(3, keepdims=True)) * sees
    weights = shares / np.maximum(shares.sum(3, keepdims=True), 1e-9)  # 0 for a query that sees no key
    merged = (weights @ split(v)).swapaxes(1, 2).reshape(B, Q, -1)  # (B, Q, H*dv)
    return {"steps/W_q": q, "attention_weights": weights, "steps/merged": merged, "output": project("W_o", merged)}


def can(config, arrays):
    """True if `computed` can compute a file."""
    options = "scale", "softcap", "window", "chunk", "rotary", "qk_norm", "value_norm", "temperature", "sinks"
    on = [name for name in (*options, "output_gate") if config.get(name)]
    plain = config["pooling"] == "dot" and config["num_heads"] == config["num_key_value_heads"] and not on
    known = config["dtype"] in ("float32", "float64") and not np.isnan(arrays["inputs/keys"]).any()
    return plain and known and not {"call/score_bias", "call/head_gates", "call/segments"} & set(arrays)


def ratio(found, expected, bound):
    """Error by bound: 0 without an error; infinite if none is allowed, or if only one is NaN or infinite."""
    if found.shape != expected.shape:
        return np.inf
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    error = np.abs(found.astype("float64") - expected)[~same].max(initial=0)
    return 0.0 if error == 0 else error / bound if bound and error < np.inf else np.inf


worst = {}
for path in sorted(Path("vectors").glob("*.safetensors")):
    with safe_open(path, "numpy") as file:
        texts, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config, call, bounds = (json.loads(texts[name]) for name in ("config", "call", "bounds"))
    if texts["layout"] == "1" and can(config, arrays):
        results = computed(config, call, arrays)
        ratios = {name: ratio(X, arrays[name], bounds[name]) for name, X in results.items()}
        worst[path.stem] = max(ratios.values())
        print(path.stem, next((f"WRONG: {name}" for name in ratios if ratios[name] > 1), f"{worst[path.stem]:.2f}"))

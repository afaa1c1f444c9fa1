"""Compute the vectors of kernels without `mha`: put your code in place of `computed`; docs/vectors.md."""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open


def computed(call, arrays):
    """Your code: some or all of a file's results, by their names in the file."""
    q, k, v = (arrays[f"inputs/{name}"] for name in "qkv")
    packed = call["layout"] == "THD"
    q, k, v = (X.swapaxes(0, 1)[None] if packed else X for X in (q, k, v))  # (B, H or G, T, d)
    (B, H, Q, d), (G, K) = q.shape, k.shape[1:3]
    k, v = (np.repeat(X, H // G, 1) for X in (k, v))  # (B, H, K, d)
    scale, cap = call["scale"] or d**-0.5, call["softcap"]
    scores = q @ k.swapaxes(2, 3) * q.dtype.type(scale)  # (B, H, Q, K)
    scores = (cap * np.tanh(scores / cap) if cap else scores) + arrays.get("call/bias", 0)
    scores = np.where(seen(call, arrays, (B, Q, K)), scores, -np.inf)
    sinks = arrays.get("call/sinks", np.full(H, -np.inf, q.dtype))[:, None, None]  # (H, 1, 1)
    top = np.maximum(scores.max(3, keepdims=True), sinks)
    top = np.where(np.isfinite(top), top, 0)  # (B, H, Q, 1)
    shares = np.exp(scores - top)
    total = shares.sum(3, keepdims=True) + np.exp(sinks - top)
    output = (shares / np.where(total == 0, 1, total)) @ v  # (B, H, Q, dv), 0 for a query that sees no key
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]  # (B, H, Q)
    return {"output": output[0].swapaxes(0, 1), "lse": lse[0]} if packed else {"output": output, "lse": lse}


def seen(call, arrays, sizes):
    """Which keys each query sees, (B, 1 or H, Q, K)."""
    B, Q, K = sizes
    i, j = np.arange(Q)[:, None], np.arange(K)  # places
    sees, ends = np.ones((B, 1, Q, K), bool) & arrays.get("call/mask", True), K - Q
    if "call/lengths" in arrays:
        lengths = arrays["call/lengths"].reshape(B, 1, 1, 1)
        sees, ends = sees & (j < lengths), lengths - Q
    if "call/cu_seqlens" in arrays:
        of_q, of_k = arrays["call/cu_seqlens"], arrays["call/cu_seqlens_k"]
        text, other = np.searchsorted(of_q, i, "right") - 1, np.searchsorted(of_k, j, "right") - 1
        sees, ends = sees & (text == other), (np.diff(of_k) - np.diff(of_q))[text]
        i, j = i - of_q[text], j - of_k[other]
    if call["causal"] == "lower right":
        i = i + ends
    left, right = call["window"] or (None, None)
    if call["causal"]:
        sees = sees & (j <= i)
    if left is not None:
        sees = sees & (j >= i - left)
    return sees if right is None else sees & (j <= i + right)


def ratio(found, expected, bound):
    """The largest error by its bound: 0 without an error; infinite if only one is NaN or infinite."""
    if found.shape != expected.shape:
        return np.inf
    with np.errstate(invalid="ignore", divide="ignore"):
        far = np.where(found == expected, 0, np.abs(found.astype("float64") - expected))
        return np.nan_to_num(np.where(far > 0, far / bound, 0), nan=np.inf, posinf=np.inf).max()


worst = {}
for path in sorted(Path("vectors/kernels").glob("*.safetensors")):
    with safe_open(path, "numpy") as file:
        call, arrays = json.loads(file.metadata()["call"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if call["dtype"] in ("float32", "float64"):
        results = computed(call, arrays)
        ratios = {name: ratio(X, arrays[name], arrays[f"bounds/{name}"]) for name, X in results.items()}
        worst[path.stem] = max(ratios.values())
        print(
            path.stem, next((f"WRONG: {name}" for name in ratios if not ratios[name] <= 1), f"{worst[path.stem]:.2f}")
        )

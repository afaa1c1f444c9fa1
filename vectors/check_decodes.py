"""Compute the vectors of decoders without `mha`: put your code in place of `decoded`; docs/vectors.md."""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open


def decoded(config, call, arrays):
    """Your code: output and cache of each step, by their names in the file."""
    H, G, S = config["num_heads"], config["num_key_value_heads"], call["size"]
    B, left = len(arrays["inputs/step1.queries"]), (config["window"] or [None])[0]
    sizes = {"keys": (B, G, S, config["key_dim"]), "values": (B, G, S, config["value_dim"])}
    cache = {name: np.zeros(size, config["dtype"]) for name, size in sizes.items()}
    cache |= {"positions": np.full((B, S), -1), "lengths": np.zeros(B, int), "lost": np.full(B, -1)}

    def project(name, X):
        return X @ arrays[f"weights/{name}.kernel"] + arrays.get(f"weights/{name}.bias", 0)

    def turned(X, position):  # (heads, d)
        frequencies = np.array(config["rotary"]["frequencies"] if config["rotary"] else [])
        cos, sin = (f(position * frequencies).astype(X.dtype) for f in (np.cos, np.sin))
        a, b, rest = np.split(X, [len(frequencies), 2 * len(frequencies)], 1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], 1)

    def normed(role, X, after=False):  # (heads, d)
        norm = config.get("value_norm" if role == "v" else "qk_norm")
        if not isinstance(norm, dict) or norm["after"] != after:
            return X
        wide = X.reshape(1 if norm["over"] == "all" else len(X), -1)
        wide = wide - wide.mean(1, keepdims=True) if norm["kind"] == "layer" else wide
        roots = np.sqrt((wide * wide).mean(1, keepdims=True) + X.dtype.type(norm["eps"]))
        return (wide / roots * arrays[f"weights/{role}_norm.scale"]).reshape(X.shape)

    def tempered(X, position):
        made = config.get("temperature") or {"scale": 0, "floor": 1, "shift": 0}
        return X * X.dtype.type(1 + made["scale"] * np.log1p((max(position, 0) + made["shift"]) // made["floor"]))

    def compared(role, X, position):  # as queries and keys are compared
        return normed(role, turned(normed(role, X), position), after=True)

    results, number = {}, 1
    while f"inputs/step{number}.queries" in arrays:
        q, k, v = (project(f"W_{X[0]}", arrays[f"inputs/step{number}.{X}"]) for X in ("queries", "keys", "values"))
        Q = q.shape[1]
        pooled = np.zeros((B, Q, H * config["value_dim"]), q.dtype)
        for b in range(B):
            keys, values, positions = (cache[name][b] for name in ("keys", "values", "positions"))
            if f"call/step{number}.crop" in arrays:
                gone = positions >= arrays[f"call/step{number}.crop"][b]
                positions[gone], cache["lengths"][b] = -1, cache["lengths"][b] - gone.sum()
            places = arrays.get(f"call/step{number}.positions", positions.max() + 1 + np.tile(np.arange(Q), (B, 1)))[b]
            real = np.arange(Q) < arrays.get(f"call/step{number}.valid_lens", np.full(B, Q))[b]
            tokens = [i for i in range(Q) if real[i] and places[i] >= 0]
            own = {
                i: (compared("k", k[b, i].reshape(G, -1), places[i]), normed("v", v[b, i].reshape(G, -1)), places[i])
                for i in tokens
            }
            before = [(keys[:, s].copy(), values[:, s].copy(), positions[s]) for s in range(S) if positions[s] >= 0]
            for i in tokens:
                near = -1 if left is None else places[i] - left
                near = max(near, places[i] - places[i] % config["chunk"]) if config.get("chunk") else near
                seen = [one for one in (*before, *own.values()) if near <= one[2] <= places[i]]  # with `causal`
                heads = tempered(compared("q", q[b, i].reshape(H, -1), places[i]), places[i])
                for h in range(H):
                    K, V = (np.stack([one[part][h // (H // G)] for one in seen]) for part in (0, 1))
                    shares = np.exp(K @ heads[h] / q.dtype.type(np.sqrt(config["key_dim"])))
                    sink = np.exp(arrays["weights/sinks"][h]) if config.get("sinks") else 0
                    pooled[b, i].reshape(H, -1)[h] = shares @ V / (shares.sum() + sink)
            for key, value, position in own.values():
                slot = cache["lengths"][b] % S
                cache["lost"][b] = max(cache["lost"][b], positions[slot])
                keys[:, slot], values[:, slot], positions[slot] = key, value, position
                cache["lengths"][b] += 1
        if config.get("output_gate"):
            gates = 1 / (1 + np.exp(-project("W_g", arrays[f"inputs/step{number}.queries"])))  # (B, Q, H * dv or H)
            pooled = pooled * gates.repeat(pooled.shape[2] // gates.shape[2], 2)
        results[f"step{number}.output"] = project("W_o", pooled)
        results |= {f"step{number}.cache.{name}": X.copy() for name, X in cache.items()}
        number += 1
    return results


worst = {}
for path in sorted(Path("vectors").glob("decode-*.safetensors")):
    with safe_open(path, "numpy") as file:
        texts, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config, call, bounds = (json.loads(texts[name]) for name in ("config", "call", "bounds"))
    if config["dtype"] in ("float32", "float64"):
        ratios = {}
        for name, X in decoded(config, call, arrays).items():
            step, _, part = name.partition(".")
            error = np.abs(X - arrays[name])
            if part in ("cache.keys", "cache.values"):
                error = error * (arrays[f"{step}.cache.positions"] >= 0)[:, None, :, None]  # empty slots do not count
            ratios[name] = error.max() / bounds[name] if bounds[name] else np.inf * bool(error.any()) or 0
        worst[path.stem] = max(ratios.values())
        print(path.stem, next((f"WRONG: {name}" for name in ratios if ratios[name] > 1), f"{worst[path.stem]:.2f}"))

"""The formula of attention with all options, number by number in float64: slow, plain, and of no backend's making."""

import functools
import math

import numpy as np


def turned(x, position, rotary):
    """One vector (d,) after its rotation."""
    x, n = x.copy(), rotary.dim // 2
    for i in range(n):
        angle = position * (rotary.frequencies[i] if rotary.frequencies else rotary.base ** (-i / n))
        one, other = (2 * i, 2 * i + 1) if rotary.interleaved else (i, n + i)
        a, b = x[one] * rotary.magnitude, x[other] * rotary.magnitude
        x[one], x[other] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return x


def normed(x, norm, scale):
    """One vector, of one head or of all, after its norm."""
    x = x - sum(x) / len(x) if norm.kind == "layer" else x
    return x / math.sqrt(sum(x * x) / len(x) + norm.eps) * scale


def attend(*arguments, **call):
    """The output (B, Q, D), of the arguments of `both`."""
    return both(*arguments, **call)[0]


def both(config, weights, queries, keys, values, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0,
         head_gates=None, positions=None, key_positions=None, segments=None, key_segments=None):  # fmt: skip
    """The output (B, Q, D) and attention weights (B, H, Q, K); config: a `Config`, weights: canonical."""
    B, Q, K, H, d, dv = len(queries), len(queries[0]), len(keys[0]), config.num_heads, config.key_dim, config.value_dim
    share = H // config.num_key_value_heads
    left, right = config.window or (None, None)

    def project(name, x):
        return x @ weights[f"{name}.kernel"] + weights.get(f"{name}.bias", 0)

    def of_heads(name, x, width, norm):
        each = [x] if norm.over == "all" else np.split(x, len(x) // width)
        return np.concatenate([normed(one, norm, weights[f"{name}_norm.scale"]) for one in each])

    @functools.cache
    def valued(b, row):
        x = project("W_v", values[b, row])
        return of_heads("v", x, dv, config.value_norm) if config.value_norm else x

    @functools.cache
    def prepared(name, b, row, head, position):
        x = project(f"W_{name}", {"q": queries, "k": keys}[name][b, row])
        norm = config.qk_norm
        x = x if norm is None or norm.after else of_heads(name, x, d, norm)
        if config.rotary:
            x = np.concatenate([turned(one, position, config.rotary) for one in np.split(x, len(x) // d)])
        x = of_heads(name, x, d, norm) if norm and norm.after else x
        x = x[head * d : (head + 1) * d]
        kind = config.temperature if name == "q" else None
        return x if kind is None else x * (1 + kind.scale * math.log(1 + (max(position, 0) + kind.shift) // kind.floor))

    def of_pair(pairs, b, h, i, j):
        pairs = np.broadcast_to(pairs[:, None] if pairs.ndim == 3 else pairs, (B, H, Q, K))
        return pairs[b, h, i, j]

    def score(b, h, i, j):
        place = i + (offset if isinstance(offset, int) else offset[b])
        place = place if positions is None else np.broadcast_to(positions, (B, Q))[b, i]
        key_place = j if key_positions is None else np.broadcast_to(key_positions, (B, K))[b, j]
        hidden = valid_lens is not None and j >= np.broadcast_to(np.array(valid_lens).reshape(B, -1), (B, Q))[b, i]
        hidden |= mask is not None and not of_pair(mask, b, h, i, j)
        hidden |= (positions is not None and place < 0) or (key_positions is not None and key_place < 0)
        if segments is not None:
            own = np.broadcast_to(segments, (B, Q))[b, i]
            other = np.broadcast_to(segments if key_segments is None else key_segments, (B, K))[b, j]
            hidden |= own < 0 or other < 0 or own != other
        hidden |= causal and key_place > place
        hidden |= (left is not None and key_place < place - left) or (right is not None and key_place > place + right)
        hidden |= bool(config.chunk) and math.floor(key_place / config.chunk) != math.floor(place / config.chunk)
        if hidden:
            return -math.inf
        q, k = prepared("q", b, i, h, place), prepared("k", b, j, h // share, key_place)
        if config.pooling == "additive":
            q, k = q @ weights["attention.W_q.kernel"], k @ weights["attention.W_k.kernel"]
            s = np.tanh(q + k) @ weights["attention.w_v.kernel"][:, 0]
        else:
            s = sum(q * k) * (1 / math.sqrt(d) if config.scale is None else config.scale)
        s = config.softcap * math.tanh(s / config.softcap) if config.softcap else s
        return s if score_bias is None else s + of_pair(score_bias, b, h, i, j)

    output, every_share = np.zeros((B, Q, config.num_hiddens)), np.zeros((B, H, Q, K))
    for b, i in np.ndindex(B, Q):
        heads = []
        for h in range(H):
            scores = [score(b, h, i, j) for j in range(K)]
            scores += [weights["sinks"][h]] if config.sinks else []
            shares = [math.exp(s - max(scores)) if s > -math.inf else 0.0 for s in scores]
            g, pooled = h // share, np.zeros(dv)
            for j in range(K):
                if shares[j]:
                    every_share[b, h, i, j] = shares[j] / sum(shares)
                    pooled += every_share[b, h, i, j] * valued(b, j)[g * dv : (g + 1) * dv]
            gates = np.ones((B, H)) if head_gates is None else np.broadcast_to(head_gates, (B, H))
            pooled = pooled * gates[b, h]
            if config.output_gate and any(shares[:K]):
                opened = project("W_g", queries[b, i])
                width = len(opened) // H
                pooled = pooled / (1 + np.exp(-opened[h * width : (h + 1) * width]))
            heads.append(pooled)
        output[b, i] = project("W_o", np.concatenate(heads))
    return output, every_share

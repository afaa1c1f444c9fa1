"""Every form of every known mistake once more, by other means than the catalogue's own code.

A twin is a layer with another option, a call with another argument, weights that are changed by loops over heads and
components, or a `ports.Port` with a method of its own. Letters as in the lessons.
"""

import dataclasses

import ml_dtypes
import numpy as np
from ports import Port

import mha
from mha.core.options.config import shapes
from mha.layer import restore

LOWEST = np.finfo("float64").min
PROJECTIONS = "W_q", "W_k", "W_v", "W_o"


def add(twins, name, case, *forms, **by_how):
    """Put twins of a mistake into a dict: of its one form, or by the words of each."""
    for how, twin in (*(("", form) for form in forms), *by_how.items()):
        twins[name, how] = case, twin


# Twins: functions of a layer, inputs and arguments to an output


def option(**options):
    """The same weights in a layer with other options; a function of the configuration, or a value."""

    def twin(layer, inputs, call):
        config = layer.config
        changed = {name: X(config) if callable(X) else X for name, X in options.items()}
        config, weights = dataclasses.replace(config, **changed), layer.weights
        return restore(config, {name: weights[name] for name in shapes(config)}, "numpy")(*inputs, **call)

    return twin


def argument(**arguments):
    """A call with other arguments; a function of the one without the mistake, or a value; None = it is not given."""

    def twin(layer, inputs, call):
        changed = {name: X(call.get(name)) if callable(X) else X for name, X in arguments.items()}
        return layer(*inputs, **call | changed)

    return twin


def both(options, arguments):
    """A layer with other options, and a call of it with other arguments."""
    return lambda layer, inputs, call: option(**options)(layer, inputs, call | arguments)


def port(**methods):
    """A port that has other methods."""
    return lambda layer, inputs, call: type("Wrong", (Port,), methods)(layer)(*inputs, **call)[0]


def weight(change):
    """A layer whose weights are changed one by one; change: of the name, the weight, all weights and the layer."""

    def twin(layer, inputs, call):
        weights = layer.weights
        changed = {name: change(name, X, weights, layer.config) for name, X in weights.items()}
        return restore(layer.config, {name: np.ascontiguousarray(X) for name, X in changed.items()}, "numpy")(
            *inputs, **call
        )

    return twin


def of_inputs(*order):
    """A call with queries, keys and values in another order."""
    return lambda layer, inputs, call: layer(*(inputs[at] for at in order), **call)


def columns(chosen, source):
    """Weights whose columns (rows of W_o) come from elsewhere; source: of a column, the heads H and the width d."""

    def change(name, X, weights, config):
        if not name.startswith(tuple(chosen)) or name == "W_o.bias":
            return X
        G = config.num_key_value_heads
        H, d = (G if name[:3] in ("W_k", "W_v") else config.num_heads), config.key_dim
        if "norm" in name:
            H = 1
        order = [source(at, H, d, G) for at in range(H * d)]
        return X[order] if name == "W_o.kernel" else X[..., order]

    return weight(change)


def by_component(at, H, d, G):
    """Component j of head h is column j * H + h."""
    return at % d * H + at // d


def by_head(at, H, d, G):
    """Column j * H + h is component j of head h."""
    return at % H * d + at // H


def from_r_g(at, H, d, G):
    """Head g * (H / G) + r has the columns of head r * G + g."""
    g, r = divmod(at // d, H // G)
    return (r * G + g) * d + at % d


def from_g_r(at, H, d, G):
    """Head r * G + g has the columns of head g * (H / G) + r."""
    r, g = divmod(at // d, G)
    return (g * (H // G) + r) * d + at % d


def neighbours_of_halves(n, at, H, d, G):
    head, j = at // d * d, at % d
    return head + (j if j >= 2 * n else j // 2 + n * (j % 2))


def halves_of_neighbours(n, at, H, d, G):
    head, j = at // d * d, at % d
    return head + (j if j >= 2 * n else 2 * (j % n) + j // n)


def untransposed(*names):
    """A port that sums over the other axis of these kernels."""

    def project(self, name, X):
        kernel = self.weights[f"{name}.kernel"]
        return np.einsum("bti,oi->bto" if name in names else "bti,io->bto", X, kernel) + self.weights[f"{name}.bias"]

    return port(project=project)


def taken(kernels=None, biases=None):
    """A port that projects by the kernels and biases of other projections, by name."""
    kernels, biases = kernels or {}, biases or {}

    def project(self, name, X):
        return X @ self.weights[f"{kernels.get(name, name)}.kernel"] + self.weights[f"{biases.get(name, name)}.bias"]

    return port(project=project)


def split_pooled(self, pooled):
    return pooled.swapaxes(0, 1)  # (H, B, Q, d)


def by_each_head(self, name, X):
    """Each head has its rows of W_o, and adds the bias."""
    if name != "W_o":
        return Port.project(self, name, X)
    rows = np.split(self.weights["W_o.kernel"], self.H)
    return sum(head @ kernel + self.weights["W_o.bias"] for head, kernel in zip(X, rows, strict=True))


def without(*names):
    return weight(lambda name, X, weights, config: 0 * X if name.removesuffix(".bias") in names else X)


def exponents(scores, axis=-1):
    shares = np.exp(scores - scores.max(axis, keepdims=True))
    return shares / shares.sum(axis, keepdims=True)


def weighed(softmax):
    """A port with another softmax, a function of scores and of what is seen."""
    return port(softmax=lambda self, scores, seen: softmax(scores, seen))


def beside_one(late, scores, seen):
    """The softmax beside one more score: 0, or the largest."""
    low = np.where(seen, scores, LOWEST)
    other = low.max(-1, keepdims=True) if late else np.zeros((*low.shape[:-1], 1))
    return np.where(seen, exponents(np.concatenate([low, other], -1))[..., :-1], 0)


def resunk(change):
    """A layer with other sinks; change: from a list of numbers to another."""
    return weight(lambda name, X, *_: np.array(change(list(X))) if name == "sinks" else X)


def beside_sinks(weigh):
    """A port with weights (B, H, Q, K) that are made of those of a sink (B, H, Q) and of keys, (B, H, Q, K)."""

    def softmax(self, scores, seen):
        column = np.broadcast_to(self.weights["sinks"][:, None], scores.shape[:3])
        shares = exponents(np.stack([column, *np.moveaxis(np.where(seen, scores, -np.inf), 3, 0)], -1))
        return weigh(shares[..., 0], shares[..., 1:])

    return port(softmax=softmax)


def unshifted(self, scores, seen):
    shares = np.where(seen, np.exp(scores - np.where(seen, scores, LOWEST).max(-1, keepdims=True)), 0)
    return shares / (shares.sum(-1, keepdims=True) + np.exp(self.weights["sinks"])[:, None, None])


def pooled_with(key, of_sink, of_keys):
    return of_keys + of_sink[..., None] * (np.arange(of_keys.shape[-1]) == key)


def online(size, sum_too, scores, seen):
    """Keys block by block, pooling the rows of an identity: the result is the weights."""
    B, H, Q, K = scores.shape
    low, values = np.where(seen, scores, -np.inf), np.eye(K)
    largest, total, pooled = np.full((B, H, Q, 1), LOWEST), np.zeros((B, H, Q, 1)), np.zeros((B, H, Q, K))
    for at in range(0, K, size):
        block = low[..., at : at + size]
        before, largest = largest, np.maximum(largest, block.max(-1, keepdims=True))
        shares = np.exp(block - largest)
        total = total * (1 if sum_too else np.exp(before - largest)) + shares.sum(-1, keepdims=True)
        pooled = pooled + shares @ values[at : at + size]  # not times exp(before - largest)
    return pooled / np.where(total == 0, 1, total)


def lowest_added(*masks):
    """A port that adds the lowest number for each of these; a mask is some methods, joined."""

    def softmax(self, scores, seen):
        for mask in masks:
            hidden = ~np.logical_and.reduce([np.broadcast_to(self.parts[name], scores.shape) for name in mask])
            scores = scores + np.where(hidden, LOWEST, 0.0)
        return exponents(scores)

    def lengths(self, seen, valid_lens):
        K, Q = seen.shape[-1], seen.shape[-2]
        i, j = np.arange(Q)[:, None], np.arange(K)
        self.parts = {"lengths": j < np.reshape(valid_lens, (-1, 1, 1, 1)), "order": j <= i}
        left, right = self.window
        if left is not None:
            self.parts["window"] = (i - j <= left) & (j - i <= right)
        return seen

    return port(softmax=softmax, lengths=lengths)


def of_places(change):
    """A port that turns by other positions; change: of the role and the right ones."""
    return port(turn=lambda self, role, X, places: Port.turn(self, role, X, change(role, places)))


def to_bfloat16(X):
    return np.asarray(X, ml_dtypes.bfloat16).astype("float64")


def to_int8(kept, X):
    """Whole numbers up to 127, times the largest number that these axes share by 127."""
    summed = tuple(at for at, axis in enumerate("bgtd") if axis not in kept.split("->")[1])
    steps = np.maximum(X.max(summed, keepdims=True), -X.min(summed, keepdims=True)) / 127
    return np.round(X / steps).astype("int8") * steps


def of_cache(rounded):
    """A port whose keys and values are rounded before they are shared."""
    return port(
        share=lambda self, X: Port.share(self, rounded(X)),
        share_values=lambda self, X: Port.share_values(self, rounded(X)),
    )


def frequencies(made):
    """A layer whose rotation has other frequencies; made: of the rotation and the width of a head."""

    def rotary(config):
        right = config.rotary
        return mha.Rotary(interleaved=right.interleaved, frequencies=tuple(made(right, config.key_dim)))

    return option(rotary=rotary)


def by_base(base, n, width, factor=1.0):
    return [base ** (-2 * i / width) / factor for i in range(n)]


def of_base(base, factor=1.0):
    return frequencies(lambda rotary, d: by_base(base or rotary.base, rotary.dim // 2, rotary.dim, factor))


def last_turned(self, X, cos, sin, interleaved):
    """The last components, as complex numbers in halves."""
    n = cos.shape[-1]
    kept, a, b = X[..., : -2 * n], X[..., -2 * n : -n], X[..., -n:]
    turned = (a + 1j * b) * (cos + 1j * sin)
    return np.concatenate([kept, turned.real, turned.imag], -1)


def norm_of_width(self, role, X, heads, places):
    """A norm before the heads are split; the scale is the same for every head."""
    if self.config.qk_norm.kind == "layer":
        X = X - X.mean(-1, keepdims=True)
    X = X / np.sqrt((X**2).mean(-1, keepdims=True) + self.config.qk_norm.eps)  # (B, T, H*d)
    return self.turn(role, self.split(X * np.tile(self.weights[f"{role}_norm.scale"], heads), heads), places)


def norm_of_each(self, role, X):
    """A norm of each head, with its own part of the scale of all."""
    scales, eps = np.split(self.weights[f"{role}_norm.scale"], X.shape[1]), self.config.qk_norm.eps
    roots = [self.root((X[:, h] ** 2).mean(-1, keepdims=True), eps) for h in range(X.shape[1])]  # of (B, T, 1)
    return np.stack([X[:, h] / roots[h] * scales[h] for h in range(X.shape[1])], 1)  # (B, H, T, d)


def rms_with_eps_outside(self, role, X):
    roots = np.sqrt(np.einsum("bhtd,bhtd->bht", X, X) / X.shape[-1])[..., None]  # (B, H, T, 1)
    return X / (roots + 3e-3) * self.weights[f"{role}_norm.scale"]


def of_other(q, k):
    """Scales of norms by the roles that they are taken from."""
    return scales(lambda name, X, weights: weights[f"{q if name[0] == 'q' else k}_norm.scale"])


def norm_last(self, role, X, heads, places):
    return self.norm(role, self.turn(role, self.split(X, heads), places))


def scales(change):
    return weight(lambda name, X, weights, config: change(name, X, weights) if "norm" in name else X)


def tiled(self, X):
    return X[:, [h % self.G for h in range(self.H)]]  # (B, H, K, d)


def lengths_kept(self, seen, valid_lens):
    """Nothing is hidden by lengths, which are kept for later."""
    self.kept = np.arange(seen.shape[-1]) < np.reshape(valid_lens, (-1, 1, 1, 1))
    return seen


def tiled_lengths(self, seen, valid_lens):
    B, H, _, K = seen.shape
    other = [[valid_lens[(b * H + h) % B] for h in range(H)] for b in range(B)]
    return seen & (np.arange(K) < np.reshape(other, (B, H, 1, 1)))


def merged(source):
    """A port whose merge takes head source(h) where h should be."""

    def merge(self, pooled):
        heads = [source(h, self.H, 1, self.G) for h in range(self.H)]
        return np.concatenate([pooled[:, h] for h in heads], -1)  # (B, Q, H*d)

    return port(merge=merge)


def repeated_bias(bias):
    B, H = 3, bias.shape[1]
    flat = [bias[0, head] for head in range(H) for _ in range(B)]
    return np.stack([np.stack(flat[b * H : (b + 1) * H]) for b in range(B)])


def of_distance(sign, Q, K, offset):
    """A bias (1, 4, Q, K) that is a random function of the distance."""
    table = np.random.default_rng(5).normal(size=(4, 100))
    table[:, 50 + K - offset :] = table[:, 50 + K - 1 - offset][:, None]  # from the largest distance on, all alike
    table[:, : 50 - (Q - 1) - offset] = table[:, 50 - (Q - 1) - offset][:, None]
    places = [[50 + sign * (j - i - offset) for j in range(K)] for i in range(Q)]
    return np.array([[[[row[place] for place in places[i]] for i in range(Q)] for row in table]])  # (1, 4, Q, K)

"""The decoder in NumPy, which tells a recorder of its modules itself: for tests without a framework."""

import numpy as np

from mha.models.records.storing import FileStore, MemoryStore
from mha.models.records.writing import Recorder, finish_record
from recorded import EPS, LAYERS, WRONG_EPS, D, H, d, tokens, weights


class Taps:
    """What tells of the parts of the decoder."""

    def __init__(self, paths):
        self.paths = paths

    def modules(self, model):
        return dict.fromkeys(self.paths, model)

    def arrays(self, model):
        return weights()

    def odd(self, module):
        return ""

    def arguments(self, module, args, kwargs):
        return dict(kwargs)


class Decoder:
    """The decoder; names: of its modules; mistake: in layer 1; dtype: that it computes in."""

    def __init__(self, mistake="", dtype="float32", rename=None):
        self.mistake, self.dtype, self.rename = mistake, np.dtype(dtype), rename or (lambda path: path)
        self.weights = {name: X.astype(self.dtype) for name, X in weights().items()}
        parts = ["before", "attention", *(f"attention.{name}" for name in "qkvo"), "after", "mlp"]
        parts += ["mlp.up", "mlp.act", "mlp.down"]
        paths = ["", "embed", *(f"blocks.{at}.{part}" for at in range(LAYERS) for part in parts), "norm", "head"]
        self.taps = Taps([self.rename(path) if path else "" for path in paths])

    def call(self, path, function, X):
        """Call a part, and tell of it."""
        path = self.rename(path) if path else ""
        self.sink.enter(path, self, (X,), {} if path else self.given)
        made = function(X)
        self.sink.leave(path, made)
        return made

    def linear(self, path, name, X):
        return self.call(path, lambda X: X @ self.weights[name], X)

    def norm(self, path, name, X, eps=EPS):
        scale, bias = self.weights[f"{name}.scale"], self.weights[f"{name}.bias"]

        def normed(X):
            centred = X - X.mean(-1, keepdims=True)
            return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.dtype.type(eps)) * scale + bias

        return self.call(path, normed, X)

    def attention(self, at, X):
        """Attend to all tokens so far, of which the cache has the keys and values."""
        here = f"blocks.{at}.attention"
        order = "kvq" if self.mistake == "order" else "qkv"
        found = {name: self.linear(f"{here}.{name}", f"{at}.{name}", X) for name in order}
        past = self.cache.setdefault(at, {name: found[name][:, :0] for name in "kv"})
        for name in "kv":
            past[name] = found[name] = np.concatenate([past[name], found[name]], 1)  # (B, K, D)
        q, k, v = (found[name].reshape(len(X), -1, H, d).swapaxes(1, 2) for name in "qkv")  # (B, H, T, d)
        scale = 1.0 if self.wrong(at, "scale") else d**-0.5
        Q, K = q.shape[2], k.shape[2]
        scores = q @ k.swapaxes(2, 3) * self.dtype.type(scale)
        scores = np.where(np.arange(K) <= np.arange(K - Q, K)[:, None], scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        pooled = (shares / shares.sum(-1, keepdims=True)) @ v
        return self.linear(f"{here}.o", f"{at}.o", pooled.swapaxes(1, 2).reshape(*X.shape))  # (B, T, D)

    def mlp(self, at, X):
        here, c = f"blocks.{at}.mlp", self.dtype.type((2 / np.pi) ** 0.5)
        cubed = self.dtype.type(0.0447 if self.wrong(at, "gelu") else 0.044715)
        X = self.linear(f"{here}.up", f"{at}.up", X)
        half = self.dtype.type(0.5)
        X = self.call(f"{here}.act", lambda X: half * X * (1 + np.tanh(c * (X + cubed * X**3))), X)
        return self.linear(f"{here}.down", f"{at}.down", X)

    def wrong(self, at, mistake):
        return at == 1 and mistake in self.mistake.split()

    def logits(self, ids):
        X = self.call("embed", lambda ids: self.weights["embed"][ids], ids)
        for at in range(LAYERS):
            Y = self.norm(f"blocks.{at}.before", f"{at}.before", X)
            Y = self.call(f"blocks.{at}.attention", lambda Y, at=at: self.attention(at, Y), Y)
            X = Y if self.wrong(at, "residual") else X + Y
            Y = self.norm(f"blocks.{at}.after", f"{at}.after", X, WRONG_EPS if self.wrong(at, "eps") else EPS)
            X = X + self.call(f"blocks.{at}.mlp", lambda Y, at=at: self.mlp(at, Y), Y)
        return self.linear("head", "head", self.norm("norm", "norm", X))

    def record(self, ids, portions, path=None):
        """A record of a call for each portion of the tokens, with a cache."""
        store = MemoryStore() if path is None else FileStore(path)
        self.sink, self.cache = Recorder(self, "numpy", self.taps, store), {}
        kept = [np.zeros((len(ids), 1, 0, D))]  # a cache that says how many tokens it has
        for portion in np.split(ids, np.cumsum(portions)[:-1], 1):
            self.given = {"input_ids": portion} | ({"past": [(X, X) for X in kept]} if kept[0].shape[2] else {})
            self.call("", self.logits, portion)
            kept = [np.zeros((len(ids), 1, self.cache[0]["k"].shape[1], 1))]
        finish_record(self.sink.record, store)
        return self.sink.record


def recorded(mistake="", path=None, dtype="float32", portions=(11,), rename=None, ids=None):
    """A record."""
    return Decoder(mistake, dtype, rename).record(tokens() if ids is None else ids, portions, path)

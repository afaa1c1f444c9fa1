"""Draw a layer in half precision and a call of it; tell what a port of it must be able to do."""

import dataclasses

import numpy as np

import mha
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.rule.layouts import INPUTS, OF_INPUTS
from mha.parity.rule.problem import problem
from mha.parity.rule.rules import in_dtype

# What a port may be able to do. Every port can do causal order, lengths, and a mask, which hide pairs.
ABILITIES = {
    "bias", "groups", "scale", "softcap", "window", "rotary", "interleaved", "rms", "layer", "sinks", "element", "head",
    "score_bias",
}  # fmt: skip
FAR = 100_000  # positions begin below it


@dataclasses.dataclass(frozen=True)
class Trial:
    """A layer, its inputs and the other arguments of a call, all on NumPy, and a port's output."""

    layer: mha.MultiHeadAttention
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray]  # queries (B, Q, D), keys and values (B, K, D)
    call: dict
    output: np.ndarray | None = None  # (B, Q, D)
    given: dict | None = None  # a framework's arrays that stand in for inputs and weights, see `arrays`

    @property
    def config(self):
        """The layer's configuration."""
        return self.layer.config

    @property
    def scale(self):
        """What dot products are multiplied by."""
        return self.config.key_dim**-0.5 if self.config.scale is None else self.config.scale

    @property
    def share(self):
        """How many heads read one head of keys."""
        return self.config.num_heads // self.config.num_key_value_heads

    @property
    def positions(self):
        """Where the queries (Q,) and the keys (K,) are."""
        Q, K = (X.shape[1] for X in self.inputs[:2])
        i = self.call.get("positions", self.call.get("offset", 0) + np.arange(Q))
        return i, self.call.get("key_positions", np.arange(K))

    @property
    def needs(self):
        """What a port must be able to do, a subset of ABILITIES."""
        c = self.config
        found = {name for name in ("bias", "scale", "softcap", "window", "rotary", "sinks") if getattr(c, name)}
        found |= {c.output_gate, c.qk_norm and c.qk_norm.kind} - {None}
        found |= {"groups"} if self.share > 1 else set()
        found |= {"interleaved"} if c.rotary and c.rotary.interleaved else set()
        return found | {"score_bias"} & self.call.keys()

    @property
    def only_causal(self):
        """Whether keys are hidden by causal order alone, from the first on, as options of frameworks do it."""
        others = {"valid_lens", "mask", "score_bias"} & self.call.keys()
        same = self.inputs[0].shape[1] == self.inputs[1].shape[1]
        return bool(self.call.get("causal") and same and not others and not self.config.window)

    @property
    def seen(self):
        """Which query sees which key, (B or 1, H or 1, Q, K); None if each sees all."""
        i, j = self.positions[0][:, None], self.positions[1]
        left, right = self.config.window or (None, None)
        seen = np.ones((1, 1, len(i), len(j)), bool)
        if self.call.get("causal"):
            seen = seen & (j <= i)
        if left is not None:
            seen = seen & (i - j <= left)
        if right is not None:
            seen = seen & (j - i <= right)
        if "valid_lens" in self.call:
            lengths = self.call["valid_lens"].reshape(len(self.inputs[0]), 1, -1, 1)
            seen = seen & (np.arange(len(j)) < lengths)
        if "mask" in self.call:
            seen = seen & four(self.call["mask"])
        return None if seen.all() else seen

    @property
    def bias(self):
        """The score bias, (B or 1, H or 1, Q or 1, K); None if there is none."""
        return four(self.call["score_bias"]) if "score_bias" in self.call else None

    @property
    def named(self):
        """Inputs and weights on NumPy, by name."""
        return dict(zip(OF_INPUTS, self.inputs, strict=True)) | self.layer.weights

    def arrays(self, own):
        """Inputs and weights by name as a framework's own arrays; own: makes one. One array stays one."""
        if self.given is not None:
            return self.given
        named = self.named  # once: weights are other arrays each time
        by_id = {id(X): own(X) for X in named.values()}
        return {name: by_id[id(X)] for name, X in named.items()}

    def leaves(self, own):
        """What gradients are taken by: as `arrays`, with one name for the one input of self-attention."""
        queries, keys, values = self.inputs
        inputs = {INPUTS: queries} if queries is keys is values else dict(zip(OF_INPUTS, self.inputs, strict=True))
        return {name: own(X) for name, X in (inputs | self.layer.weights).items()}

    def with_leaves(self, leaves):
        """The same trial with other arrays."""
        return dataclasses.replace(self, given=dict.fromkeys(OF_INPUTS, leaves.get(INPUTS)) | leaves)

    def angles(self, places):
        """The angles (T, n) by which pairs turn at these positions, in float32, as models compute them."""
        return places[:, None].astype("float32") * np.array(self.config.rotary.angles(), "float32")

    def in_float32(self):
        """The same trial in float32, where positions begin at 0: angles are in float32, which shows far from 0."""
        call = dict(self.call)
        if "score_bias" in call:
            call["score_bias"] = call["score_bias"].astype("float32")
        if "positions" in call:
            first = min(X.min() for X in self.positions)
            call |= {"positions": self.positions[0] - first, "key_positions": self.positions[1] - first}
        inputs = tuple(X.astype("float32") for X in self.inputs)
        return Trial(in_dtype(self.layer, "float32"), inputs, call)

    def problem(self, cotangent):
        """The problem of its gradients."""
        return with_rounding(problem(self.layer, *self.inputs, {"causal": False} | self.call, cotangent))

    def ratio(self):
        """The rule's judgement of the output."""
        return mha.parity.ratio(self.layer, self.output, *self.inputs, **self.call)


def four(X):
    """A mask or a bias of scores with all four axes."""
    return X[None, None] if X.ndim == 2 else X[:, None] if X.ndim == 3 else X  # (B or 1, H or 1, Q, K)


def log_uniform(rng, low, high):
    """Draw a number whose logarithm is uniform between those of two."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def draw(seed):
    """Draw a trial without an output, in which some query sees a key."""
    rng = np.random.default_rng(seed)
    while True:
        layer = draw_layer(rng)
        trial = Trial(layer, *draw_call(rng, layer.config))
        if "mask" in trial.call:
            show_one_key(trial)
        if trial.seen is None or trial.seen.any():
            return trial


def show_one_key(trial):
    """Let each head see a key where a query does: ports differ in what a head that sees none gives."""
    mask, call = trial.call["mask"], {name: X for name, X in trial.call.items() if name != "mask"}
    seen = dataclasses.replace(trial, call=call).seen
    if mask.ndim == 4 and mask.shape[1] > 1:
        others = np.broadcast_to(True if seen is None else seen, mask.shape)
        np.put_along_axis(mask, others.argmax(-1, keepdims=True), True, -1)


def draw_cotangent(seed, trial):
    """Draw the gradient of a loss by the output (B, Q, D): of all rows, of few of them, or ones."""
    rng = np.random.default_rng([seed, 1])
    shape = trial.inputs[0].shape[:2]
    X = rng.normal(size=(*shape, trial.config.num_hiddens)) * log_uniform(rng, 0.01, 1)
    if rng.random() < 0.2:
        X *= (rng.random(shape) < 0.2)[..., None]
    if rng.random() < 0.2:
        X = np.ones_like(X)
    return X.astype(numpy_dtype(trial.config.dtype))


def draw_layer(rng):
    """Draw a layer: four in ten are such as every framework has, the others have options of today's models."""
    H = int(rng.integers(1, 9))
    D = H * 2 * int(rng.integers(-(-16 // H), 128 // H + 1))
    options = {"bias": bool(rng.random() < 0.5), "dtype": str(rng.choice(["bfloat16", "float16"]))}
    if rng.random() < 0.6:
        options |= modern_options(rng, D // H, [G for G in range(1, H + 1) if H % G == 0])
    layer = mha.MultiHeadAttention(D, H, **options, seed=int(rng.integers(2**31)), backend="numpy")
    factor, dtype = log_uniform(rng, 0.5, 4), numpy_dtype(options["dtype"])
    weights = {name: X.astype("float64") for name, X in layer.weights.items()}
    for name, X in weights.items():
        if name.endswith("kernel"):
            X *= factor
        else:  # biases begin as 0, scales as 1
            X += (0.3 if name.endswith("scale") else 1.0) * rng.normal(size=X.shape)
    layer.weights = {name: X.astype(dtype) for name, X in weights.items()}
    return layer


def modern_options(rng, d, groups):
    """Draw options, some of them, for heads of width d."""
    left, right = (None if rng.random() < 0.3 else int(rng.integers(0, 100)) for _ in range(2))
    turning = 2 * int(rng.integers(1, d // 2 + 1)) if rng.random() < 0.2 else d
    rotary = mha.Rotary(turning, base=float(rng.choice([1e4, 5e5])), interleaved=bool(rng.random() < 0.3))
    drawn = {
        "num_key_value_heads": (0.5, int(rng.choice(groups))),
        "scale": (0.25, log_uniform(rng, 0.3, 3) * d**-0.5),
        "softcap": (0.15, log_uniform(rng, 5, 50)),
        "window": (0.2, (left, right)),
        "rotary": (0.6, rotary),
        "qk_norm": (0.35, str(rng.choice(["rms", "rms", "layer"]))),
        "sinks": (0.15, True),
        "output_gate": (0.15, str(rng.choice(["element", "head"]))),
    }
    return {name: value for name, (often, value) in drawn.items() if rng.random() < often}


def draw_call(rng, config):
    """Draw the inputs and the other arguments of a call."""
    B, Q, K = int(rng.integers(1, 4)), draw_length(rng), draw_length(rng)
    alone = rng.random() < 0.6  # self-attention
    K = Q if alone else K
    H, dtype, size = config.num_heads, numpy_dtype(config.dtype), log_uniform(rng, 0.02, 8)
    queries, keys, values = (
        (size * rng.normal(size=(B, T, config.num_hiddens))).astype(dtype) for T in (Q, K, K)
    )  # (B, T, D)
    if alone:
        keys = queries
    if alone or rng.random() < 0.6:
        values = keys
    call = {}
    if K >= Q and rng.random() < 0.4:
        call = {"causal": True} | ({"offset": K - Q} if K > Q else {})
    if config.rotary and rng.random() < 0.5:
        first = int(rng.integers(FAR)) if rng.random() < 0.5 else int(rng.integers(1000))
        call["positions"] = first + call.pop("offset", 0) + np.arange(Q)
        call["key_positions"] = first + np.arange(K)
    if rng.random() < 0.3:
        call["valid_lens"] = rng.integers(1, K + 1, (B,) if rng.random() < 0.7 else (B, Q))
    if rng.random() < 0.2:
        shape = [(Q, K), (B, 1, Q, K), (B, H, Q, K)][rng.integers(3)]
        call["mask"] = rng.random(shape) < rng.uniform(0.5, 0.98)
    if rng.random() < 0.15:
        shape = [(Q, K), (1, H, Q, K), (B, H, Q, K)][rng.integers(3)]
        call["score_bias"] = (log_uniform(rng, 0.1, 5) * rng.normal(size=shape)).astype(dtype)
    return (queries, keys, values), call


def draw_length(rng):
    """Draw the number of queries or of keys, now and then 1 or many."""
    return 1 if rng.random() < 0.08 else int(rng.integers(1, 513 if rng.random() < 0.1 else 161))

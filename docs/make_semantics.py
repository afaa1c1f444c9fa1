"""Write docs/semantics.md: what `mha` does with each kind of input, and what the book and the frameworks do instead.

Every cell of the page's tables is what a call came to, not what somebody typed. A probe is one call; `mha` answers it
on each backend, each peer by an adapter that is given the same weights and the same numbers. `--check` compares the
page with what comes out now.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, d width of a head.
"""

import contextlib
import dataclasses
import difflib
import functools
import io
import math
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import mha
from mha import dispatch, parity
from mha.config import Config, numpy_dtype, shapes

PAGE = Path(__file__).with_name("semantics.md")

# Distinct primes; D = H * d.
B, Q, K, H, D = 2, 5, 7, 3, 33
POSITIONS = np.arange(K)


SIZING = {
    "num_hiddens",
    "num_heads",
    "query_size",
    "key_size",
    "value_size",
    "key_dim",
    "value_dim",
    "pooling",
    "dtype",
}


# 1. Calls


@dataclasses.dataclass(frozen=True)
class Call:
    """One layer and one call of it, in the names of `mha.MultiHeadAttention`.

    own_mask: whether peers get the mask as it is, instead of in their own convention; gradients: whether wanted.
    An input that is a function is called with a backend's name and gives that backend's own array.
    """

    queries: Any
    keys: Any
    values: Any
    options: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"num_hiddens": D, "num_heads": H, "bias": True}
    )
    valid_lens: Any = None
    mask: Any = None
    causal: bool = False
    training: bool = False
    return_weights: bool = True
    own_mask: bool = False
    gradients: bool = False

    def but(self, options: dict[str, Any] | None = None, **changes: Any) -> "Call":
        """The same call with other arguments, and some other options."""
        return dataclasses.replace(self, options=self.options | (options or {}), **changes)

    def widened(self) -> "Call":
        """The same call in float64."""
        inputs = {name: getattr(self, name).astype("float64") for name in ("queries", "keys", "values")}
        return self.but({"dtype": "float64"}, **inputs)

    @property
    def dtype(self) -> str:
        """The dtype that the layer is asked to have."""
        return self.options.get("dtype", "float32")

    def weights(self) -> dict[str, np.ndarray] | None:
        """Canonical weights, drawn anew and the same for the same sizes; None if there are no layers of such sizes."""
        sizes = {name: value for name, value in self.options.items() if name in SIZING}
        try:
            config = Config(**sizes, bias=bool(self.options["bias"]))
        except (TypeError, ValueError):
            return None
        random = np.random.default_rng(3)
        # Rounded as the narrowest dtype, so that layers of all dtypes have the same weights.
        return {
            name: (random.normal(size=shape) / math.sqrt(shape[0])).astype("float16").astype(numpy_dtype(config.dtype))
            for name, shape in shapes(config).items()
        }

    def visible(self) -> np.ndarray | None:
        """Which query sees which key by lengths, mask and causal order, (B, 1 or H, 1 or Q, K); None if all do."""
        seen = []
        if self.valid_lens is not None:
            lengths = np.asarray(self.valid_lens)
            seen.append((lengths[..., None] > POSITIONS).reshape(B, 1, -1, K))  # (B, 1, 1 or Q, K)
        if self.mask is not None:
            rank = self.mask.ndim
            seen.append(self.mask if rank == 4 else self.mask[:, None] if rank == 3 else self.mask[None, None])
        if self.causal:
            seen.append((np.arange(Q)[:, None] >= POSITIONS)[None, None])  # (1, 1, Q, K)
        return functools.reduce(np.logical_and, seen) if seen else None


_random = np.random.default_rng(20170612)
PLAIN = Call(*(_random.normal(size=(B, T, D)).astype("float16").astype("float32") for T in (Q, K, K)))
COTANGENT = _random.normal(size=(B, Q, D)).astype("float32")
LENGTHS = np.array([3, 5], "int32")
MASK = _random.random((Q, K)) < 0.6
MASK[:, 0] = True
MASKS = {
    "(Q, K)": MASK,
    "(B, Q, K)": np.stack([MASK, MASK[::-1]]),
    "(B, H, Q, K)": np.stack([np.stack([MASK, MASK[::-1], MASK & MASK[::-1]])] * B),
}
SHORT = PLAIN.but(valid_lens=LENGTHS)


def padded(filling: float, call: Call = SHORT) -> Call:
    """The call with this value in every key and value that its lengths hide."""
    hidden = call.valid_lens[:, None] <= POSITIONS  # (B, K)
    fill = {name: np.where(hidden[:, :, None], call.values.dtype.type(filling), getattr(call, name)) for name in PAIRS}
    return call.but(**fill)


PAIRS = ("keys", "values")


# 2. `mha` and its peers: each takes a call and returns a dict of NumPy arrays: output, weights, gradients


def run_mha(call: Call, backend: str) -> dict[str, np.ndarray]:
    """The call on `mha` itself."""
    attention = mha.MultiHeadAttention(**call.options, backend=backend)
    if (weights := call.weights()) is not None:
        attention.weights = weights
    inputs = [X(backend) if callable(X) else X for X in (call.queries, call.keys, call.values)]
    lengths = call.valid_lens(backend) if callable(call.valid_lens) else call.valid_lens
    hiding = {"valid_lens": lengths, "mask": call.mask, "causal": call.causal}
    result = attention(*inputs, **hiding, training=call.training, return_weights=call.return_weights)
    found = dict(zip(("output", "weights"), result if call.return_weights else (result,), strict=False))
    if call.gradients:
        gradients = attention.gradients(*inputs, **hiding, cotangent=COTANGENT.astype(inputs[0].dtype))
        found["gradients"] = flat(gradients[name] for name in ("queries", "keys", "values"))
    return {name: X if isinstance(X, np.ndarray) else mha.to_numpy(X) for name, X in found.items()}


def run_book(call: Call) -> dict[str, np.ndarray]:
    """The rule that the book's tabs share, written anew in PyTorch: hidden scores become -1e6, nothing is checked."""
    import torch

    class Book:
        def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False, dtype="float32", **ignored):
            self.width, self.num_heads, self.dropout, self.bias = num_hiddens, num_heads, dropout, bias
            # Without weights of ours, those of PyTorch's dense layer stand in.
            new = {f"{name}.kernel": torch.nn.Linear(D, num_hiddens).weight.T for name in ("W_q", "W_k", "W_v", "W_o")}
            weights = call.weights()
            self.weights = new if weights is None else {name: own("torch", X) for name, X in weights.items()}

        def dense(self, name, X):
            X = X @ self.weights[f"{name}.kernel"]
            return X + self.weights[f"{name}.bias"] if self.bias and f"{name}.bias" in self.weights else X

        def split(self, X):
            X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1).transpose(1, 2)  # (B, H, T, d)
            return X.flatten(0, 1)  # (B*H, T, d)

        def hide(self, scores, lengths):
            if lengths is None:
                return scores
            lengths = torch.repeat_interleave(lengths, self.num_heads, dim=0)
            each = torch.repeat_interleave(lengths, scores.shape[1]) if lengths.ndim == 1 else lengths.flatten()
            rows = scores.flatten(0, 1)  # (B*H*Q, K)
            seen = torch.arange(scores.shape[2], dtype=torch.float32) < each[:, None]
            rows[~seen] = -1e6
            return rows.reshape(scores.shape)  # (B*H, Q, K)

        def __call__(self, queries, keys, values, lengths):
            q, k, v = (self.split(self.dense(f"W_{x}", X)) for x, X in zip("qkv", (queries, keys, values), strict=True))
            scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[2])  # (B*H, Q, K)
            weights = torch.softmax(self.hide(scores, lengths), -1)  # (B*H, Q, K)
            pooled = torch.bmm(torch.nn.functional.dropout(weights, self.dropout, call.training), v)  # (B*H, Q, dv)
            merged = pooled.reshape(-1, self.num_heads, *pooled.shape[1:]).transpose(1, 2).flatten(2)  # (B, Q, H*dv)
            output = self.dense("W_o", merged)  # (B, Q, D)
            return output, weights.reshape(-1, self.num_heads, *weights.shape[1:])  # (B, H, Q, K)

    torch.manual_seed(0)
    layer, inputs = Book(**call.options), own_inputs(call, "torch")
    return torch_results(call, inputs, lambda: layer(*inputs, own("torch", call.valid_lens)))


def run_torch(call: Call) -> dict[str, np.ndarray]:
    """`torch.nn.MultiheadAttention`."""
    import torch

    torch.manual_seed(0)
    options = renamed(call.options, num_hiddens="embed_dim", key_size="kdim", value_size="vdim")
    options["dtype"] = getattr(torch, call.dtype)
    layer = torch.nn.MultiheadAttention(**options, batch_first=True).train(call.training)
    if (weights := call.weights()) is not None:
        ours = {name: own("torch", X.T) for name, X in weights.items()}
        kernels = [ours[f"{name}.kernel"] for name in ("W_q", "W_k", "W_v")]
        packed = layer.in_proj_weight is not None
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        state = {"in_proj_weight": torch.cat(kernels)} if packed else dict(zip(names, kernels, strict=True))
        state["out_proj.weight"] = ours["W_o.kernel"]
        if "W_o.bias" in ours:
            state["in_proj_bias"] = torch.cat([ours[f"{name}.bias"] for name in ("W_q", "W_k", "W_v")])
            state["out_proj.bias"] = ours["W_o.bias"]
        layer.load_state_dict(state)
    hiding: dict[str, Any] = {}
    if call.own_mask:
        hiding["attn_mask"] = own("torch", call.mask)
    elif call.causal and call.valid_lens is call.mask is None:
        hiding["is_causal"] = True
    elif (seen := call.visible()) is not None:
        hide = ~np.broadcast_to(seen, (B, H, Q, K)).reshape(B * H, Q, K)  # (B*H, Q, K), True = hide
        hiding["attn_mask"] = torch.tensor(hide)
    inputs = own_inputs(call, "torch")
    want = {"need_weights": call.return_weights, "average_attn_weights": False}
    return torch_results(call, inputs, lambda: layer(*inputs, **hiding, **want))


def run_sdpa(call: Call) -> dict[str, np.ndarray]:
    """`torch.nn.functional.scaled_dot_product_attention`, between projections of ours; it gives no weights."""
    import torch

    weights = {name: own("torch", X) for name, X in call.weights().items()}
    inputs = own_inputs(call, "torch")
    hiding: dict[str, Any] = {"is_causal": call.causal}
    if call.own_mask:
        hiding = {"attn_mask": own("torch", call.mask)}
    elif (call.valid_lens is not None or call.mask is not None) and (seen := call.visible()) is not None:
        hiding = {"attn_mask": torch.tensor(seen)}  # True = may attend

    def dense(name, X):
        return X @ weights[f"{name}.kernel"] + weights[f"{name}.bias"]

    def split(X):
        return X.unflatten(2, (call.options["num_heads"], -1)).transpose(1, 2)  # (B, H, T, d)

    def attend():
        q, k, v = (split(dense(f"W_{x}", X)) for x, X in zip("qkv", inputs, strict=True))
        pooled = torch.nn.functional.scaled_dot_product_attention(q, k, v, **hiding)  # (B, H, Q, dv)
        return (dense("W_o", pooled.transpose(1, 2).flatten(2)),)  # (B, Q, D)

    return torch_results(call, inputs, attend)


def torch_results(call: Call, inputs: list, attend: Callable) -> dict[str, np.ndarray]:
    """Output, weights if there are any, and gradients by the inputs, of something written in PyTorch."""
    import torch

    if call.gradients:
        inputs[:] = [X.requires_grad_() for X in inputs]
    found = {name: X for name, X in zip(("output", "weights"), attend(), strict=False) if X is not None}
    if call.gradients:
        by_inputs = torch.autograd.grad(found["output"], inputs, torch.tensor(COTANGENT).to(found["output"]))
        found["gradients"] = torch.cat([X.flatten() for X in by_inputs])
    return {name: dispatch.load("torch").to_numpy(X) for name, X in found.items()}


def run_keras(call: Call) -> dict[str, np.ndarray]:
    """`keras.layers.MultiHeadAttention`, on TensorFlow."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    width = D // (D if call.options["num_heads"] == D else H)  # Keras asks for the width of a head
    options = {"key_dim": width, **renamed(call.options, num_hiddens="output_shape", bias="use_bias", **WIDTHS)}
    layer = keras.layers.MultiHeadAttention(**options)
    inputs = own_inputs(call, "tensorflow")
    weights = call.weights()
    if weights is not None and all(hasattr(X, "shape") for X in inputs):
        layer.build(*(inputs[i].shape for i in (0, 2, 1)))
        parts = {"W_q": layer.query_dense, "W_k": layer.key_dense, "W_v": layer.value_dense, "W_o": layer.output_dense}
        for name, X in weights.items():
            parameter = getattr(parts[name[:3]], name[4:])
            parameter.assign(X.reshape(parameter.shape))  # (in, H, d), (H, d) and (H, dv, D)
    hiding: dict[str, Any] = {}
    if call.own_mask:
        hiding["attention_mask"] = own("tensorflow", call.mask)
    elif call.causal and call.valid_lens is call.mask is None:
        hiding["use_causal_mask"] = True
    elif (seen := call.visible()) is not None:
        hiding["attention_mask"] = tf.constant(np.broadcast_to(seen, (B, seen.shape[1], Q, K)))  # True = may attend
    with tf.GradientTape() as tape:
        tape.watch([X for X in inputs if isinstance(X, tf.Tensor)])
        result = layer(
            inputs[0], inputs[2], inputs[1], **hiding,
            return_attention_scores=call.return_weights, training=call.training,
        )  # fmt: skip
        found = dict(zip(("output", "weights"), result if call.return_weights else (result,), strict=False))
    found = {name: tf.convert_to_tensor(X) for name, X in found.items()}
    if call.gradients:
        by_inputs = tape.gradient(found["output"], inputs, tf.constant(COTANGENT.astype(call.dtype)))
        found["gradients"] = tf.concat([tf.reshape(X, -1) for X in by_inputs], 0)
    return {name: dispatch.load("tensorflow").to_numpy(X) for name, X in found.items()}


def run_flax(call: Call) -> dict[str, np.ndarray]:
    """`flax.linen.MultiHeadDotProductAttention`."""
    import jax
    from flax import linen

    with dispatch.load("jax").context(call.dtype):
        options = renamed(call.options, num_hiddens="out_features", bias="use_bias", dropout="dropout_rate", **WIDTHS)
        options["qkv_features"] = options["out_features"]
        options["param_dtype"] = options.setdefault("dtype", "float32")
        layer = linen.MultiHeadDotProductAttention(deterministic=not call.training, **options)
        inputs = own_inputs(call, "jax")
        mask = None
        if call.own_mask:
            mask = own("jax", call.mask)
        elif (seen := call.visible()) is not None:
            mask = jax.numpy.asarray(seen)  # True = may attend
        key = jax.random.PRNGKey(0)
        weights = call.weights()
        params = layer.init(key, *inputs)["params"] if weights is None else {}
        names = {"W_q": "query", "W_k": "key", "W_v": "value", "W_o": "out"}
        for name, X in (weights or {}).items():
            part, kind = names[name[:3]], name[4:]
            heads = options["num_heads"]
            if part != "out":
                X = X.reshape(*X.shape[:-1], heads, -1)  # (in, H, d) and (H, d)
            elif kind == "kernel":
                X = X.reshape(heads, -1, X.shape[1])  # (H, dv, D)
            params.setdefault(part, {})[kind] = jax.numpy.asarray(X)

        def attend(*inputs):
            output, state = layer.apply(
                {"params": params}, *inputs, mask=mask, sow_weights=call.return_weights,
                mutable=["intermediates"], rngs={"dropout": key},
            )  # fmt: skip
            return output, state.get("intermediates", {}).get("attention_weights", ())

        if call.gradients:
            output, pull_back, shares = jax.vjp(attend, *inputs, has_aux=True)
            by_inputs = pull_back(jax.numpy.asarray(COTANGENT, output.dtype))
        else:
            output, shares = attend(*inputs)
        found = dict(zip(("output", "weights"), map(np.asarray, (output, *shares)), strict=False))
        if call.gradients:
            found["gradients"] = flat(map(np.asarray, by_inputs))
        return found


def run_mxnet(call: Call, masked: bool = False) -> dict[str, np.ndarray]:
    """MXNet's own operators, between projections of ours: softmax with lengths, or sequence_mask and softmax."""
    from mxnet import autograd, npx
    from mxnet import np as mnp

    weights = {name: own("mxnet", X) for name, X in call.weights().items()}
    inputs = own_inputs(call, "mxnet")
    batch, heads = len(call.queries), call.options["num_heads"]

    def dense(name, X):
        return mnp.dot(X, weights[f"{name}.kernel"]) + weights[f"{name}.bias"]

    def split(X):
        (batch, T, _), d = X.shape, X.shape[2] // heads
        return X.reshape(batch, T, heads, d).transpose(0, 2, 1, 3).reshape(batch * heads, T, d)  # (B*H, T, d)

    def weigh(scores):  # (B*H, Q, K)
        lengths = call.valid_lens
        if lengths is None:
            return npx.softmax(scores)
        lengths = own("mxnet", lengths).repeat(heads, axis=0)
        if not masked:
            lengths = lengths[:, None].repeat(Q, axis=1) if lengths.ndim == 1 else lengths
            return npx.softmax(scores, lengths, axis=-1, use_length=True)
        lengths = lengths.repeat(Q) if lengths.ndim == 1 else lengths.reshape(-1)
        rows = npx.sequence_mask(scores.reshape(-1, K), lengths, True, value=-1e6, axis=1)  # (B*H*Q, K)
        return npx.softmax(rows.reshape(scores.shape))  # (B*H, Q, K)

    for X in inputs if call.gradients else ():
        X.attach_grad()
    with autograd.record() if call.gradients else contextlib.nullcontext():
        q, k, v = (split(dense(f"W_{x}", X)) for x, X in zip("qkv", inputs, strict=True))  # (B*H, T, d)
        shares = weigh(npx.batch_dot(q, k, transpose_b=True) / math.sqrt(q.shape[2]))  # (B*H, Q, K)
        pooled = npx.batch_dot(shares, v)  # (B*H, Q, dv)
        _, num_queries, width = pooled.shape
        pooled = pooled.reshape(batch, heads, num_queries, width).transpose(0, 2, 1, 3)  # (B, Q, H, dv)
        output = dense("W_o", pooled.reshape(batch, num_queries, heads * width))  # (B, Q, D)
    found = {"output": output.asnumpy(), "weights": shares.asnumpy().reshape(batch, heads, *shares.shape[1:])}
    if call.gradients:
        output.backward(mnp.array(COTANGENT, dtype=call.dtype))
        found["gradients"] = flat(X.grad.asnumpy() for X in inputs)
    return found


WIDTHS = {"key_size": None, "value_size": None}  # read off the inputs


def run_compiled(call: Call, backend: str) -> dict[str, np.ndarray]:
    """`mha`'s own layer, compiled by its framework."""
    tab = dispatch.load(backend)
    attention = mha.MultiHeadAttention(**call.options, backend=backend)
    attention.weights = call.weights()
    if backend == "jax":
        import jax

        module, variables = attention.layer.unbind()
        compiled = functools.partial(jax.jit(module.apply), variables)
    elif backend == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(attention.layer)
    else:
        import torch

        torch.compiler.reset()
        compiled = torch.compile(attention.layer, backend="eager")  # which traces, and needs no C++ compiler
    return {"output": tab.to_numpy(compiled(*own_inputs(call, backend), own(backend, call.valid_lens)))}


def own(backend: str, value: Any) -> Any:
    """A NumPy array as the framework's own; a function's array for this backend; anything else as it is."""
    if callable(value):
        return value(backend)
    return dispatch.load(backend).tensor(value) if isinstance(value, np.ndarray) else value


def own_inputs(call: Call, backend: str) -> list:
    """Queries, keys and values as the framework's own."""
    return [own(backend, X) for X in (call.queries, call.keys, call.values)]


def renamed(options: dict[str, Any], **names: str | None) -> dict[str, Any]:
    """Options under a peer's own names; those named None it does without."""
    return {names.get(name, name): value for name, value in options.items() if names.get(name, name) is not None}


def flat(arrays: Any) -> np.ndarray:
    """All numbers of some arrays."""
    return np.concatenate([X.ravel() for X in arrays])


@dataclasses.dataclass(frozen=True)
class Peer:
    """Something to compare with: its title on the page, its adapter, and the arguments that it lacks."""

    title: str
    run: Callable[[Call], dict[str, np.ndarray]]
    lacks: frozenset[str] = frozenset()


PEERS = {
    "book": Peer("the book", run_book, frozenset({"mask", "causal", "key_dim", "value_dim", "pooling"})),
    "torch": Peer("PyTorch `nn.MultiheadAttention`", run_torch, frozenset({"key_dim", "value_dim", "pooling"})),
    "sdpa": Peer(
        "PyTorch `scaled_dot_product_attention`", run_sdpa, frozenset({"training", "key_dim", "value_dim", "pooling"})
    ),
    "keras": Peer("Keras `MultiHeadAttention`", run_keras, frozenset({"pooling"})),
    "flax": Peer(
        "Flax `MultiHeadDotProductAttention`", run_flax, frozenset({"causal", "key_dim", "value_dim", "pooling"})
    ),
    "mxnet": Peer("MXNet `npx.softmax(length)`", run_mxnet, frozenset({"mask", "causal", "training", "pooling"})),
    "mxnet_mask": Peer(
        "MXNet `npx.sequence_mask`",
        functools.partial(run_mxnet, masked=True),
        frozenset({"mask", "causal", "training", "pooling"}),
    ),
    "torch.compile": Peer("`torch.compile`", functools.partial(run_compiled, backend="torch")),
    "tf.function": Peer("`tf.function`", functools.partial(run_compiled, backend="tensorflow")),
    "jax.jit": Peer("`jax.jit`", functools.partial(run_compiled, backend="jax")),
}


# 3. Probes


@dataclasses.dataclass(frozen=True)
class Probe:
    """One row: a call, the rule of `mha` for it in words, and what this rule means as another call, or the error.

    rule: what is given, and what `mha` does; readings: other things that a peer may make of it, by name, as calls of
    `mha` or as functions that know them from the output and `mha`'s own; without: peers to which it does not apply;
    instead: verdicts of peers that are found in another way; backends: those of `mha` that it can be asked of;
    parts: of the results, those that it is about; alone: peers that may crash, and are asked in a process of their own.
    """

    rule: str
    call: Call
    means: Call | None = None
    error: type[Exception] | None = None
    readings: dict[str, Any] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()
    instead: dict[str, Callable[[Call], str]] = dataclasses.field(default_factory=dict)
    backends: tuple[str, ...] = tuple(dispatch.FRAMEWORKS)
    parts: tuple[str, ...] = ("output", "weights", "gradients")
    alone: tuple[str, ...] = ()

    def expected(self) -> dict[str, tuple[Any, Any]]:
        """By reading: the float64 oracle's results and those of plain NumPy in the layer's dtype, `same` first."""
        own = {} if self.error else {"same": self.means or self.call}
        return {name: oracle(call, self.call.gradients) for name, call in (own | self.readings).items()}


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A call of which a query without keys weighs all of them alike."""

    call: Call


def oracle(call: Any, gradients: bool) -> tuple[Any, Any]:
    """What a call means in float64, and what plain NumPy makes of it in the layer's dtype."""
    if isinstance(call, Uniform):
        # Keys of zeros, all seen, weigh the same.
        alike = call.call.but(keys=np.zeros_like(call.call.keys), valid_lens=None)
        empty = ~np.broadcast_to(call.call.visible(), (B, H, Q, K)).any(3)  # (B, H, Q)
        rows = {"output": empty.all(1)[..., None], "weights": empty[..., None]}
        pairs = zip(oracle(call.call, False), oracle(alike, False), strict=True)
        exact, base = (
            {part: np.where(row, even[part], own[part]) for part, row in rows.items()} for own, even in pairs
        )
        return exact, base
    if not isinstance(call, Call):
        return call, None
    call = call.but(return_weights=True, gradients=gradients)
    return run_mha(call.widened(), "numpy"), run_mha(call, "numpy")


Outcome = dict[str, np.ndarray] | Exception


def outcome(run: Callable[..., dict[str, np.ndarray]], *arguments: Any) -> Outcome:
    """What a call came to: arrays by name, or the exception."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return run(*arguments)
        except Exception as problem:
            return problem
        finally:
            if "mxnet" in sys.modules:  # it computes later, and would raise what went wrong once more at the end
                with contextlib.suppress(Exception):
                    sys.modules["mxnet"].nd.waitall()


def verdict(found: Outcome, probe: Probe, expected: dict[str, tuple[Any, Any]]) -> str:
    """In a word what a call came to; output, weights and gradients one by one where they differ."""
    if isinstance(found, Exception):
        return f"`{type(found).__name__}`"
    parts = {part: part_verdict(part, X, probe, expected) for part, X in found.items() if part in probe.parts}
    first, *others = parts.items()
    return "; ".join([first[1], *(f"{part} {word}" for part, word in others if word != first[1])])


def part_verdict(part: str, X: np.ndarray, probe: Probe, expected: dict[str, tuple[Any, Any]]) -> str:
    """In a word what one array is."""
    dtype = probe.call.dtype
    if X.dtype != numpy_dtype(dtype):
        return f"returns {X.dtype}"
    for reading, (exact, base) in expected.items():
        if callable(exact):
            if exact(part, X):
                return reading
            continue
        if agrees(part, X, exact, base, dtype):
            return reading
        if dtype == "float64" and agrees(part, X, exact, {part: exact[part].astype("float32")}, "float32"):
            return f"{reading}, in float32 precision"
    if not expected:
        return "takes it"
    shape = next((exact[part].shape for exact, _ in expected.values() if not callable(exact)), X.shape)
    if X.shape != shape:
        return f"shape {X.shape}"
    X = X.astype("float64")
    return "NaN" if np.isnan(X).any() else "Inf" if np.isinf(X).any() else "other numbers"


def agrees(part: str, X: np.ndarray, exact: dict, base: dict, dtype: str) -> bool:
    """Whether an array is what a reading says, by the rule of `mha/parity/rules.py`."""
    limit = parity.bound(dtype, exact[part], base[part], gradient=part == "gradients")
    return parity.error(X, exact[part]) <= limit


def ask_mha(probe: Probe, expected: dict[str, tuple[Any, Any]]) -> tuple[str, bool]:
    """The verdict on `mha`, on all backends where they agree, and whether it is what the rule says."""
    words: dict[str, list[str]] = {}  # backends by what came
    texts, right = set(), True
    for backend in probe.backends:
        found = outcome(run_mha, probe.call, backend)
        word = verdict(found, probe, expected)
        lacking = probe.error is None and probe.call.dtype not in dispatch.load(backend).DTYPES
        error = ValueError if lacking else probe.error
        right = right and (type(found) is error if error else word == "same")
        if isinstance(found, Exception) and not lacking and not callable(probe.call.queries):
            texts.add(str(found).replace(repr(backend), "its own"))
        words.setdefault(word, []).append(backend)
    most = max(words, key=lambda word: len(words[word]))
    rest = [f"{', '.join(backends)}: {word}" for word, backends in words.items() if word != most]
    differ = ["in other words on each backend"] if len(texts) > 1 else []
    return "; ".join([most, *rest, *differ]), right and not differ


def ask_peer(name: str, probe: Probe, expected: dict[str, tuple[Any, Any]], by_itself: bool = False) -> str:
    """The verdict on a peer; a dash where it has no counterpart of what the probe is about."""
    call, peer = probe.call, PEERS[name]
    if name in probe.alone and not by_itself:
        command = [sys.executable, __file__, "--one", name, probe.rule]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode > 0:
            raise RuntimeError(process.stderr)
        return "crashes" if process.returncode < 0 else process.stdout.strip()
    if name in probe.instead:
        return probe.instead[name](call)
    given = {"mask": call.mask is not None, "causal": call.causal, "training": call.training}
    used = {name for name, is_given in given.items() if is_given} | set(call.options)
    if name in probe.without or used & peer.lacks:
        return "—"
    return verdict(outcome(peer.run, call), probe, expected)


# Inputs


def changed(X: np.ndarray, at: Any, value: float) -> np.ndarray:
    """A copy with other numbers at some place."""
    X = X.copy()
    X[at] = value
    return X


def in_dtype(call: Call, dtype: str) -> Call:
    """The call with layer and inputs of a dtype."""
    inputs = {name: getattr(call, name).astype(numpy_dtype(dtype)) for name in ("queries", "keys", "values")}
    return call.but({"dtype": dtype}, **inputs)


def after_dropout(part: str, X: np.ndarray) -> bool:
    """Whether these are the attention weights of the plain call, some dropped and the others doubled."""
    plain = 2 * run_mha(PLAIN, "numpy")["weights"]
    return part == "weights" and np.allclose(X, np.where(X == 0, 0, plain), rtol=1e-5)


def foreign(X: np.ndarray) -> Callable[[str], Any]:
    """An array of PyTorch, or for PyTorch one of JAX."""
    return lambda backend: dispatch.load("jax" if backend == "torch" else "torch").tensor(X)


def meta(backend: str) -> Any:
    """Queries that have a shape and a dtype and hold no numbers."""
    import torch

    return torch.empty((B, Q, D), device="meta")


def reads_past_the_end(call: Call) -> str:
    """Whether PyTorch's function, given fewer keys than values, uses what lies in memory behind the keys."""
    import torch

    q, values = torch.ones(B, H, Q, D // H), torch.arange(float(B * H * K * D // H)).reshape(B, H, K, D // H)
    found = []
    for behind in (0.0, 1.0):
        memory = torch.full((B, H, K, D // H), behind)
        keys = memory[:, :, :-2]
        keys[:] = 0
        try:
            found.append(torch.nn.functional.scaled_dot_product_attention(q, keys, values))
        except RuntimeError as problem:
            return f"`{type(problem).__name__}`"
    return "takes it" if torch.equal(*found) else "reads memory behind the keys"


def numbers(part: str, X: np.ndarray) -> bool:
    """Whether there are numbers at all, whatever they are."""
    return True


def uniform(call: Call) -> dict[str, Any]:
    """The reading that a query without keys weighs all of them alike."""
    return {"uniform over padding": Uniform(call)}


def lens(*lengths: Any, dtype: str = "int32") -> Call:
    """The plain call with these lengths."""
    return PLAIN.but(valid_lens=np.array(lengths, dtype))


def each(change: Callable[[np.ndarray], Any], *names: str) -> Call:
    """The plain call with some inputs changed, by default all three."""
    return PLAIN.but(**{name: change(getattr(PLAIN, name)) for name in names or ("queries", "keys", "values")})


def scaled(call: Call, factor: float) -> Call:
    """The call with all inputs times a number."""
    inputs = {name: getattr(call, name) for name in ("queries", "keys", "values")}
    return call.but(**{name: X * X.dtype.type(factor) for name, X in inputs.items()})


ZERO = lens(0, 5)
HALF_ZERO = in_dtype(ZERO, "float16")
LARGE = scaled(lens(1, 5), 1e4)
ONE_EMPTY = lens([1, 0, 2, 7, 5], [5, 2, 4, 1, 6])
NOT_NEGATIVE = lens([K, 0, K, 3, 2], [K, 0, K, 3, 2])
NEGATIVE = lens([K, -1, K, 3, 2], [K, -1, K, 3, 2])
EACH_QUERY = lens([1, 3, 2, 7, 5], [5, 2, 4, 1, 6])
ALL = ("book", "torch", "sdpa", "keras", "flax", "mxnet")
LAYERS = ("book", "torch", "keras", "flax")
MASKED = ("torch", "sdpa", "keras", "flax")
OPERATORS = ("sdpa", "mxnet")  # no layers: what is asked of a layer would reach our projections
WITH_LENGTHS = ("book", "mxnet_mask", "mxnet")


@dataclasses.dataclass(frozen=True)
class Table:
    """A section of the page: title, text above the table, the peers in its columns, its rows."""

    title: str
    text: str
    peers: tuple[str, ...]
    probes: tuple[Probe, ...]


TABLES = (
    Table(
        "What is computed",
        """For head i, `h_i = f(W_q^i q, W_k^i k, W_v^i v)`; the H heads side by side, times `W_o`, are the output.
Columns of `W_q`, `W_k`, `W_v` and rows of `W_o` are head-major, head 0 first, so that all heads are one product.
PyTorch packs its first three kernels into one and stores transposes; Keras and Flax keep an axis for the heads. Given
the same weights, all compute the same. Keras takes values before keys, and its `key_dim` is the width of one head.
PyTorch's layer takes `is_causal` as a hint about a mask that it wants too; Flax' layer and MXNet's operators have no
such argument. Gradients are compared in the rows on lengths.
(*Dive into Deep Learning*, sections "Attention Scoring Functions" and "Multi-Head Attention".)""",
        ALL,
        (
            Probe("No lengths, no mask: softmax(q kᵀ / √d) v in each head", PLAIN),
            Probe(
                "`key_size=29, value_size=31`: keys and values have widths of their own",
                PLAIN.but({"key_size": 29, "value_size": 31}, keys=PLAIN.keys[..., :29], values=PLAIN.values[..., :31]),
            ),
            Probe("`key_dim=5, value_dim=13`: so have the heads", PLAIN.but({"key_dim": 5, "value_dim": 13})),
            Probe(
                "`pooling='additive'`: softmax(w_vᵀ tanh(W_q q + W_k k)) v in each head",
                PLAIN.but({"pooling": "additive"}),
            ),
            Probe("`valid_lens` (B,): a query of sample b sees key j iff j < valid_lens[b]", SHORT.but(gradients=True)),
            Probe(
                "`valid_lens` (B, Q): query i of sample b sees key j iff j < valid_lens[b, i]",
                EACH_QUERY.but(gradients=True),
            ),
            Probe(
                "`causal=True`, Q < K: query i sees key j iff j <= i, counted from the first", PLAIN.but(causal=True)
            ),
            Probe(
                "Lengths, mask and causal order together: a key is seen iff all three allow it",
                EACH_QUERY.but(mask=MASK, causal=True),
                without=("flax",),
            ),
        ),
    ),
    Table(
        "A query that may see no key",
        """It gets weights 0 and pooled value 0, so that `W_o`'s bias alone is its output, and sends no gradient: one
rule on every backend, dtype and path, as in the operator `Attention` of ONNX and in PyTorch's fused kernel. The book's
-1e6 makes the row uniform over padding, and is minus infinity in float16. The layers of PyTorch and Keras change the
output with whether weights are asked for.""",
        ALL,
        (
            Probe("A length of 0, weights asked for", ZERO, readings=uniform(ZERO)),
            Probe(
                "A length of 0, weights not asked for: the same output",
                ZERO.but(return_weights=False),
                readings=uniform(ZERO),
            ),
            Probe(
                "A length of 0, gradients by queries, keys and values: 0",
                ZERO.but(gradients=True),
                parts=("gradients",),
            ),
            Probe("A length of 0 for one query of a sample", ONE_EMPTY, readings=uniform(ONE_EMPTY)),
            Probe(
                "A length of 0 in float16 (MXNet multiplies none on the CPU)",
                HALF_ZERO,
                readings=uniform(HALF_ZERO),
            ),
        ),
    ),
    Table(
        "Padding and extreme values",
        """A key-value position that no query may see has no influence on any output or gradient, whatever it holds;
hidden keys weigh exactly 0 at any scale of the scores. A weight of 0 alone does not do that, since 0 times NaN is NaN.
What a position that is seen holds is the caller's affair, but NaN stays in its sample, or in its query's row.
`trace` shows scores before masking, and projections of what padding holds; nothing after them does.""",
        ALL,
        (
            Probe("NaN in padded keys and values: no influence", padded(np.nan).but(gradients=True), SHORT),
            Probe("Infinity there", padded(np.inf).but(gradients=True), SHORT),
            Probe("1e30 there", padded(1e30).but(gradients=True), SHORT),
            Probe("All inputs times 1e4: the padding still has no weight", LARGE),
            Probe(
                "NaN in a value that is seen: NaN in its sample alone",
                SHORT.but(values=changed(SHORT.values, (0, 1), np.nan)),
                parts=("output",),
            ),
            Probe(
                "NaN in a query: NaN in its row alone",
                SHORT.but(queries=changed(SHORT.queries, (0, 1), np.nan)),
                parts=("output",),
            ),
            Probe("float16, scores beyond its largest number 65504: finite", in_dtype(scaled(SHORT, 250), "float16")),
        ),
    ),
    Table(
        "Dropout",
        """Inverted dropout on the attention weights, only when training. Those that are returned are as before it.""",
        LAYERS,
        (
            Probe("`dropout=0.5`, not training: no effect", PLAIN.but({"dropout": 0.5})),
            Probe(
                "`dropout=0.5`, training: the weights that are returned",
                PLAIN.but({"dropout": 0.5}, training=True),
                readings={"after dropout": after_dropout},
                parts=("weights",),
            ),
        ),
    ),
    Table(
        "Construction",
        """Bad options are refused when the layer is made. A peer's verdict is on making the layer and calling it once,
not training. Keras is told the width of a head and so has no multiple to ask for.""",
        LAYERS,
        (
            Probe(
                "`num_hiddens=33, num_heads=2`: no multiple",
                PLAIN.but({"num_heads": 2}),
                error=ValueError,
                without=("keras",),
            ),
            *(Probe(f"`num_heads={n!r}`", PLAIN.but({"num_heads": n}), error=ValueError) for n in (0, -3)),
            *(Probe(f"`num_heads={n!r}`", PLAIN.but({"num_heads": n}), error=TypeError) for n in (3.0, "3", True)),
            *(Probe(f"`num_hiddens={n!r}`", PLAIN.but({"num_hiddens": n}), error=ValueError) for n in (0, -33)),
            Probe("`num_hiddens=33.0`", PLAIN.but({"num_hiddens": 33.0}), error=TypeError),
            Probe("`key_size=-1`", PLAIN.but({"key_size": -1}), error=ValueError, without=("book", "keras", "flax")),
            *(
                Probe(f"`dropout={p!r}`", PLAIN.but({"dropout": p}), error=error, readings={"takes it": PLAIN})
                for p, error in ((1.5, ValueError), (1.0, ValueError), (math.nan, ValueError), ("0.1", TypeError))
            ),
            Probe("`bias=1`", PLAIN.but({"bias": 1}), error=TypeError, readings={"takes it": PLAIN}),
            Probe(
                "An unknown keyword, `use_biases=True`",
                PLAIN.but({"use_biases": True}),
                error=TypeError,
                readings={"takes it": PLAIN},
            ),
            Probe("`pooling='max'`", PLAIN.but({"pooling": "max"}), error=ValueError),
            Probe("`dtype='int32'`", PLAIN.but({"dtype": "int32"}), error=ValueError, without=("book",)),
        ),
    ),
    Table(
        "Shapes",
        """Shapes are checked before any kernel runs, also while `jax.jit`, `tf.function` and `torch.compile` trace.
Nothing broadcasts. PyTorch's function, given fewer keys than values, uses what lies in memory behind the keys.""",
        ALL,
        (
            Probe(
                "Queries, keys and values (T, D), without a batch",
                each(lambda X: X[0]),
                error=ValueError,
                without=OPERATORS,
            ),
            Probe("Queries of rank 1", each(lambda X: X[0, 0], "queries"), error=ValueError, without=OPERATORS),
            Probe("All three of rank 4", each(lambda X: X[:, None]), error=ValueError, without=OPERATORS),
            Probe(
                "Keys and values of B + 1 samples",
                each(lambda X: np.concatenate([X, X[:1]]), "keys", "values"),
                error=ValueError,
            ),
            Probe(
                "Keys and values of 1 sample, queries of B",
                each(lambda X: X[:1], "keys", "values"),
                error=ValueError,
                readings={"broadcasts": each(lambda X: np.repeat(X[:1], B, 0), "keys", "values")},
            ),
            Probe(
                "Fewer keys than values",
                each(lambda X: X[:, 2:], "keys"),
                error=ValueError,
                instead={"sdpa": reads_past_the_end},
            ),
            Probe(
                "Fewer values than keys",
                each(lambda X: X[:, 2:], "values"),
                error=ValueError,
                readings={"ignores the last keys": each(lambda X: X[:, :-2], "keys").but(values=PLAIN.values[:, 2:])},
            ),
            Probe(
                "Keys of another width than the layer's",
                each(lambda X: X[..., 2:], "keys"),
                error=ValueError,
                without=OPERATORS,
            ),
            Probe("`None` as queries", each(lambda X: None, "queries"), error=TypeError, without=OPERATORS),
            Probe("A string as queries", each(lambda X: "queries", "queries"), error=TypeError, without=OPERATORS),
            Probe("Nested lists: converted", each(lambda X: X.tolist()), PLAIN, without=OPERATORS),
        ),
    ),
    Table(
        "Dtypes and devices",
        """Nothing is cast silently: inputs have the layer's dtype, float32 unless asked otherwise. In half precision
dot products, softmax and pooled values are computed in float32 and then rounded. MXNet has no half-precision matrix
product on the CPU, so `mha` refuses such layers there. Keras rounds 1 / √d to float32 in float64 too.""",
        ALL,
        (
            *(
                Probe(f"{dtype}, everything in it", in_dtype(SHORT, dtype))
                for dtype in ("float64", "float16", "bfloat16")
            ),
            Probe(
                "float64 inputs into a float32 layer",
                each(lambda X: X.astype("float64")),
                error=TypeError,
                readings={"casts to float32": PLAIN},
            ),
            Probe(
                "float16 keys beside float32 queries",
                each(lambda X: X.astype("float16"), "keys"),
                error=TypeError,
                readings={"casts to float32": PLAIN},
            ),
            Probe(
                "int32 queries",
                each(lambda X: X.astype("int32"), "queries"),
                error=TypeError,
                readings={"casts to float32": each(np.trunc, "queries")},
            ),
            Probe(
                "bool queries",
                each(lambda X: X > 0, "queries"),
                error=TypeError,
                readings={"casts to float32": each(lambda X: (X > 0).astype("float32"), "queries")},
            ),
            Probe(
                "complex64 queries",
                each(lambda X: X.astype("complex64"), "queries"),
                error=TypeError,
                readings={"drops the imaginary part": PLAIN},
            ),
            Probe(
                "Queries of Python objects",
                each(lambda X: X.astype(object), "queries"),
                error=TypeError,
                readings={"casts to float32": PLAIN},
                without=OPERATORS,
            ),
            Probe(
                "Queries of another framework",
                PLAIN.but(queries=foreign(PLAIN.queries)),
                error=TypeError,
                readings={"converts them": PLAIN},
            ),
            Probe(
                "PyTorch queries on the device `meta`, which hold no numbers (`mha` on PyTorch)",
                PLAIN.but(queries=meta),
                error=TypeError,
                readings={"returns numbers": numbers},
                without=("keras", "flax", "mxnet"),
                backends=("torch",),
            ),
        ),
    ),
    Table(
        "Lengths",
        """Integers of any width, (B,) or (B, Q), arrays or lists. The layers of PyTorch, Keras and Flax take masks and
no lengths; the book and MXNet's operators do, repeated over the heads by the caller. MXNet checks no values: with a
length above K, `npx.softmax` reads the rows behind, and below 0 both operators overwrite the row in front. `mha` checks
values of lengths wherever they are known; compiled code does not know them, see below.""",
        WITH_LENGTHS,
        (
            Probe(
                "A length of -1",
                NEGATIVE,
                error=ValueError,
                readings={"as 0": NOT_NEGATIVE, **uniform(NOT_NEGATIVE)},
            ),
            Probe("A length above K: hides nothing", lens(K + 2, 3)),
            Probe(
                "A length of 2 ** 40 in int64: hides nothing",
                lens(2**40, 3, dtype="int64"),
                readings={"as 0": lens(0, 3), **uniform(lens(0, 3))},
            ),
            Probe(
                "2.5",
                lens(2.5, 4, dtype="float32"),
                error=TypeError,
                readings={"3 keys": lens(3, 4), "2 keys": lens(2, 4)},
            ),
            Probe("2.0", lens(2, 4, dtype="float32"), error=TypeError, readings={"2 keys": lens(2, 4)}),
            Probe(
                "NaN",
                lens(math.nan, 4, dtype="float32"),
                error=TypeError,
                readings={"as 0": lens(0, 4), "hides nothing": lens(K, 4), **uniform(lens(0, 4))},
                alone=("mxnet_mask",),
            ),
            Probe("Booleans", lens(True, True, dtype="bool"), error=TypeError, readings={"as 1": lens(1, 1)}),
            Probe(
                "Boolean keys (B, K), as a mask has them, where Q = K",
                PLAIN.but(queries=PLAIN.keys, valid_lens=LENGTHS[:, None] > POSITIONS),
                error=TypeError,
            ),
            Probe("A list", PLAIN.but(valid_lens=[3, 5]), without=("mxnet_mask", "mxnet")),
            Probe("A tuple", PLAIN.but(valid_lens=(3, 5)), without=("mxnet_mask", "mxnet")),
            Probe("uint8", lens(3, 5, dtype="uint8")),
            Probe(
                "uint64, one above 2 ** 63",
                lens(2**63 + 1, 3, dtype="uint64"),
                means=lens(K, 3),
                readings={"as 0": lens(0, 3), **uniform(lens(0, 3))},
            ),
            Probe(
                "Of another framework: converted",
                PLAIN.but(valid_lens=foreign(LENGTHS)),
                means=SHORT,
                without=("mxnet_mask", "mxnet"),
            ),
            Probe("(B + 1,)", lens(3, 5, 2), error=ValueError),
            Probe("(1,), B = 2", lens(3), error=ValueError, readings={"broadcasts": lens(3, 3)}),
            Probe("(B, Q + 1)", lens([3] * (Q + 1), [5] * (Q + 1)), error=ValueError),
            Probe(
                "(Q, B): the sizes multiply",
                lens(*EACH_QUERY.valid_lens.T),
                error=ValueError,
                readings={
                    "as (B, Q)": EACH_QUERY,
                    "in the order of memory": EACH_QUERY.but(valid_lens=EACH_QUERY.valid_lens.T.reshape(B, Q)),
                },
            ),
            Probe("(B, 1), Q = 5", lens([3], [5]), error=ValueError, readings={"broadcasts": SHORT}),
            Probe("A number alone", PLAIN.but(valid_lens=3), error=TypeError, without=("mxnet_mask", "mxnet")),
            Probe(
                "(B, Q, 1)",
                lens(*EACH_QUERY.valid_lens[..., None]),
                error=ValueError,
                readings={"as (B, Q)": EACH_QUERY},
            ),
        ),
    ),
    Table(
        "Masks",
        """Booleans, **True = may attend**, (Q, K), (B, Q, K) or (B, H, Q, K), where a size may be 1. Here every layer
is given the array as it is. PyTorch's two functions read booleans in opposite ways, and add a mask of floats to the
scores (documentation of `torch.nn.MultiheadAttention` and of `torch.nn.functional.scaled_dot_product_attention`);
elsewhere on this page they get booleans in their own convention. Flax takes (B, Q, K) for (H, Q, K), an error only as
long as B differs from H.""",
        MASKED,
        (
            *(
                Probe(f"{shape}", PLAIN.but(mask=mask, own_mask=True), readings={"True = hide": PLAIN.but(mask=~mask)})
                for shape, mask in MASKS.items()
            ),
            Probe(
                "(1, K)", PLAIN.but(mask=MASK[:1], own_mask=True), readings={"True = hide": PLAIN.but(mask=~MASK[:1])}
            ),
            Probe("(B, 1, 1, K)", PLAIN.but(mask=(LENGTHS[:, None] > POSITIONS)[:, None, None], own_mask=True)),
            Probe(
                "float32 zeros and ones",
                PLAIN.but(mask=MASK.astype("float32"), own_mask=True),
                error=TypeError,
                readings={"as booleans": PLAIN.but(mask=MASK)},
            ),
            Probe(
                "int32 zeros and ones",
                PLAIN.but(mask=MASK.astype("int32"), own_mask=True),
                error=TypeError,
                readings={"as booleans": PLAIN.but(mask=MASK)},
            ),
            Probe("(K, Q)", PLAIN.but(mask=MASK.T, own_mask=True), error=ValueError),
            Probe(
                "(K,)",
                PLAIN.but(mask=MASK[1], own_mask=True),
                error=ValueError,
                readings={"broadcasts": PLAIN.but(mask=MASK[1:2])},
            ),
            Probe(
                "Rank 5",
                PLAIN.but(mask=MASK[None, None, None], own_mask=True),
                error=ValueError,
                readings={"broadcasts": PLAIN.but(mask=MASK)},
            ),
        ),
    ),
    Table(
        "Empty and single",
        """Without samples or queries there is nothing to compute; without keys every query sees none.""",
        ALL,
        (
            Probe("B = 0", each(lambda X: X[:0])),
            Probe("Q = 0", each(lambda X: X[:, :0], "queries")),
            Probe("K = 0", each(lambda X: X[:, :0], "keys", "values")),
            Probe("Q = K = 1", each(lambda X: X[:, :1])),
            Probe("d = 1", PLAIN.but({"num_heads": D})),
        ),
    ),
    Table(
        "Compiled",
        """`attention.layer`, compiled by its framework, beside `mha` as it is called without a compiler. Shapes and
dtypes are known while a compiler traces, and are checked as ever. Values of lengths are not known: there is no check
of them, a length below 0 acts as 0 and one above K as K.""",
        ("torch.compile", "tf.function", "jax.jit"),
        (
            Probe("Lengths as they should be", SHORT, parts=("output",)),
            Probe("A length of 0", ZERO, parts=("output",)),
            Probe("A length above K", lens(K + 2, 3), parts=("output",)),
            Probe("A length of -1", lens(-1, 3), error=ValueError, readings={"as 0": lens(0, 3)}, parts=("output",)),
            Probe("Lengths (B, Q, 1)", lens(*EACH_QUERY.valid_lens[..., None]), error=ValueError),
            Probe("Fewer keys than values", SHORT.but(keys=SHORT.keys[:, 2:]), error=ValueError),
            Probe("float16 keys beside float32 queries", SHORT.but(keys=SHORT.keys.astype("float16")), error=TypeError),
        ),
    ),
)


# 4. Promises that have no counterpart elsewhere


def unchanged(attention: mha.MultiHeadAttention) -> bool:
    """No argument is changed."""
    given = [X.copy() for X in (SHORT.queries, SHORT.keys, SHORT.values, LENGTHS, MASK)]
    before = [X.copy() for X in given]
    attention(*given[:4], mask=given[4])
    attention.gradients(*given[:4], mask=given[4])
    return all(map(np.array_equal, given, before))


def memory_orders(attention: mha.MultiHeadAttention) -> bool:
    """Arrays of any memory order are the same arrays."""
    inputs = SHORT.queries, SHORT.keys, SHORT.values
    ways = (np.asfortranarray, lambda X: np.ascontiguousarray(X[::-1])[::-1], lambda X: np.repeat(X, 2, 1)[:, ::2])
    return all(np.array_equal(attention(*map(way, inputs), LENGTHS), attention(*inputs, LENGTHS)) for way in ways)


def same_bits(attention: mha.MultiHeadAttention) -> bool:
    """The same call gives the same bits; with weights returned too, the same output up to rounding."""
    arguments = SHORT.queries, SHORT.keys, SHORT.values, LENGTHS
    first, with_weights = attention(*arguments), attention(*arguments, return_weights=True)[0]
    same = np.array_equal(first, attention(*arguments))
    return same and max(parity.ratio(attention, X, *arguments) for X in (first, with_weights)) <= 1


def same_weights(attention: mha.MultiHeadAttention) -> bool:
    """The same seed draws the same weights as on NumPy, bit for bit."""
    return equal(attention.weights, mha.MultiHeadAttention(**PLAIN.options, backend="numpy").weights)


def many_keys(attention: mha.MultiHeadAttention) -> bool:
    """Lengths of every integer dtype count alike, with more keys than uint8 can count."""
    X, Y = np.ones((B, 1, D), "float32"), np.ones((B, 300, D), "float32")
    for dtype in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        _, weights = attention(X, Y, Y, np.array([2, 127], dtype), return_weights=True)  # (B, H, 1, 300)
        if ((weights > 0).sum(-1) != np.array([2, 127])[:, None, None]).any():
            return False
    return True


def saved(attention: mha.MultiHeadAttention) -> bool:
    """A layer comes back from its file bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        attention.save(path)
        return equal(mha.load(path, attention.backend).weights, attention.weights)


def no_other_files(attention: mha.MultiHeadAttention) -> bool:
    """A file that is empty, cut short, too long, or a renamed pickle raises ValueError; nothing is ever unpickled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        attention.save(path)
        data = path.read_bytes()
        for bad in (b"", data[:-1], data[: len(data) // 2], data + b"0", pickle.dumps({"W_q.kernel": 1})):
            path.write_bytes(bad)
            if not raises(ValueError, lambda: mha.load(path, attention.backend)):
                return False
    return True


def no_other_weights(attention: mha.MultiHeadAttention) -> bool:
    """Weights with a name missing, one too many, or another shape or dtype raise, and the layer stays as it was."""
    before = attention.weights
    ones = {name: np.ones_like(X) for name, X in before.items()}
    wrong = (
        {name: X for name, X in ones.items() if name != "W_o.bias"},
        ones | {"W_o.scale": ones["W_o.bias"]},
        ones | {"W_o.bias": ones["W_o.bias"][1:]},
        ones | {"W_o.bias": ones["W_o.bias"].astype("float64")},
    )
    refused = all(
        raises((TypeError, ValueError), lambda arrays=arrays: setattr(attention, "weights", arrays)) for arrays in wrong
    )
    return refused and equal(attention.weights, before)


def no_other_layers(attention: mha.MultiHeadAttention) -> bool:
    """`sync` from a layer of another number of heads, bias or pooling raises ValueError, and changes nothing."""
    before = attention.weights
    for options in ({"num_heads": 11}, {"bias": False}, {"pooling": "additive"}):
        other = mha.MultiHeadAttention(**(PLAIN.options | options), seed=1, backend=attention.backend)
        if not raises(ValueError, lambda other=other: mha.sync(other, attention)):
            return False
    return equal(attention.weights, before)


def known_names(attention: mha.MultiHeadAttention) -> bool:
    """An unknown backend raises ValueError with the known ones."""
    return raises(ValueError, lambda: attention.to("keras"))


PROMISES = (
    unchanged, memory_orders, same_bits, same_weights, many_keys,
    saved, no_other_files, no_other_weights, no_other_layers, known_names,
)  # fmt: skip


def equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    """Whether two sets of weights are the same, bit for bit."""
    return left.keys() == right.keys() and all(np.array_equal(X, right[name]) for name, X in left.items())


def raises(error: Any, function: Callable[[], Any]) -> bool:
    """Whether a function raises just this class of error, or one of these."""
    try:
        function()
    except Exception as problem:
        return type(problem) in (error if isinstance(error, tuple) else (error,))
    return False


def keeps(promise: Callable[[mha.MultiHeadAttention], bool], backend: str) -> bool:
    """Whether a backend keeps a promise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return promise(mha.MultiHeadAttention(**PLAIN.options, backend=backend))


# 5. The page

HEAD = """# What happens if ...

What `mha` does with each kind of input, for users who ask what happens if they pass it, and beside that what the same
input comes to in *Dive into Deep Learning* and in the frameworks' own attention, for those who port code from there.
Each verdict in the tables is the outcome of a call, made by `python docs/make_semantics.py`; none is typed by hand.

Letters: B batch, Q queries, K keys and values, T either of the two, H heads, D `num_hiddens`, d and dv widths of a
query or key head and of a value head. Here B = {B}, Q = {Q}, K = {K}, H = {H}, D = {D}.

On the CPU with {versions}.

## How to read the tables

The column **mha** holds the outcome on all five backends, which must be one. The other columns:

- **the book**: the rule that its tabs share, written anew in PyTorch: hidden scores become -1e6, lengths are repeated
  over the heads, nothing is checked.
- **PyTorch, Keras, Flax**: their own layers, with the same weights. They take masks, made from the lengths in each
  one's own convention. PyTorch's function stands between projections of ours, and gives no attention weights.
- **MXNet**: it brings no attention layer, only operators: here `npx.softmax` with lengths, or `npx.sequence_mask` with
  -1e6 and a softmax, between projections of ours. (Its `contrib` products for interleaved heads mask nothing.)

The words:

- **same**: what the rule in the first column says, up to rounding: output, attention weights where the peer gives them,
  and gradients where the row names them, within the bounds of [`mha.parity`](../mha/parity/rules.py) from a float64
  oracle. Where the parts differ, the output comes first: "NaN; weights same".
- **NaN**, **Inf**: there are some where the rule has none. **other numbers**: finite, and not what the rule says.
- `TypeError` and the like: the class of the error. An error of `mha` names the argument, what was expected, what came
  and what to do, in the same words on every backend.
- **takes it**: no error, though the input makes no sense to `mha`. What it is taken for is named where it was found:
  "uniform over padding", "3 keys", "broadcasts", "casts to float32".
- **crashes**: the process ends. **—**: the peer has no such argument, or the row does not apply to it.
- **same; mxnet: `ValueError`**: MXNet lacks the dtype, and `mha` refuses to make such a layer there.

Gradients are those of sum(output * cotangent) by queries, keys and values, without dropout; `attention.gradients` gives
those by the weights too. Of several kinds of hiding, each is enough to hide a key: lengths, mask and causal order
combine by "and".
"""

PROMISED = """## Besides

What has no counterpart to compare with. **kept** means on all five backends.

| promise | mha |
|---|---|
"""


def page() -> tuple[str, list[str]]:
    """The text of the page, and the rules that `mha` does not keep."""
    broken, lines = [], [HEAD.format(B=B, Q=Q, K=K, H=H, D=D, versions=versions())]
    for table in TABLES:
        titles = ["", "mha", *(PEERS[name].title for name in table.peers)]
        lines += [f"## {table.title}\n", f"{table.text}\n", row(titles), "|---" * len(titles) + "|"]
        for probe in table.probes:
            expected = probe.expected()
            ours, right = ask_mha(probe, expected)
            if not right:
                broken.append(f"{table.title}: {probe.rule}: {ours}")
            lines.append(row([probe.rule, ours, *(ask_peer(name, probe, expected) for name in table.peers)]))
        lines.append("")
    promises = []
    for promise in PROMISES:
        without = [backend for backend in dispatch.FRAMEWORKS if not keeps(promise, backend)]
        if without:
            broken.append(f"{promise.__doc__} not kept on {', '.join(without)}")
        promises.append(row([promise.__doc__, f"not on {', '.join(without)}" if without else "kept"]))
    return "\n".join(lines) + "\n" + PROMISED + "\n".join(promises) + "\n", broken


def row(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def versions() -> str:
    """The frameworks and their versions."""
    packages = {"NumPy": "numpy", "PyTorch": "torch", "TensorFlow": "tensorflow-cpu", "Keras": "keras", "JAX": "jax"}
    packages |= {"Flax": "flax", "MXNet": "mxnet"}
    return ", ".join(f"{name} {metadata.version(package).partition('+')[0]}" for name, package in packages.items())


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; say whether the page is as it would be.")
    ] = False,
    one: Annotated[tuple[str, str], typer.Option(hidden=True, help="Ask one peer, by name, one probe, by rule.")] = (
        "",
        "",
    ),
) -> None:
    """Write docs/semantics.md from what `mha`, the book's rule and the frameworks' own layers answer.

    Exit code 1 if `mha` itself does not keep a rule, or if the page differs and --check is given.
    """
    if any(one):
        name, rule = one
        probe = next(probe for table in TABLES for probe in table.probes if probe.rule == rule)
        typer.echo(ask_peer(name, probe, probe.expected(), by_itself=True))
        return
    text, broken = page()
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if check:
        difference = difflib.unified_diff(old.splitlines(True), text.splitlines(True), "docs/semantics.md", "now")
        typer.echo("".join(difference), nl=False)
    else:
        PAGE.write_text(text, encoding="utf-8")
    for rule in broken:
        typer.echo(f"mha does not keep: {rule}", err=True)
    raise typer.Exit(1 if broken or (check and text != old) else 0)


if __name__ == "__main__":
    # Before any framework is imported. One thread, so that kernels which write where they should not do so in order.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1"}
    typer.run(main)

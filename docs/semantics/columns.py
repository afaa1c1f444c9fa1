"""The columns of the page: `mha` itself, and its peers. Each takes a call and returns arrays."""

import dataclasses
import functools
from collections.abc import Callable

import adapters
import numpy as np
import peers

import mha
from mha.core import dispatch
from semantics.calls import Call, D, H

Results = dict[str, np.ndarray]  # output; weights and gradients where the call asks for them


def ask(call: Call, backend: str) -> Results:
    """Make a call of `mha` on a backend."""
    attention = mha.MultiHeadAttention(**call.options, seed=0, backend=backend)
    if (weights := call.weights()) is not None:
        attention.weights = weights
    *inputs, lengths = [X(backend) if callable(X) else X for X in (*call.inputs, call.valid_lens)]
    hiding = {"valid_lens": lengths, "mask": call.mask, "causal": call.causal}
    result = attention(*inputs, **hiding, training=call.training, return_weights=call.return_weights)
    found = dict(zip(("output", "weights"), result if call.return_weights else (result,), strict=False))
    if call.cotangent is not None:
        found |= attention.gradients(*inputs, **hiding, cotangent=call.cotangent.astype(inputs[0].dtype))
    return joined({name: X if isinstance(X, np.ndarray) else mha.to_numpy(X) for name, X in found.items()})


def ask_peer_of(name: str, backend: str, run: str, call: Call) -> Results:
    """Make a call of a peer with the same weights; backend: of its framework; run: the function that calls it."""
    adapters.of(backend).seed(0)
    peer = peers.of(name)
    with dispatch.load(backend).context(call.dtype):
        return joined(getattr(peer, run)(peer.make(call.options, call.weights(), call), call))


def ask_keras(name: str, call: Call) -> Results:
    """Make a call of a layer of Keras, which takes the width of one head, not of all heads."""
    width = D // (D if call.options["num_heads"] == D else H)
    return ask_peer_of(name, "tensorflow", "run", call.but({"key_dim": width} | call.options))


def ask_compiled(backend: str, call: Call) -> Results:
    """Make a call of `attention.layer`, compiled by its framework."""
    attention = mha.MultiHeadAttention(**call.options, seed=0, backend=backend)
    attention.weights = call.weights()
    compiled = adapters.of(backend).compile(attention.layer)
    inputs = (peers.own(backend, X) for X in (*call.inputs, call.valid_lens))
    return {"output": mha.to_numpy(compiled(*inputs))}


def joined(found: Results) -> Results:
    """Keep output and weights, and join the gradients by queries, keys and values to one array."""
    gradients = [found[name].ravel() for name in peers.INPUTS if name in found]
    kept = {name: X for name, X in found.items() if name in ("output", "weights")}
    return kept | ({"gradients": np.concatenate(gradients)} if gradients else {})


@dataclasses.dataclass(frozen=True)
class Peer:
    """Something to compare with: its title on the page, a function that makes a call, and arguments that it lacks."""

    title: str
    ask: Callable[[Call], Results]
    lacks: frozenset[str] = frozenset()


def peer(title: str, lacks: str, name: str, backend: str, run: str = "run") -> Peer:
    """A peer by its name in tests/peers; lacks: arguments, separated by blanks."""
    return Peer(title, functools.partial(ask_peer_of, name, backend, run), frozenset(lacks.split()))


GROUPS = "num_key_value_heads"
WIDTHS = "key_dim value_dim pooling"
PEERS = {
    "book": peer("book", f"mask causal {GROUPS} {WIDTHS}", "book", "torch"),
    "torch": peer("PyTorch", f"{GROUPS} {WIDTHS}", "torch", "torch"),
    "sdpa": peer("sdpa", f"training {WIDTHS}", "torch_kernel", "torch"),
    "keras": Peer("Keras", functools.partial(ask_keras, "keras"), frozenset({"pooling", GROUPS})),
    "grouped": Peer("", functools.partial(ask_keras, "keras_grouped"), frozenset({"pooling", "value_dim"})),
    "flax": peer("Flax", f"causal {GROUPS} {WIDTHS}", "linen", "jax"),
    "nnx": peer("", f"key_size value_size {WIDTHS}", "nnx", "jax"),
    "mxnet": peer("MXNet", f"mask causal training pooling {GROUPS}", "mxnet", "mxnet"),
    "mxnet_mask": peer("MXNet, by mask", f"mask causal training pooling {GROUPS}", "mxnet", "mxnet", "run_masked"),
    "mlx": peer("MLX", f"training pooling {GROUPS}", "mlx", "mlx"),
    "torch.compile": Peer("`torch.compile`", functools.partial(ask_compiled, "torch")),
    "tf.function": Peer("`tf.function`", functools.partial(ask_compiled, "tensorflow")),
    "jax.jit": Peer("`jax.jit`", functools.partial(ask_compiled, "jax")),
}
# The second layer of a framework: it stands in the column of the first, where their results differ.
SECOND = {"keras": "grouped", "flax": "nnx"}
# The columns of a table.
ALL = ("book", "torch", "sdpa", "keras", "flax", "mxnet", "mlx")
LAYERS = ("book", "torch", "keras", "flax", "mlx")
MASKED = ("torch", "sdpa", "keras", "flax", "mlx")
WITH_LENGTHS = ("book", "mxnet_mask", "mxnet")
OPERATORS = ("sdpa", "mxnet")  # no layers: wrong inputs would only reach our projections

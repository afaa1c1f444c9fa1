"""Multi-head attention in JAX, with Flax's linen: the lesson, to be read beside those of the other frameworks.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, G heads of keys and values (H unless
they are grouped), D num_hiddens, d width of a query or key head, dv width of a value head.

A linen module is a frozen description; its weights live outside, in a dict of `variables`. The layer here is a module
bound to its variables, and `module, variables = layer.unbind()` takes the two apart. JAX has neither a hidden state
that says whether it is training nor a hidden source of random numbers: both are arguments. Kernels are (in, out).

Sources: Vaswani et al., Attention Is All You Need (2017), sections 3.2.1 and 3.2.2; Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, sections
"Attention Scoring Functions" and "Multi-Head Attention"; Ainslie et al., GQA: Training Generalized Multi-Query
Transformer Models from Multi-Head Checkpoints (2023), for the groups.
"""

import functools
import math
import operator

import flax
import jax
from flax import linen as nn
from jax import numpy as jnp

from mha import arguments
from mha.config import Config, shapes

from .arrays import tensor, to_numpy
from .heads import HeadNorm, positions, rotate, widen

# 1. Masked softmax


def visible_keys(queries, keys, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0, window=None):
    """Combine all that hides keys from queries into one array of booleans, True = may attend.

    Of queries (B, Q, any) and keys (B, K, any) only the sizes and the device matter. valid_lens: integers (B,) or
    (B, Q); mask: booleans (Q, K), (B, Q, K) or (B, H, Q, K); score_bias: floats in the mask's shapes, of which -inf
    hides; any may be None. Query i is at position offset + i, an int or integers (B or 1, 1), and key j at j; causal
    hides the keys after a query, and window = (left, right) those further before or after it, None = no bound.
    Returns booleans of four axes that broadcast against (B, H, Q, K), or None if nothing is hidden.
    """
    left, right = window or (None, None)
    if causal or 0 in (queries.shape[1], keys.shape[1]):  # an empty order: without queries no key is seen
        right = 0
    conditions = []
    each_query = positions(queries, offset)[:, None, :, None]  # (B or 1, 1, Q, 1)
    each_key = positions(keys)[0]  # (K,)
    if valid_lens is not None:
        per_query = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        conditions.append(each_key < _signed(per_query, keys.shape[1])[:, None, :, None])  # (B, 1, 1 or Q, K)
    if mask is not None:
        conditions.append(four_axes(mask))  # (B, 1 or H, Q, K)
    if score_bias is not None:
        conditions.append(four_axes(score_bias) != -math.inf)  # (B, 1 or H, Q, K)
    if left is not None:
        conditions.append(each_key + left >= each_query)  # (B or 1, 1, Q, K)
    if right is not None:
        conditions.append(each_key - right <= each_query)  # (B or 1, 1, Q, K)
    return functools.reduce(jnp.logical_and, conditions) if conditions else None


def four_axes(pairs):
    """A mask or bias of pairs, (Q, K), (B, Q, K) or (B, H, Q, K), with all four axes, of which any size may be 1."""
    pairs = pairs[None] if len(pairs.shape) == 2 else pairs  # (B, Q, K) or (B, H, Q, K)
    return pairs[:, None] if len(pairs.shape) == 3 else pairs  # (B, 1 or H, Q, K)


def blank_unused(queries, keys, values, visible):
    """Put zeros for queries that see no key, and for keys and values that no query sees.

    queries (B, Q, any), keys and values (B, K, any), visible broadcasts against (B, Q, K) or is None. A weight of zero
    alone would not keep padding out: 0 * NaN is NaN, in the output and in every gradient.
    """
    if visible is None:
        return queries, keys, values
    return blank(queries, keys, values, visible.any(2), visible.any(1))


def blank(queries, keys, values, sees, seen):
    """Put zeros for queries, keys and values where `sees` (B, Q) or `seen` (B, K) is False; both may broadcast."""
    sees, seen = sees[:, :, None], seen[:, :, None]  # (B, Q, 1), (B, K, 1)
    queries = jnp.where(sees, queries, jnp.zeros_like(queries))
    keys = jnp.where(seen, keys, jnp.zeros_like(keys))
    values = jnp.where(seen, values, jnp.zeros_like(values))
    return queries, keys, values


def visible_softmax(scores, visible):
    """Softmax over the visible keys, in float32 at least: hidden keys weigh exactly 0, and so does a row without keys.

    scores (B, Q, K), visible broadcasts against it or is None. Returns weights (B, Q, K).
    """
    scores = widen(scores)
    if visible is None:
        return jax.nn.softmax(scores, -1)
    hidden = jnp.where(visible.any(-1, keepdims=True), -jnp.inf, 0).astype(scores.dtype)  # (B, Q, 1)
    weights = jax.nn.softmax(jnp.where(visible, scores, hidden), -1)
    return jnp.where(visible, weights, jnp.zeros_like(weights))


def masked_softmax(X, valid_lens=None):
    """Softmax of scores X (B, Q, K) over the first valid_lens keys, integers (B,) or (B, Q); None hides nothing.

    Returns weights of X's shape and dtype. Unlike in the book, a length of 0 gives a row of zeros.
    """
    visible = visible_keys(X, X.swapaxes(1, 2), valid_lens)  # (B, 1, 1 or Q, K)
    weights = visible_softmax(X, None if visible is None else visible[:, 0])
    return weights.astype(X.dtype)


# 2. Attention poolings


class AttentionPooling(nn.Module):
    """What all attention poolings share: weigh the values by a softmax of scores. Subclasses define the scores."""

    dropout: float
    softcap = None  # type: float | None  # a field of the subclasses, where it comes after theirs

    def setup(self):
        self.dropping = nn.Dropout(self.dropout)

    def __call__(self, queries, keys, values, visible=None, score_bias=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d).

        visible and score_bias, which is added to the scores, broadcast against (B, Q, K). Returns the steps by name:
        scores, capped and biased where they are, weights before dropout, all (B, Q, K), and pooled (B, Q, dv).
        """
        return self.weigh(*blank_unused(queries, keys, values, visible), visible, score_bias, training)

    def weigh(self, queries, keys, values, visible=None, score_bias=None, training=None):
        """As a call, of queries, keys and values that are blank already where they are not used."""
        scores = self.scores(queries, keys)  # (B, Q, K)
        steps = {"scores": scores}
        if self.softcap is not None:
            steps["capped"] = scores = cap(scores, self.softcap, visible)  # (B, Q, K)
        if score_bias is not None:
            steps["biased"] = scores = scores + widen(score_bias)  # (B, Q, K)
        weights = visible_softmax(scores, visible)  # (B, Q, K)
        pooled = jnp.matmul(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return steps | {"weights": weights.astype(values.dtype), "pooled": pooled.astype(values.dtype)}

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        return self.dropping(weights, deterministic=not training)


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(scale * q k^T) v, with scale = 1 / sqrt(d) unless given."""

    scale: float | None = None
    softcap: float | None = None

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale
        return jnp.matmul(widen(queries), widen(keys).swapaxes(1, 2)) * scale  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    num_hiddens: int
    query_size: int | None
    key_size: int | None
    dtype: str = "float32"
    softcap: float | None = None

    def setup(self):
        super().setup()
        self.W_q = dense(self.query_size, self.num_hiddens, False, self.dtype)
        self.W_k = dense(self.key_size, self.num_hiddens, False, self.dtype)
        self.w_v = dense(self.num_hiddens, 1, False, self.dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        features = jnp.tanh(self.W_q(queries)[:, :, None, :] + self.W_k(keys)[:, None, :, :])  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)


def pooling(config, dot=DotProductAttention, additive=AdditiveAttention):
    """The attention pooling that a configuration asks for, one of two classes, acting on the split heads."""
    d = config.key_dim
    if config.pooling == "additive":
        return additive(config.dropout, d, d, d, config.dtype, config.softcap)
    return dot(config.dropout, config.scale, config.softcap)


def cap(scores, softcap, visible=None):
    """Scores (B, Q, K) bent so that none is beyond softcap either way; of hidden keys 0, as their own may be NaN."""
    scores = scores if visible is None else jnp.where(visible, scores, jnp.zeros_like(scores))
    return softcap * jnp.tanh(scores / softcap)  # (B, Q, K)


# 3. The transposes


def transpose_qkv(X, num_heads):
    """Split the heads and move them into the batch: (B, T, H*d) -> (B*H, T, d)."""
    B, T, width = X.shape
    X = X.reshape(B, T, num_heads, width // num_heads)  # (B, T, H, d)
    X = X.transpose(0, 2, 1, 3)  # (B, H, T, d)
    return X.reshape(B * num_heads, T, width // num_heads)  # (B*H, T, d)


def transpose_output(X, num_heads):
    """Undo `transpose_qkv`: (B*H, T, d) -> (B, T, H*d)."""
    BH, T, d = X.shape
    X = X.reshape(BH // num_heads, num_heads, T, d)  # (B, H, T, d)
    X = X.transpose(0, 2, 1, 3)  # (B, T, H, d)
    return X.reshape(BH // num_heads, T, num_heads * d)  # (B, T, H*d)


def repeat_heads(visible, batch_size, num_heads):
    """Give every head of a sample its row of `visible`, in the order of `transpose_qkv`.

    (B or 1, H or 1, Q or 1, K or 1) -> (B*H, Q or 1, K or 1); None stays None.
    """
    if visible is None:
        return None
    _, _, Q, K = visible.shape
    visible = jnp.broadcast_to(visible, (batch_size, num_heads, Q, K))  # (B, H, Q, K)
    return visible.reshape(batch_size * num_heads, Q, K)  # (B*H, Q, K)


def repeat_groups(X, times):
    """Give every head of queries its head of keys, which so many in a row share: (B*G, T, d) -> (B*H, T, d)."""
    return X if times == 1 else jnp.repeat(X, times, 0)  # (B*H, T, d)


# 4. The layer


class MultiHeadAttention(nn.Module):
    """Multi-head attention as this framework's own kind of layer, described by an `mha.config.Config`."""

    config: Config
    pooling = staticmethod(pooling)

    def setup(self):
        config = self.config
        H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
        self.W_q = dense(config.query_size, H * d, config.bias, config.dtype)
        self.W_k = dense(config.key_size, G * d, config.bias, config.dtype)
        self.W_v = dense(config.value_size, G * dv, config.bias, config.dtype)
        self.W_o = dense(H * dv, config.num_hiddens, config.bias, config.dtype)
        self.attention = self.pooling(config)
        if config.qk_norm:
            self.q_norm = HeadNorm(config.qk_norm, d, config.qk_norm_eps, config.dtype)
            self.k_norm = HeadNorm(config.qk_norm, d, config.qk_norm_eps, config.dtype)

    def __call__(
        self,
        queries, keys, values, valid_lens=None, mask=None, score_bias=None, causal=False, offset=0, head_gates=None,
        training=None, return_weights=False,
    ):  # fmt: skip
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        valid_lens: integers (B,) or (B, Q); mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K);
        score_bias: floats in the mask's shapes, added to the scores, -inf hides; causal: query i sees key j only if
        j <= offset + i; offset: an int or integers (B,); head_gates: (H,) or (B, H) floats that multiply the pooled
        heads; training: whether to drop weights, None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        _refuse_to_narrow(self.config.dtype)
        call = valid_lens, mask, score_bias, causal, offset, head_gates, training, return_weights
        checked = arguments.check("jax", self, queries, keys, values, *call)
        return self.attend(queries, keys, values, *checked, training, return_weights)  # (B, Q, D)

    def attend(self, queries, keys, values, hiding, head_gates, training, return_weights):
        """As a call, of arguments that are checked; all attention weights are kept."""
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        visible = visible_keys(queries, keys, *hiding)  # (B or 1, H or 1, Q or 1, K)
        in_any_head = None if visible is None else visible.any(1)  # (B, Q, K)
        queries, keys, values = blank_unused(queries, keys, values, in_any_head)
        steps = self.steps(queries, keys, values, visible, hiding.score_bias, hiding.offset, head_gates, training)
        weights = steps["weights"].reshape(B, H, Q, K)  # (B, H, Q, K)
        return (steps["output"], weights) if return_weights else steps["output"]  # (B, Q, D)

    def steps(self, queries, keys, values, visible=None, score_bias=None, offset=0, head_gates=None, training=None):
        """Every step from inputs to output, by name and in order; visible broadcasts against (B, H, Q, K)."""
        config, B = self.config, queries.shape[0]
        H, G = config.num_heads, config.num_key_value_heads
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        steps = {"W_q": W_q, "W_k": W_k, "W_v": W_v, "split_q": split_q, "split_k": split_k, "split_v": split_v}
        q, k, turned = self.turn(split_q, split_k, offset)
        steps |= turned
        k, v = repeat_groups(k, H // G), repeat_groups(split_v, H // G)  # (B*H, K, d)
        score_bias = None if score_bias is None else repeat_heads(four_axes(score_bias), B, H)  # (B*H, Q, K)
        steps |= self.attention(q, k, v, repeat_heads(visible, B, H), score_bias, training=training)
        pooled = steps["pooled"]  # (B*H, Q, dv)
        if head_gates is not None:
            gates = jnp.broadcast_to(head_gates, (B, H)).reshape(B * H, 1, 1)  # (B*H, 1, 1)
            steps["head_gated"] = pooled = pooled * gates  # (B*H, Q, dv)
        merged = transpose_output(pooled, H)  # (B, Q, H*dv)
        output = self.W_o(merged)  # (B, Q, D)
        return steps | {"merged": merged, "output": output}

    def turn(self, q, k, offset=0):
        """Heads of queries (B*H, Q, d) and of keys (B*G, K, d) as they are compared: normed and rotated, if at all.

        Returns both, and a dict of these steps.
        """
        config, steps = self.config, {}
        if config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)  # (B*H, T, d)
            steps |= {"norm_q": q, "norm_k": k}
        if config.rotary:
            q = rotate(q, positions(q, offset), config.rotary, config.num_heads)  # (B*H, Q, d)
            k = rotate(k, positions(k), config.rotary, config.num_key_value_heads)  # (B*G, K, d)
            steps |= {"rotate_q": q, "rotate_k": k}
        return q, k, steps


# 5. Weights and gradients in and out


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    return nn.Dense(out_size, use_bias=bias, dtype=dtype, param_dtype=dtype)


def build(config, arrays, seed=0, kind=MultiHeadAttention):
    """A layer, of this class, with the given canonical weights; seed draws dropout where the layer owns it."""
    return kind(config).bind(_variables(arrays), rngs={"dropout": jax.random.key(seed)})


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(X) for name, X in _parameters(layer).items()}


def set_weights(layer, arrays):
    """The layer with these canonical weights, which must fit it."""
    return layer.unbind()[0].bind(_variables(arrays), rngs=layer.scope.rngs)


def attend(layer, queries, keys, values, *call, training=None, **options):
    """Call the layer, with its own arguments in its framework's own way."""
    rngs = {"dropout": layer.make_rng("dropout")} if training and layer.config.dropout else {}
    module, variables = layer.unbind()  # a bound module makes its parts when first called: no two threads may at once
    return module.apply(variables, queries, keys, values, *call, training=training, rngs=rngs, **options)


def vjp(layer, queries, keys, values, *call, training=False, **options):
    """The output (B, Q, D) of a call, and what pulls gradients back through it, arguments as for the layer.

    pull_back(cotangent), of a cotangent (B, Q, D), gives the gradients of sum(output * cotangent) by queries, keys,
    values, score_bias and head_gates where they are, and each canonical weight: of this call, whatever becomes of the
    layer, and as often as one likes.
    """
    checked = arguments.check("jax", layer, queries, keys, values, *call, **options)
    given = {"queries": queries, "keys": keys, "values": values}
    given |= {"score_bias": checked.hiding.score_bias, "head_gates": checked.head_gates}
    inputs = {name: X for name, X in given.items() if X is not None}
    rngs = {"dropout": layer.make_rng("dropout")} if training and layer.config.dropout else {}
    module, variables = layer.unbind()

    def applied(inputs, variables):
        queries, keys, values = (inputs[name] for name in ("queries", "keys", "values"))
        return module.apply(variables, queries, keys, values, checked.replaced(inputs), training=training, rngs=rngs)

    output, pull = jax.vjp(applied, inputs, variables)

    def pull_back(pull, cotangent):
        by_inputs, by_variables = pull(cotangent)
        return {name: by_inputs[name] for name in inputs} | _parameters(module.bind(by_variables))

    return output, jax.tree_util.Partial(pull_back, pull)  # a function of arrays, which `jax.jit` may return


def gradients(layer, queries, keys, values, *call, cotangent=None, **options):
    """The gradients of a call without dropout, as `vjp` has them; cotangent None = ones."""
    output, pull_back = vjp(layer, queries, keys, values, *call, **options)
    return pull_back(jnp.ones_like(output) if cotangent is None else cotangent)


def trace(layer, queries, keys, values, *call, **options):
    """Every step of a call without dropout, by name and in order; arguments as for the layer."""
    hiding, head_gates = arguments.check("jax", layer, queries, keys, values, *call, **options)
    visible = visible_keys(queries, keys, *hiding)
    module, variables = layer.unbind()
    inputs = queries, keys, values, visible, hiding.score_bias, hiding.offset, head_gates
    return module.apply(variables, *inputs, training=False, method="steps")


def _parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    return {
        name: functools.reduce(operator.getitem, name.split("."), layer.variables["params"])
        for name in shapes(layer.config)
    }


def _refuse_to_narrow(dtype):
    """Refuse float64 where JAX would make float32 of it, with no more than a warning."""
    if dtype == "float64" and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError("dtype is float64, expected it inside `with jax.enable_x64(True)`")


def _signed(valid_lens, num_keys):
    """Lengths as signed integers; without x64, JAX compares unsigned and signed ones in 32 bits, which wraps around."""
    return jnp.minimum(valid_lens, min(num_keys, jnp.iinfo(valid_lens.dtype).max)).astype(int)


def _variables(arrays):
    """Canonical weights as the variables of a module: {"params": {"W_q": {"kernel": ...}}}."""
    named = {tuple(name.split(".")): tensor(array) for name, array in arrays.items()}
    return {"params": flax.traverse_util.unflatten_dict(named)}

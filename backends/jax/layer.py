"""Multi-head attention in JAX, with Flax's linen modules: one of five tabs, to be read beside the others.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens,
d width of a query or key head, dv width of a value head.

A linen module is a frozen description; its weights live outside, in a dict of `variables`. The layer here is a module
bound to its variables, and `module, variables = layer.unbind()` takes the two apart. JAX has neither a hidden state
that says whether it is training nor a hidden source of random numbers: both are arguments. Kernels are (in, out).

Sources: Vaswani et al., Attention Is All You Need (2017), sections 3.2.1 and 3.2.2; Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, sections
"Attention Scoring Functions" and "Multi-Head Attention".
"""

import contextlib
import functools
import math
import operator

import flax
import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp

from mha import arguments, blocks, checks
from mha.config import Config, shapes

DTYPES = ("float32", "float64", "float16", "bfloat16")
SHORT = 512  # keys of a sample, of which a quarter is a small product
LONG = 4  # times the usual number of queries make a block of one head: XLA's products of a few are slow


# 1. Masked softmax


def visible_keys(queries, keys, valid_lens=None, mask=None, causal=False, first=0):
    """Combine lengths, mask and causal order into one array of booleans, True = may attend.

    Of queries (B, Q, any) and keys (B, K, any) only the sizes and the device matter. valid_lens: integers (B,) or
    (B, Q); mask: booleans (Q, K), (B, Q, K) or (B, H, Q, K); either may be None. first: place of the first query.
    Returns booleans of four axes that broadcast against (B, H, Q, K), or None if nothing is hidden.
    """
    ordered = causal or 0 in (queries.shape[1], keys.shape[1])  # an empty order: without queries no key is seen
    if valid_lens is None and mask is None and not ordered:
        return None
    conditions = []
    each_query = first + jnp.arange(queries.shape[1])  # (Q,)
    each_key = jnp.arange(keys.shape[1])  # (K,)
    if valid_lens is not None:
        per_query = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        conditions.append(each_key < _signed(per_query, keys.shape[1])[:, None, :, None])  # (B, 1, 1 or Q, K)
    if mask is not None:
        mask = mask[None] if len(mask.shape) == 2 else mask  # (B, Q, K) or (B, H, Q, K)
        conditions.append(mask[:, None] if len(mask.shape) == 3 else mask)  # (B, 1 or H, Q, K)
    if ordered:
        order = each_key <= each_query[:, None]  # (Q, K)
        conditions.append(order[None, None])  # (1, 1, Q, K)
    return functools.reduce(jnp.logical_and, conditions)


def part(valid_lens, mask, samples=slice(None), queries=slice(None), keys=slice(None)):
    """Lengths, and a mask of four axes, of some samples, queries and keys, which are slices; either may be None."""
    if valid_lens is not None:
        valid_lens = valid_lens[samples] if len(valid_lens.shape) == 1 else valid_lens[samples, queries]
    if mask is not None:
        mask = mask[(None,) * (3 - len(mask.shape))]  # (B, Q, K) or (B, H, Q, K)
        mask = mask[:, None] if len(mask.shape) == 3 else mask  # (B, 1 or H, Q, K)
        cuts = zip((samples, slice(None), queries, keys), mask.shape, strict=True)
        mask = mask[tuple(slice(None) if size == 1 else cut for cut, size in cuts)]
    return valid_lens, mask


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


def used(queries, keys, valid_lens=None, mask=None, causal=False):
    """Which queries see a key, (B, Q), and which keys a query sees, (B, K), in any head; arguments as `visible_keys`.

    Without a mask it takes no array of all pairs: each query sees the keys up to a limit.
    """
    if mask is not None:
        in_any_head = part(None, mask)[1].any(1)  # (B, Q, K)
        visible = visible_keys(queries, keys, valid_lens, in_any_head, causal)[:, 0]  # (B, Q, K)
        return visible.any(2), visible.any(1)
    Q, K = queries.shape[1], keys.shape[1]
    limits = jnp.full((1, 1), K)  # (1, 1)
    if valid_lens is not None:
        limits = _signed(valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens, K)  # (B, 1 or Q)
    if causal:
        limits = jnp.minimum(limits, jnp.arange(1, Q + 1))  # (B, Q)
    return limits > 0, jnp.arange(K) < limits.max(1)[:, None]


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


def widen(X):
    """X in float32 where it has half precision: scores overflow float16, and differences of them lose most bits."""
    return X.astype(jnp.promote_types(X.dtype, jnp.float32))


# 2. Attention poolings


class AttentionPooling(nn.Module):
    """What all attention poolings share: weigh the values by a softmax of scores. Subclasses define the scores."""

    dropout: float

    def setup(self):
        self.dropping = nn.Dropout(self.dropout)

    def __call__(self, queries, keys, values, visible=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d); visible broadcasts against (B, Q, K).

        Returns the scores (B, Q, K), the weights (B, Q, K) before dropout, and the pooled values (B, Q, dv).
        """
        return self.weigh(*blank_unused(queries, keys, values, visible), visible, training)

    def weigh(self, queries, keys, values, visible=None, training=None):
        """As a call, where queries, keys and values that are not used are blank already."""
        scores = self.scores(queries, keys)  # (B, Q, K)
        weights = visible_softmax(scores, visible)  # (B, Q, K)
        pooled = jnp.matmul(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return scores, weights.astype(values.dtype), pooled.astype(values.dtype)

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        return self.dropping(weights, deterministic=not training)

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        (BH, Q, d), K, dv = queries.shape, keys.shape[1], values.shape[2]
        of_head = self.scores_of_query(queries[:1], keys[:1])
        if blocks.fits(BH * Q * of_head):
            return self.pool_block(queries, keys, values, num_heads, valid_lens, mask, causal, 0, training)
        # Pieces are heads of one sample, or whole samples, or queries of one head; all are of the same sizes.
        heads = blocks.heads(BH, num_heads, Q * of_head)
        size = Q if heads > 1 else blocks.queries(Q, math.ceil(of_head / LONG))
        groups, count = math.ceil(BH / heads), math.ceil(Q / size)
        arrays = _padded(queries, keys, values, valid_lens, mask, groups * heads - BH, count * size - Q)
        queries, keys, values, valid_lens, mask = arrays
        queries = queries.reshape(groups, heads, count, size, d).swapaxes(1, 2)  # (groups, blocks, heads, size, d)
        # Transposed, so are their gradients, for which XLA has fast products.
        keys = keys.reshape(groups, heads, K, d).swapaxes(2, 3)  # (groups, heads, d, K)
        values = values.reshape(groups, heads, K, dv).swapaxes(2, 3)  # (groups, heads, dv, K)
        cuts = blocks.cuts(K) if causal or valid_lens is not None else [K]  # a branch each: a compiled size is fixed
        pooling, variables = self.unbind()  # JAX' own loops and branches take pure functions
        again = functools.partial(jax.checkpoint, prevent_cse=False)
        key = self.make_rng("dropout") if training and self.dropout else jax.random.key(0)

        def pool_group(inputs):
            queries, keys, values, group = inputs  # (blocks, heads, size, d), (heads, d, K), (heads, dv, K), ()
            head = group * heads + jnp.arange(heads)  # (heads,)
            sample, head = head // num_heads % (BH // num_heads), head % num_heads
            lens = None if valid_lens is None else _by_block(valid_lens[sample], count)  # (blocks, heads, 1 or size)
            seen = None if mask is None else _by_block(mask[sample % mask.shape[0], head % mask.shape[1]], count)
            key_of_group = jax.random.fold_in(key, group)

            def pool_some(inputs):
                queries, lens, seen, block = inputs  # (heads, size, d), (heads, 1 or size), (heads, 1 or size, K or 1)
                first, last = block * size, K if lens is None else _signed(lens, K).max()
                last = jnp.minimum(last, first + size) if causal else last
                rngs = {"dropout": jax.random.fold_in(key_of_group, block)}

                def pool_cut(cut, queries):
                    pairs = (X[:, :, :cut].swapaxes(1, 2) for X in (keys, values))  # (heads, K, d)
                    inputs = queries, *pairs, 1, *part(lens, seen, keys=slice(cut)), causal, first, training
                    return pooling.apply(variables, *inputs, rngs=rngs, method="pool_block")  # (heads, size, dv)

                branches = [again(functools.partial(pool_cut, cut)) for cut in cuts]  # else each keeps room for all
                return jax.lax.switch(jnp.searchsorted(jnp.array(cuts), last), branches, queries)  # (heads, size, dv)

            return jax.lax.map(again(pool_some), (queries, lens, seen, jnp.arange(count)))  # (blocks, heads, size, dv)

        inputs = queries, keys, values, jnp.arange(groups)
        pooled = jax.lax.map(pool_group, inputs)  # (groups, blocks, heads, size, dv)
        pooled = pooled.swapaxes(1, 2).reshape(groups * heads, count * size, dv)  # (B*H, Q, dv), and more
        return pooled[:BH, :Q]  # (B*H, Q, dv)

    def pool_block(self, queries, keys, values, num_heads, valid_lens, mask, causal, first, training):
        """As `pool`, for the queries of one block, of which the first is at place `first`."""
        visible = visible_keys(queries, keys, valid_lens, mask, causal, first)
        visible = repeat_heads(visible, queries.shape[0] // num_heads, num_heads)  # (B*H, Q, K)
        return self.weigh(queries, keys, values, visible, training)[2]  # (B*H, Q, dv)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take, over all heads (B*H) and keys."""
        return queries.shape[0] * keys.shape[1]


class DotProductAttention(AttentionPooling):
    """Scaled dot-product attention: softmax(q k^T / sqrt(d)) v."""

    def scores(self, queries, keys):
        """Scaled dot products of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        d = queries.shape[-1]
        return jnp.matmul(widen(queries), widen(keys).swapaxes(1, 2)) / math.sqrt(d)  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    num_hiddens: int
    query_size: int | None
    key_size: int | None
    dtype: str = "float32"

    def setup(self):
        super().setup()
        self.W_q = dense(self.query_size, self.num_hiddens, False, self.dtype)
        self.W_k = dense(self.key_size, self.num_hiddens, False, self.dtype)
        self.w_v = dense(self.num_hiddens, 1, False, self.dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        features = jnp.tanh(self.W_q(queries)[:, :, None, :] + self.W_k(keys)[:, None, :, :])  # (B, Q, K, n)
        return widen(self.w_v(features)[:, :, :, 0])  # (B, Q, K)

    def scores_of_query(self, queries, keys):
        """How many numbers the scores of one query take: n features for each head and key."""
        return super().scores_of_query(queries, keys) * keys.shape[2]


def pooling(config):
    """The attention pooling that a configuration asks for, acting on the split heads."""
    if config.pooling == "additive":
        return AdditiveAttention(config.dropout, config.key_dim, config.key_dim, config.key_dim, config.dtype)
    return DotProductAttention(config.dropout)


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


# 4. The layer


class MultiHeadAttention(nn.Module):
    """Multi-head attention as this framework's own kind of layer, described by an `mha.config.Config`."""

    config: Config

    def setup(self):
        config = self.config
        self.W_q = dense(config.query_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_k = dense(config.key_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_v = dense(config.value_size, config.num_heads * config.value_dim, config.bias, config.dtype)
        self.W_o = dense(config.num_heads * config.value_dim, config.num_hiddens, config.bias, config.dtype)
        self.attention = pooling(config)

    def __call__(
        self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
    ):
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        valid_lens: integers (B,) or (B, Q); mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K);
        causal: query i sees key j only if j <= i; training: whether to drop weights, None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        _refuse_to_narrow(self.config.dtype)
        switches = causal, training, return_weights
        valid_lens, mask = arguments.settle("jax", self, queries, keys, values, valid_lens, mask, *switches)
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        if not return_weights and 0 not in (B, Q, K) and not self.is_initializing():
            return self.output(queries, keys, values, valid_lens, mask, causal, training)  # (B, Q, D)
        visible = visible_keys(queries, keys, valid_lens, mask, causal)
        somewhere = None if visible is None else visible.any(1)  # (B, Q, K), in any head
        queries, keys, values = blank_unused(queries, keys, values, somewhere)
        steps = self.steps(queries, keys, values, visible, training)
        weights = steps["weights"].reshape(B, H, Q, K)  # (B, H, Q, K)
        return (steps["output"], weights) if return_weights else steps["output"]  # (B, Q, D)

    def output(self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None):
        """The output (B, Q, D) alone, arguments as for a call: no weights are kept, keys beyond the lengths left out.

        The steps are those of `steps`, and the pooling works on blocks; samples may need different numbers of keys.
        """
        H, last = self.config.num_heads, queries.shape[1] if causal else keys.shape[1]
        keys, values = keys[:, :last], values[:, :last]
        hiding = *part(valid_lens, mask, keys=slice(last)), causal
        B, Q, K = queries.shape[0], queries.shape[1], keys.shape[1]
        if valid_lens is not None or mask is not None:
            sees, seen = used(queries, keys, *hiding)
            queries, keys, values = blank(queries, keys, values, sees, seen)
        if valid_lens is None or blocks.fits(B * H * Q * K) or K < SHORT:
            W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        else:
            W_q, W_k, W_v = self.W_q(queries), _of_seen(self.W_k, keys, seen), _of_seen(self.W_v, values, seen)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
        pooled = self.attention.pool(split_q, split_k, split_v, H, *hiding, training)  # (B*H, Q, dv)
        return self.W_o(transpose_output(pooled, H))  # (B, Q, D)

    def steps(self, queries, keys, values, visible=None, training=None):
        """Every step from inputs to output, by name and in order; visible broadcasts against (B, H, Q, K)."""
        B, H = queries.shape[0], self.config.num_heads
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
        visible = repeat_heads(visible, B, H)  # (B*H, Q, K)
        scores, weights, pooled = self.attention(split_q, split_k, split_v, visible, training=training)  # (B*H, ...)
        merged = transpose_output(pooled, H)  # (B, Q, H*dv)
        output = self.W_o(merged)  # (B, Q, D)
        return {
            "W_q": W_q, "W_k": W_k, "W_v": W_v,
            "split_q": split_q, "split_k": split_k, "split_v": split_v,
            "scores": scores, "weights": weights, "pooled": pooled,
            "merged": merged, "output": output,
        }  # fmt: skip


# 5. Arrays and weights in and out


def dense(in_size, out_size, bias, dtype):
    """A dense layer from in_size to out_size features; the framework's own where it has one."""
    return nn.Dense(out_size, use_bias=bias, dtype=dtype, param_dtype=dtype)


def build(config, arrays, seed=0):
    """The layer of a configuration with the given canonical weights; seed draws dropout where the layer owns it."""
    return MultiHeadAttention(config).bind(_variables(arrays), rngs={"dropout": jax.random.key(seed)})


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(X) for name, X in _parameters(layer).items()}


def set_weights(layer, arrays):
    """The layer with these canonical weights, which must fit it."""
    return layer.unbind()[0].bind(_variables(arrays), rngs=layer.scope.rngs)


def attend(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False):
    """Call the layer, with its own arguments in its framework's own way."""
    switches = causal, training, return_weights  # checked now: compiled, the layer does not know the lengths' values
    valid_lens, mask = arguments.settle("jax", layer, queries, keys, values, valid_lens, mask, *switches)
    rngs = {"dropout": layer.make_rng("dropout")} if training and layer.config.dropout else {}
    options = {"causal": causal, "training": training, "return_weights": return_weights}
    return _apply(*layer.unbind(), rngs, queries, keys, values, valid_lens, mask, **options)


def gradients(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, cotangent=None):
    """Gradients of sum(output * cotangent), without dropout, by queries, keys, values and each canonical weight.

    Arguments as for the layer; cotangent (B, Q, D), None = ones.
    """
    module, variables = layer.unbind()
    by_inputs, by_variables = _pull_back(
        module, (queries, keys, values), variables, valid_lens, mask, cotangent, causal=causal
    )
    by_inputs = dict(zip(("queries", "keys", "values"), by_inputs, strict=True))
    return by_inputs | _parameters(module.bind(by_variables))


def trace(layer, queries, keys, values, valid_lens=None, mask=None, causal=False):
    """Every step of a call without dropout, by name and in order; arguments as for the layer."""
    valid_lens, mask = arguments.settle("jax", layer, queries, keys, values, valid_lens, mask, causal)
    visible = visible_keys(queries, keys, valid_lens, mask, causal)
    module, variables = layer.unbind()  # a bound module makes its parts when first called: no two threads may at once
    return module.bind(variables).steps(queries, keys, values, visible, training=False)


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return jnp.asarray(array)


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return np.array(X)  # a copy: JAX's own cannot be written to


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, jax.Array) or checks.is_numpy(X)


def known(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    return None if isinstance(X, jax.core.Tracer) else to_numpy(X)


def context(dtype):
    """What a computation in this dtype runs inside of, where the framework asks for it."""
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device():
    """What the framework computes on, in words."""
    return jax.devices()[0].device_kind


# Compiled as a whole: one by one, JAX would compile every operation for every new shape.
@functools.partial(jax.jit, static_argnames=("module", "causal", "training", "return_weights"))
def _apply(module, variables, rngs, *inputs, **options):
    return module.apply(variables, *inputs, rngs=rngs, **options)


@functools.partial(jax.jit, static_argnames=("module", "causal"))
def _pull_back(module, inputs, variables, valid_lens, mask, cotangent, causal):
    def call(inputs, variables):
        return module.apply(variables, *inputs, valid_lens, mask, causal=causal, training=False)

    output, pull_back = jax.vjp(call, inputs, variables)
    return pull_back(jnp.ones_like(output) if cotangent is None else cotangent)


def _of_seen(dense, X, seen):
    """dense(X) for X (B, K, in) by quarters of the rows, zeros for quarters where `seen` (B, K) is False throughout."""
    B, K, width = X.shape
    size = math.ceil(K / 4)
    X = jnp.pad(X, ((0, 0), (0, 4 * size - K), (0, 0))).reshape(B * 4, size, width)  # (B*4, size, in)
    seen = jnp.pad(jnp.broadcast_to(seen, (B, K)), ((0, 0), (0, 4 * size - K))).reshape(B * 4, size)  # (B*4, size)
    module, variables = dense.unbind()

    def project(inputs):
        X, seen = inputs  # (size, in), (size,)
        pure = functools.partial(module.apply, variables)
        return jax.lax.cond(seen.any(), pure, lambda X: jnp.zeros_like(pure(X)), X)  # (size, out)

    return jax.lax.map(project, (X, seen)).reshape(B, 4 * size, -1)[:, :K]  # (B, K, out)


def _padded(queries, keys, values, valid_lens, mask, more_heads, more_queries):
    """Queries, keys and values (B*H, T, d) with so many heads and queries more, lengths (B, 1 or Q), mask of four axes.

    What is added is zeros, and is cut off in the end.
    """
    if valid_lens is not None:
        valid_lens = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        if valid_lens.shape[1] > 1:
            valid_lens = jnp.pad(valid_lens, ((0, 0), (0, more_queries)))  # (B, more)
    if mask is not None and mask.shape[2] > 1:
        mask = jnp.pad(mask, ((0, 0), (0, 0), (0, more_queries), (0, 0)))  # (B or 1, H or 1, more, K or 1)
    queries = jnp.pad(queries, ((0, more_heads), (0, more_queries), (0, 0)))  # (more, more, d)
    keys, values = (jnp.pad(X, ((0, more_heads), (0, 0), (0, 0))) for X in (keys, values))  # (more, K, d)
    return queries, keys, values, valid_lens, mask


def _by_block(X, count):
    """X (heads, 1 or Q, ...) in blocks of queries, (blocks, heads, 1 or size, ...); what all share is repeated."""
    if X.shape[1] == 1:
        return jnp.broadcast_to(X, (count, *X.shape))
    return X.reshape(X.shape[0], count, -1, *X.shape[2:]).swapaxes(0, 1)  # (blocks, heads, size, ...)


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

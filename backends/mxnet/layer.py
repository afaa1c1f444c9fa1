"""Multi-head attention in MXNet, with Gluon's blocks: one of five tabs, to be read beside the others.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, D num_hiddens,
d width of a query or key head, dv width of a value head.

MXNet stores a kernel as (out, in): `get_weights` and `set_weights` transpose. It knows by itself whether it is training
(`autograd.record()`), so `training` is needed only to overrule it. On the CPU it has no half-precision matrix product.
`hybridize` reaches the dense layers alone: shapes are read in `forward`, and a symbol has none.

Sources: Vaswani et al., Attention Is All You Need (2017), sections 3.2.1 and 3.2.2; Bahdanau et al., Neural Machine
Translation by Jointly Learning to Align and Translate (2015), appendix A.1.2; Dive into Deep Learning, sections
"Attention Scoring Functions" and "Multi-Head Attention".
"""

import contextlib
import functools
import math
import operator
import threading

import mxnet as mx
import numpy as onp
from mxnet import autograd, np, npx
from mxnet.gluon import nn

from mha import arguments, blocks
from mha.config import shapes

npx.set_np()  # Gluon's blocks then take and give `mx.np` arrays, in this thread: see `context` for the others

DTYPES = ("float32", "float64")


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
    each_query = first + npx.arange_like(queries, axis=1).astype("int64")  # (Q,)
    each_key = npx.arange_like(keys, axis=1).astype("int64")  # (K,)
    if valid_lens is not None:
        per_query = valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens  # (B, 1 or Q)
        conditions.append(each_key < per_query.astype("int64")[:, None, :, None])  # (B, 1, 1 or Q, K)
    if mask is not None:
        mask = mask[None] if len(mask.shape) == 2 else mask  # (B, Q, K) or (B, H, Q, K)
        conditions.append(mask[:, None] if len(mask.shape) == 3 else mask)  # (B, 1 or H, Q, K)
    if ordered:
        order = each_key <= each_query[:, None]  # (Q, K)
        conditions.append(order[None, None])  # (1, 1, Q, K)
    return functools.reduce(operator.mul, conditions)


def part(valid_lens, mask, samples=slice(None), queries=slice(None), keys=slice(None)):
    """Lengths, and a mask of four axes, of some samples, queries and keys, which are slices; either may be None."""
    with autograd.pause():  # or a block that is computed again would end in a graph that is gone
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
    queries = _where(sees, queries, np.zeros_like(queries))
    keys = _where(seen, keys, np.zeros_like(keys))
    values = _where(seen, values, np.zeros_like(values))
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
    limits = np.full((1, 1), K, dtype="int64")  # (1, 1)
    if valid_lens is not None:
        limits = (valid_lens[:, None] if len(valid_lens.shape) == 1 else valid_lens).astype("int64")  # (B, 1 or Q)
    if causal:
        limits = np.minimum(limits, np.arange(1, Q + 1, dtype="int64"))  # (B, Q)
    return limits > 0, np.arange(K, dtype="int64") < limits.max(1)[:, None]


def visible_softmax(scores, visible):
    """Softmax over the visible keys, in float32 at least: hidden keys weigh exactly 0, and so does a row without keys.

    scores (B, Q, K), visible broadcasts against it or is None. Returns weights (B, Q, K).
    """
    scores = widen(scores)
    if visible is None:
        return npx.softmax(scores)
    hidden = np.log(1 - visible.any(-1, keepdims=True).astype(scores.dtype))  # (B, Q, 1), of minus infinity and 0
    weights = npx.softmax(_where(visible, scores, hidden))
    return _where(visible, weights, np.zeros_like(weights))


def masked_softmax(X, valid_lens=None):
    """Softmax of scores X (B, Q, K) over the first valid_lens keys, integers (B,) or (B, Q); None hides nothing.

    Returns weights of X's shape and dtype. Unlike in the book, a length of 0 gives a row of zeros.
    """
    visible = visible_keys(X, X.swapaxes(1, 2), valid_lens)  # (B, 1, 1 or Q, K)
    weights = visible_softmax(X, None if visible is None else visible[:, 0])
    return weights.astype(X.dtype)


def widen(X):
    """X in float32 where it has half precision: scores overflow float16, and differences of them lose most bits."""
    return X.astype(onp.promote_types(X.dtype, onp.float32), copy=False)


# 2. Attention poolings


class AttentionPooling(nn.Block):
    """What all attention poolings share: weigh the values by a softmax of scores. Subclasses define the scores."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def forward(self, queries, keys, values, visible=None, training=None):
        """Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d); visible broadcasts against (B, Q, K).

        Returns the scores (B, Q, K), the weights (B, Q, K) before dropout, and the pooled values (B, Q, dv).
        """
        return self.weigh(*blank_unused(queries, keys, values, visible), visible, training)

    def weigh(self, queries, keys, values, visible=None, training=None):
        """As a call, where queries, keys and values that are not used are blank already."""
        scores = self.scores(queries, keys)  # (B, Q, K)
        weights = visible_softmax(scores, visible)  # (B, Q, K)
        pooled = npx.batch_dot(self.drop(weights, training), widen(values))  # (B, Q, dv)
        return scores, weights.astype(values.dtype), pooled.astype(values.dtype)

    def drop(self, weights, training):
        """Dropout of attention weights when training, None = as the framework says; the kept ones grow to make up."""
        training = autograd.is_training() if training is None else training
        if training and self.dropout and _drawn.seed is not None:
            kept = onp.random.default_rng(_drawn.seed).random(weights.shape, "float32") >= self.dropout
            return weights * np.array(kept / (1 - self.dropout), dtype=weights.dtype)
        return npx.dropout(weights, p=self.dropout, mode="always") if training else weights

    def pool(self, queries, keys, values, num_heads, valid_lens=None, mask=None, causal=False, training=None):
        """The pooled values (B*H, Q, dv) alone, arguments as above and for `visible_keys`: no weights are kept.

        Blocks of queries follow each other, and are computed once more for their gradients: scores take the memory of
        one block. A block leaves out the keys after its last query in causal order.
        """
        Q, K = queries.shape[1], keys.shape[1]
        size = blocks.queries(Q, self.scores_of_query(queries, keys))
        if size >= Q:
            return self.pool_block(queries, keys, values, num_heads, valid_lens, mask, causal, 0, training)
        training = autograd.is_training() if training is None else training

        def pool_some(first, queries, keys, values):
            last = min(K, first + size) if causal else K
            keys, values = (X[:, :last] if causal else X for X in (keys, values))  # to slice is to copy here
            hiding = *part(valid_lens, mask, queries=slice(first, first + size), keys=slice(last)), causal, first
            return self.pool_block(queries, keys, values, num_heads, *hiding, training)  # (B*H, block, dv)

        return _Recomputed.call(self, pool_some, size, training, queries, keys, values)  # (B*H, Q, dv)

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
        return npx.batch_dot(widen(queries), widen(keys), transpose_b=True) / math.sqrt(d)  # (B, Q, K)


class AdditiveAttention(AttentionPooling):
    """Additive attention: softmax(w_v^T tanh(W_q q + W_k k)) v."""

    def __init__(self, dropout, num_hiddens, query_size, key_size, dtype="float32"):
        super().__init__(dropout)
        self.W_q = dense(query_size, num_hiddens, False, dtype)
        self.W_k = dense(key_size, num_hiddens, False, dtype)
        self.w_v = dense(num_hiddens, 1, False, dtype)

    def scores(self, queries, keys):
        """Additive scores of queries (B, Q, d) and keys (B, K, d), in float32 at least: (B, Q, K)."""
        W_q, W_k = self.W_q(queries), self.W_k(keys)  # (B, Q, n), (B, K, n)
        if 0 in (queries.shape[1], keys.shape[1]):
            # The gradient of a sum that broadcasts over an empty axis is whatever the memory held.
            W_q, W_k = _blocked(W_q), _blocked(W_k)
        features = np.tanh(W_q[:, :, None, :] + W_k[:, None, :, :])  # (B, Q, K, n)
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
    visible = np.broadcast_to(visible, (batch_size, num_heads, Q, K))  # (B, H, Q, K)
    return visible.reshape(batch_size * num_heads, Q, K)  # (B*H, Q, K)


# 4. The layer


class MultiHeadAttention(nn.Block):
    """Multi-head attention as this framework's own kind of layer, described by an `mha.config.Config`."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.W_q = dense(config.query_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_k = dense(config.key_size, config.num_heads * config.key_dim, config.bias, config.dtype)
        self.W_v = dense(config.value_size, config.num_heads * config.value_dim, config.bias, config.dtype)
        self.W_o = dense(config.num_heads * config.value_dim, config.num_hiddens, config.bias, config.dtype)
        self.attention = pooling(config)

    def forward(
        self, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False
    ):
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        valid_lens: integers (B,) or (B, Q); mask: booleans, True = may attend, (Q, K), (B, Q, K) or (B, H, Q, K);
        causal: query i sees key j only if j <= i; training: whether to drop weights, None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        switches = causal, training, return_weights
        valid_lens, mask = arguments.settle("mxnet", self, queries, keys, values, valid_lens, mask, *switches)
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        if not return_weights and 0 not in (B, Q, K):
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
        B, Q, K, H = queries.shape[0], queries.shape[1], keys.shape[1], self.config.num_heads
        groups = list(blocks.groups(B, H, Q, K, None if valid_lens is None else to_numpy(valid_lens), causal))
        if mask is not None or any(hides for _, _, hides in groups):
            queries, keys, values = blank(queries, keys, values, *used(queries, keys, valid_lens, mask, causal))
        size, merged = groups[0][0].stop, []
        each = (np.split(X, tuple(range(size, B, size))) for X in (self.W_q(queries), keys, values))  # (B, T, any)
        for (samples, longest, hides), W_q, keys, values in zip(groups, *each, strict=True):
            W_k, W_v = self.W_k(keys[:, :longest]), self.W_v(values[:, :longest])  # (B, K, H*d)
            split = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
            hiding = *part(valid_lens if hides else None, mask, samples, keys=slice(longest)), causal
            pooled = self.attention.pool(*split, H, *hiding, training)  # (B*H, Q, dv)
            merged.append(transpose_output(pooled, H))  # (B, Q, H*dv)
        return self.W_o(np.concatenate(merged) if len(merged) > 1 else merged[0])  # (B, Q, D)

    def steps(self, queries, keys, values, visible=None, training=None):
        """Every step from inputs to output, by name and in order; visible broadcasts against (B, H, Q, K)."""
        B, H = queries.shape[0], self.config.num_heads
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        split_q, split_k, split_v = transpose_qkv(W_q, H), transpose_qkv(W_k, H), transpose_qkv(W_v, H)  # (B*H, T, d)
        visible = repeat_heads(visible, B, H)  # (B*H, Q, K)
        scores, weights, pooled = self.attention(split_q, split_k, split_v, visible, training)  # (B*H, ...)
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
    return _Dense(out_size, flatten=False, use_bias=bias, in_units=in_size or 0, dtype=dtype)


def build(config, arrays, seed=0):
    """The layer of a configuration with the given canonical weights; seed draws dropout where the layer owns it."""
    layer = MultiHeadAttention(config)
    layer.initialize(mx.init.Zero())  # the default initialiser cannot draw float64
    return set_weights(layer, arrays)


def get_weights(layer):
    """The layer's weights as canonical NumPy arrays, kernels (in, out)."""
    return {name: to_numpy(_canonical(_data(X))).copy() for name, X in _parameters(layer).items()}


def set_weights(layer, arrays):
    """The layer with these canonical weights, which must fit it."""
    for name, parameter in _parameters(layer).items():
        parameter.set_data(tensor(_canonical(arrays[name])))
    return layer


def attend(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, training=None, return_weights=False):
    """Call the layer, with its own arguments in its framework's own way."""
    return layer(queries, keys, values, valid_lens, mask, causal, training, return_weights)  # Gluon takes no names


def gradients(layer, queries, keys, values, valid_lens=None, mask=None, causal=False, cotangent=None):
    """Gradients of sum(output * cotangent), without dropout, by queries, keys, values and each canonical weight.

    Arguments as for the layer; cotangent (B, Q, D), None = ones.
    """
    inputs = [X.detach().copy() for X in (queries, keys, values)]
    for X in inputs:
        X.attach_grad()
    parameters = _parameters(layer)
    with _thawed(parameters.values()):
        with autograd.record(train_mode=False):
            output = attend(layer, *inputs, valid_lens, mask, causal, training=False)
        cotangent = np.ones_like(output) if cotangent is None else cotangent
        by_all = autograd.grad([output], [*inputs, *(_data(X) for X in parameters.values())], [cotangent])
    by_all = [X.as_np_ndarray() for X in by_all]
    by_inputs = dict(zip(("queries", "keys", "values"), by_all, strict=False))
    return by_inputs | {name: _canonical(X) for name, X in zip(parameters, by_all[3:], strict=True)}


def trace(layer, queries, keys, values, valid_lens=None, mask=None, causal=False):
    """Every step of a call without dropout, by name and in order; arguments as for the layer."""
    valid_lens, mask = arguments.settle("mxnet", layer, queries, keys, values, valid_lens, mask, causal)
    visible = visible_keys(queries, keys, valid_lens, mask, causal)
    return layer.steps(queries, keys, values, visible, training=False)


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    return np.array(array, dtype=array.dtype)  # in MXNet's current context: 1.9 and 2.0 name a layer's differently


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    return X.asnumpy()


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, np.ndarray)


def known(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    return to_numpy(X)


@contextlib.contextmanager
def context(dtype):
    """What a computation in this dtype runs inside of, where the framework asks for it."""
    with mx.util.np_shape(True), mx.util.np_array(True):  # set_np holds in one thread alone
        yield


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    return None


def device():
    """What the framework computes on, in words."""
    current = getattr(mx, "current_device", None) or mx.current_context  # the name in 2.0, and that in 1.9
    return str(current())


def _where(condition, X, Y):
    """Where of arrays; MXNet's crashes if it broadcasts to an empty array, and sends no gradient if Y is a number."""
    return X if X.size == 0 else np.where(condition, X, Y)


def _blocked(X):
    """Zeros of X's shape that send X no gradient, and yet belong to its graph."""
    return _where(np.zeros(X.shape, dtype="bool"), X, np.zeros_like(X))


class _Drawn(threading.local):
    seed = None


_drawn = _Drawn()
_again = threading.Lock()


class _Recomputed(autograd.Function):
    """A pooling block by block, whose backward pass keeps nothing but the inputs, and computes the rest again."""

    def __init__(self, pool_some, size, shapes, parameters, seed):
        super().__init__()
        self.pool_some, self.size, self.shapes, self.parameters, self.seed = pool_some, size, shapes, parameters, seed

    @classmethod
    def call(cls, pooling, pool_some, size, training, *inputs):
        """pool_some(first, *inputs) for queries in blocks of a size, with gradients also by the pooling's weights."""
        parameters = [_data(X) for X in pooling.collect_params().values() if X.grad_req != "null"]
        seed = int(np.random.randint(0, 2**31 - 1).item()) if training and pooling.dropout else None
        inputs = *inputs, *parameters
        # As one: where the gradient by the first input is not asked for, MXNet leaves out those by all the others.
        packed = np.concatenate([X.reshape(-1) for X in inputs])  # (numbers,)
        return cls(pool_some, size, [X.shape for X in inputs], parameters, seed)(packed)

    def forward(self, packed):
        """The pooled values (B*H, Q, dv) of queries (B*H, Q, d), keys (B*H, K, d) and values (B*H, K, dv), packed."""
        self.save_for_backward(packed)
        queries, keys, values = self._unpacked(packed)
        pooled = []
        for first in range(0, queries.shape[1], self.size):
            pooled.append(self._draw(first, queries[:, first : first + self.size], keys, values))  # (B*H, block, dv)
            pooled[-1].wait_to_read()  # else MXNet makes room for many blocks at once
        return np.concatenate(pooled, 1)

    def backward(self, cotangent):
        """Gradients by the inputs and the weights, packed as they are, in another thread than the call's."""
        with _again, context(None):
            (packed,) = self.saved_tensors
            queries, keys, values = self._unpacked(packed.as_np_ndarray().detach())
            own = isinstance(cotangent, np.ndarray)  # in MXNet 2.0; 1.9 asks for its older kind of array
            cotangent, by_queries, by_rest = cotangent.as_np_ndarray(), [], None
            for first in range(0, queries.shape[1], self.size):
                block = slice(first, first + self.size)
                inputs = queries[:, block], keys, values
                for X in inputs:
                    X.attach_grad()
                with autograd.record():
                    result = self._draw(first, *inputs)
                by_all = autograd.grad([result], [*inputs, *self.parameters], [cotangent[:, block]])
                by_block, *by_all = (X.as_np_ndarray() for X in by_all)
                by_queries.append(by_block)  # (B*H, block, d)
                by_rest = by_all if by_rest is None else [X + Y for X, Y in zip(by_rest, by_all, strict=True)]
                for X in by_rest:
                    X.wait_to_read()
            by_all = np.concatenate([X.reshape(-1) for X in (np.concatenate(by_queries, 1), *by_rest)])  # (numbers,)
            return by_all if own else by_all.as_nd_ndarray()

    def _unpacked(self, packed):
        """Queries, keys and values out of the packed inputs."""
        found, first = [], 0
        for shape in self.shapes[:3]:
            last = first + math.prod(shape)
            found.append(packed[first:last].reshape(shape))  # (B*H, T, any)
            first = last
        return found

    def _draw(self, first, *inputs):
        _drawn.seed = None if self.seed is None else self.seed + first
        try:
            return self.pool_some(first, *inputs)
        finally:
            _drawn.seed = None


_reading = threading.Lock()  # MXNet 2.0 writes to a parameter whenever it is read, and crashes if two threads do


class _Dense(nn.Dense):
    """Gluon's dense layer, whose weights one thread at a time reads."""

    def __call__(self, x):
        with _reading:
            return super().__call__(x)


def _data(parameter):
    """The array of a parameter, which one thread at a time reads."""
    with _reading:
        return parameter.data()


_thawing = threading.Lock()


@contextlib.contextmanager
def _thawed(parameters):
    """Frozen parameters take part in gradients inside, one thread at a time: another would freeze them under this."""
    with _thawing:
        frozen = [parameter for parameter in parameters if parameter.grad_req == "null"]
        for parameter in frozen:
            parameter.grad_req = "write"
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.grad_req = "null"


def _canonical(X):
    """A parameter, or its gradient, of this framework as a view in the canonical layout: kernels (in, out)."""
    return X.T if X.ndim == 2 else X


def _parameters(layer):
    """The layer's own parameters by canonical name, in canonical order."""
    own = {name: name.replace("kernel", "weight").split(".") for name in shapes(layer.config)}
    return {name: functools.reduce(getattr, path, layer) for name, path in own.items()}

"""Chapter 4: multi-head attention, in TensorFlow, with Keras's layers: the layer itself.

Letters: B batch, Q queries, K key-value pairs, T either of the two, H heads, G heads of keys and values (H unless they
are shared), D num_hiddens, d width of a query or key head, dv width of a value head.

Keras hands `training` down from the outermost layer that was given it; None stays None.

Sources: Vaswani et al., Attention Is All You Need (2017), section 3.2.2; Dive into Deep Learning, section "Multi-Head
Attention"; Ainslie et al., GQA (2023), for heads of keys that are shared.
"""

import dataclasses

import keras
import tensorflow as tf

from mha.core.call import check, check_widths, record_step, takes_call
from mha.core.options.config import Config, config_of_record

from . import arrays
from .arrays import must_fit, refuse_masks, shape_of
from .cache import place, recall, remember
from .heads import HeadNorm, gate, gate_by, repeat_groups, repeat_heads, rotate, temper, transpose_output, transpose_qkv
from .hiding import four_axes, places, visible_keys, zero_unused
from .pooling import pooling
from .weights import dense


@keras.saving.register_keras_serializable("mha.lesson")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention as this framework's own kind of layer, described by an `mha.core.options.config.Config`."""

    pooling = staticmethod(pooling)
    remember, recall = staticmethod(remember), staticmethod(recall)
    gate_by = staticmethod(gate_by)

    def __init__(self, config, **options):
        config = config if isinstance(config, Config) else config_of_record(config)
        super().__init__(autocast=False, **(options | {"dtype": config.dtype}))
        self.config = config
        H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
        self.W_q = dense(config.query_size, H * d, config.bias, config.dtype)
        self.W_k = dense(config.key_size, G * d, config.bias, config.dtype)
        self.W_v = dense(config.value_size, G * dv, config.bias, config.dtype)
        self.W_o = dense(H * dv, config.num_hiddens, config.bias, config.dtype)
        if config.output_gate:
            self.W_g = dense(config.query_size, H * config.gate_dim, config.bias, config.dtype)
        self.attention = self.pooling(config)
        self.attention.built = True  # its parts are
        if config.qk_norm:
            self.q_norm = HeadNorm(config.qk_norm, H, d, config.dtype)
            self.k_norm = HeadNorm(config.qk_norm, G, d, config.dtype)
        if config.value_norm:
            self.v_norm = HeadNorm(config.value_norm, G, dv, config.dtype)
        if config.sinks:
            self.sinks = self.add_weight(name="sinks", shape=(H,), initializer="zeros")
        self.supports_masking = True  # or Keras warns that `mask` gets lost: it takes every `mask` for its own kind

    @takes_call
    def __call__(self, queries, keys, values, call):
        """Refuse what does not fit, before Keras converts it or puts words of its own around the error; then `call`."""
        refuse_masks(keys, values)
        call = check(arrays, self, queries, keys, values, call)
        return super().__call__(queries, keys, values, **call.arguments())

    @takes_call
    def call(self, queries, keys, values, call):
        """Attend with queries (B, Q, query_size) to keys (B, K, key_size) and values (B, K, value_size).

        call: a `Call`, given as its arguments, by position or by name. training: whether to drop weights,
        None = as the framework says.
        Returns the output (B, Q, D), with return_weights also the weights (B, H, Q, K) before dropout, and with a cache
        the one that is left.
        Raises TypeError or ValueError if a shape or dtype does not fit the layer.
        """
        if call.cache is None:
            must_fit(queries, keys, call, values, self.config.num_heads)
        offset = call.offset if isinstance(call.offset, int) else tf.reshape(call.offset, (-1, 1))  # (B or 1, 1)
        return self.attend(queries, keys, values, call.of_layer(self.config)._replace(offset=offset))

    def attend(self, queries, keys, values, call):
        """Take the steps in their order; call: a checked `Call`. Returns what the layer does."""
        q, k, v, call = self.project(queries, keys, values, call)  # (B*H, Q, d), (B*G, K, d), (B*G, K, dv)
        if self.config.value_norm:
            v = record_step("norm_v", self.v_norm(v))  # (B*G, K, dv)
        q, k = self.transform_heads(q, k, call)
        if call.cache is not None:
            k, v, call, cache = self.remember(k, v, call)  # (B*G, T, d), (B*G, T, dv)
        pooled, weights = self.pool(q, k, v, call)  # (B*H, Q, dv), (B, H, Q, K)
        pooled = record_step("pooled", pooled)
        if call.head_gates is not None:
            pooled = record_step("head_gated", gate(pooled, call.head_gates, self.config.num_heads))  # (B*H, Q, dv)
        if call.plan.gates is not None:
            pooled = record_step("gated", self.gate_by(pooled, call.plan.gates))  # (B*H, Q, dv)
        merged = record_step("merged", self.merge(pooled))  # (B, Q, H*dv)
        output = record_step("output", self.W_o(merged))  # (B, Q, D)
        if call.cache is not None:
            return self.recall(output, weights, call, cache)
        return (output, weights) if call.return_weights else output

    def project(self, queries, keys, values, call):
        """Heads of queries (B*H, Q, d), keys (B*G, K, d) and values (B*G, K, dv); and the call that is left to do."""
        H, G = self.config.num_heads, self.config.num_key_value_heads
        queries, keys, values, call = self.zero_unused(queries, keys, values, call)
        W_q, W_k, W_v = self.W_q(queries), self.W_k(keys), self.W_v(values)  # (B, T, H*d)
        check_widths(self.config, record_step("W_q", W_q), record_step("W_k", W_k), record_step("W_v", W_v))
        q, k, v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
        call = self.beside_gates(queries, call)
        return record_step("split_q", q), record_step("split_k", k), record_step("split_v", v), call

    def beside_gates(self, queries, call):
        """The call with projections of queries (B, Q, query_size) for the output gate, if the layer has one."""
        gates = transpose_qkv(self.W_g(queries), self.config.num_heads) if self.config.output_gate else None
        return call.with_plan(gates=gates)  # (B*H, Q, dv or 1)

    def zero_unused(self, queries, keys, values, call):
        """The inputs with zeros where they are not used, and the call that is left to do: the same, in the lesson."""
        if call.cache is not None:
            return place(queries, keys, values, call)
        if call.plan.traced:  # whose steps show what padding is projected to
            return queries, keys, values, call
        visible = visible_keys(queries, keys, call)  # (B or 1, H or 1, Q or 1, K)
        in_any_head = None if visible is None else tf.reduce_any(visible, 1)  # (B or 1, Q or 1, K)
        return *zero_unused(queries, keys, values, in_any_head), call

    def transform_heads(self, q, k, call):
        """Heads of queries (B*H, Q, d) and keys (B*G, K, d) as they are compared: normed, rotated, tempered, if so."""
        config, H, G = self.config, self.config.num_heads, self.config.num_key_value_heads
        if config.qk_norm and not config.qk_norm.after:
            q, k = self.norm_heads(q, k)  # (B*H, T, d)
        if config.rotary:
            q = record_step("rotate_q", rotate(q, places(q, call.positions, call.offset), config.rotary, H))
            k = record_step("rotate_k", rotate(k, places(k, call.key_positions), config.rotary, G))
        if config.qk_norm and config.qk_norm.after:
            q, k = self.norm_heads(q, k)  # (B*H, T, d)
        if config.temperature:
            given = places(q, call.positions, call.offset), config.temperature, H
            q = record_step("tempered_q", temper(q, *given))  # (B*H, Q, d)
        return q, k

    def norm_heads(self, q, k):
        """Heads of queries (B*H, Q, d) and keys (B*G, K, d) after their norms."""
        return record_step("norm_q", self.q_norm(q)), record_step("norm_k", self.k_norm(k))  # (B*H, T, d)

    def beside_sinks(self, call):
        """The call with the sinks of the layer, if it has any, as scores of each query: (1, H, 1, 1)."""
        if not self.config.sinks:
            return call
        return call.with_plan(sinks=tf.reshape(self.sinks, (1, -1, 1, 1)))  # (1, H, 1, 1)

    def pool(self, q, k, v, call):
        """The pooled heads (B*H, Q, dv), and their weights (B, H, Q, K)."""
        call = self.beside_sinks(call)
        H, times = self.config.num_heads, self.config.num_heads // self.config.num_key_value_heads
        B, Q, K = shape_of(q)[0] // H, shape_of(q)[1], shape_of(k)[1]
        visible = repeat_heads(visible_keys(q, k, call), B, H)  # (B*H, Q or 1, K)
        score_bias = None if call.score_bias is None else repeat_heads(four_axes(call.score_bias), B, H)  # (B*H, Q, K)
        sinks = {} if call.plan.sinks is None else {"sinks": repeat_heads(call.plan.sinks, B, H)}  # (B*H, 1, 1)
        inputs = q, repeat_groups(k, times), repeat_groups(v, times)  # (B*H, T, d)
        pooled, weights = self.attention(*inputs, visible, score_bias, training=call.training, **sinks)
        return pooled, tf.reshape(weights, (B, H, Q, K))  # (B*H, Q, dv), (B, H, Q, K)

    def merge(self, pooled):
        """The heads side by side: (B*H, Q, dv) -> (B, Q, H*dv)."""
        return transpose_output(pooled, self.config.num_heads)  # (B, Q, H*dv)

    def compute_mask(self, inputs, previous_mask):
        """No mask for the layers that follow: ours is about queries and keys, not about the output."""

    def get_config(self):
        """The options from which Keras's own saver makes the layer again."""
        return {**super().get_config(), "config": dataclasses.asdict(self.config)}


def attend(layer, queries, keys, values, call):
    """Call a layer in its framework's own way; call: a `Call`, not checked yet."""
    return layer(queries, keys, values, call)

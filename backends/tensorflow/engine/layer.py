"""The layer that a call runs: it leaves out the keys that nobody sees, and keeps no attention weights.

Letters as in the chapters. The steps and their order are the lesson's: here are `project`, `pool` and `merge`.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from mha.core.cache import plan_step
from mha.core.call import Plans, call_kind, check, check_widths, takes_call
from mha.core.engine import blocks
from mha.core.engine.visible_range import by_segments, reach, span, usage, uses_all, without_positions, zero_out
from mha.core.options.config import turns_heads

from .. import arrays
from .. import layer as lesson
from ..arrays import refuse_masks, shape_of
from .compiled import INTEGERS, Programs, draw_seed, is_untouched, run, tracing, variables
from .compiled import fits as scores_fit
from .decoding import decode, place_inputs, pool_slots, remember_heads, runs_compiled
from .operations import OPERATIONS
from .pieces import fits, project_rows, whole
from .pooling import POOLINGS, AttentionPooling, hide_alone, pooling

TYPES = tf.__internal__.EagerTensor, np.ndarray


@keras.saving.register_keras_serializable("mha")
class MultiHeadAttention(lesson.MultiHeadAttention):
    """The lesson's layer; a call that asks for no attention weights keeps none."""

    pooling = staticmethod(pooling)

    def __init__(self, config, **options):
        super().__init__(config, **options)
        object.__setattr__(self, "plans", Plans())  # not by Keras, which would track it

    @takes_call
    def __call__(self, queries, keys, values, call):
        """Call the layer, without what Keras does around `call` where that is compiled and needs nothing of it."""
        if call.training is None or not self.built:
            return super().__call__(queries, keys, values, call)
        refuse_masks(keys, values)
        checked = check(arrays, self, queries, keys, values, call)
        own = variables_of(self, queries, keys, values, checked)
        if own is None:
            return super().__call__(queries, keys, values, call)
        return run_layer(self, own, queries, keys, values, checked)

    def kind(self, queries, keys, values, call):
        """The facts that decide the plan of a call; None where a compiler looks on, or an array is of another class."""
        if not tf.executing_eagerly():
            return None
        state = id(self.config), keys is queries, values is keys, blocks.SCORES
        return call_kind(TYPES, state, queries, keys, values, call)

    def plan_call(self, queries, keys, call):
        """A checked call with its plan; none if an array is empty."""
        if call.cache is not None:
            return call.with_plan(engine=Programs())
        if 0 in (*queries.shape[:2], keys.shape[1]):
            return call
        plan = Programs()
        if reach(call) == (None, None) or call.offset == 0:
            plan.fits = scores_fit(self.config, queries, keys, call)
        return call.with_plan(engine=plan, lesson=self.in_lesson(queries, keys, call))

    def attend(self, queries, keys, values, call):
        """Take the steps compiled, if they are not yet inside a compiled function; else as the lesson, or in pieces."""
        if tf.executing_eagerly():  # Keras gave arguments, whose values are not known yet
            known = {name: arrays.value_of(X) for name, X in call.arrays().items() if name in INTEGERS}
            step = None if call.cache is None else plan_step(call.cache, queries, call._replace(**known))
            call = call.with_plan(known=known, step=step)
            own = variables_of(self, queries, keys, values, call)
            if own is not None:
                return run_layer(self, own, queries, keys, values, call)
        if self.in_lesson(queries, keys, call):
            return super().attend(queries, keys, values, call.with_plan(lesson=True))
        if call.cache is not None:
            return super().attend(queries, keys, values, call)
        B, Q, _ = shape_of(queries)
        if not call.is_packed() or call.plan.chunk is not None:
            call = by_segments(OPERATIONS, queries, keys, call)
        call = whole(call, (B, self.config.num_heads, Q, shape_of(keys)[1]))
        return tf.reshape(super().attend(queries, keys, values, call), (B, Q, self.config.num_hiddens))  # (B, Q, D)

    def in_lesson(self, queries, keys, call):
        """Whether the lesson computes a call: it keeps the weights, an array is empty, the pooling was replaced."""
        if call.return_weights or call.plan.traced or (call.cache is not None and tf.executing_eagerly()):
            return True
        # A size is None where it is learnt only in a call.
        empty = 0 in (*queries.shape[:2], keys.shape[1] if call.cache is None else call.cache.sizes[1])
        return empty or not isinstance(self.attention, AttentionPooling)

    def project(self, queries, keys, values, call):
        """Heads of queries, and of the keys and values in reach, (B, H, T, d); as in the lesson if they are turned."""
        if call.plan.lesson:
            return super().project(queries, keys, values, call)
        queries, keys, values, call = self.zero_unused(queries, keys, values, call)
        (B, Q, _), K, config, seen = shape_of(queries), shape_of(keys)[1], self.config, None
        H, G = config.num_heads, config.num_key_value_heads
        if call.valid_lens is not None and not fits(B * H * Q * K):
            _, seen = usage(OPERATIONS, queries, keys, call)  # (B or 1, K)
        W_q, W_k, W_v = by_rows(self.W_q, queries), by_rows(self.W_k, keys, seen), by_rows(self.W_v, values, seen)
        check_widths(config, W_q, W_k, W_v)
        turned = call.head_gates is not None or turns_heads(config)
        q, k, v = (split(X, (B, T, heads), turned) for X, T, heads in ((W_q, Q, H), (W_k, K, G), (W_v, K, G)))
        return q, k, v, self.beside_gates(queries, call)

    def zero_unused(self, queries, keys, values, call):
        """The queries, and the keys and values in reach, with zeros where they are not used; and the call of these."""
        if call.plan.lesson:
            return super().zero_unused(queries, keys, values, call)
        if call.cache is not None:
            return place_inputs(queries, keys, values, call)
        keys, values, call = narrow_keys(queries, keys, values, call, self.config.temperature is None)
        if uses_all(call, shape_of(queries)[1], shape_of(keys)[1]):
            return queries, keys, values, call
        # Where lengths alone hide: whether each sample sees a key, as `Tracing.lengths` says; "some" = each does.
        call = call.with_plan(engine=tracing.lengths if hide_alone(self, call) else None)
        flags = usage(OPERATIONS, queries, keys, call)
        zeroed, *rest = zero_out(OPERATIONS, queries, keys, values, *flags)
        return queries if call.plan.engine == "some" else zeroed, *rest, call

    def remember(self, k, v, call):
        """Put new tokens into the slots: where these lie if they may be, or as the lesson does."""
        return super().remember(k, v, call) if call.plan.lesson else remember_heads(k, v, call)

    def recall(self, output, weights, call, cache):
        """The results of a call with a cache; where its step is known, it has not lost what it needs."""
        if call.plan.lesson:
            return super().recall(output, weights, call, cache)
        B, Q = shape_of(cache.keys)[0], shape_of(call.positions)[1]
        output = tf.reshape(output, (B, Q, self.config.num_hiddens))  # (B, Q, D)
        return (output, cache) if call.plan.step is not None else super().recall(output, weights, call, cache)

    def pool(self, q, k, v, call):
        """The pooled heads alone, in the layout of the projected ones."""
        if call.plan.lesson:
            return super().pool(q, k, v, call)
        pool = self.attention.pool if call.cache is None else functools.partial(pool_slots, self.attention)
        call = self.beside_sinks(without_positions(call))
        H, G, (BH, Q) = self.config.num_heads, self.config.num_key_value_heads, shape_of(q)[:2]
        if len(q.shape) == 4:
            return pool(q, k, v, H, call), None  # (B, H, Q, dv)
        numbers = (q, H), (k, G), (v, G)
        parts = (tf.reshape(X, (BH // H, heads, *shape_of(X)[1:])) for X, heads in numbers)  # (B, H or G, T, d)
        heads = pool(*parts, H, call)  # (B, H, Q, dv)
        return tf.reshape(heads, (BH, Q, heads.shape[3])), None  # (B*H, Q, dv)

    def merge(self, pooled):
        """The heads side by side, of either layout: (B, Q, H*dv), or in rows (B*Q, H*dv) where `W_o` takes these."""
        if len(pooled.shape) == 3:
            return super().merge(pooled)  # (B, Q, H*dv)
        (B, H, Q, dv), pooled = shape_of(pooled), tf.transpose(pooled, (0, 2, 1, 3))  # (B, Q, H, dv)
        if takes_rows(self.W_o):
            return tf.reshape(pooled, (-1, H * dv))  # (B*Q, H*dv)
        return tf.reshape(pooled, (B, Q, H * dv))  # (B, Q, H*dv)


def variables_of(layer, queries, keys, values, call):
    """The variables of a layer that may run compiled on these arrays; None if it does not, as of a subclass."""
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        return None
    if call.cache is not None and not runs_compiled(queries, call):
        return None
    if type(layer) is not MultiHeadAttention or type(layer.attention) is not POOLINGS[layer.config.pooling]:
        return None
    if call.plan.engine is None:  # which has arrays that run compiled
        inputs = queries, *(() if keys is None else (keys, values))
        for X in (*inputs, *call.arrays().values()):
            if not isinstance(X, (tf.Tensor, np.ndarray)) or 0 in X.shape:
                return None
    return variables(layer)


def attend_steps(layer, queries, keys, values, call):
    """The steps of a call, to be compiled."""
    return layer.attend(queries, keys, values, call)


def run_layer(layer, own, queries, keys, values, call):
    """The results of the layer for a checked call, compiled; own: its variables."""
    if call.cache is not None:
        return decode(layer, own, queries, keys, values, call)
    call = call._replace(training=bool(call.training and layer.config.dropout))
    seed = draw_seed(layer) if call.training else None
    return run(attend_steps, layer, own, queries, keys, values, call, seed=seed)


def narrow_keys(queries, keys, values, call, moves):
    """The keys and values that lengths, order and window let any query see, at least one; and the call of these.

    moves: whether the first of them may count as 0: not if something goes by positions themselves, not by distances.
    """
    if call.valid_lens is not None and tracing.lengths == "one":
        lengths = tf.reshape(call.valid_lens, [-1])  # (B,) or (B*Q,), of equal numbers
        seen = slice(None, lengths[0])
        keys, values, call = keys[:, seen], values[:, seen], call._replace(valid_lens=None).part(keys=seen)
    if reach(call) != (None, None) and not call.is_packed():
        seen = span(call, shape_of(queries)[1], shape_of(keys)[1], OPERATIONS)
        seen = seen if moves else slice(0, seen.stop)
        keys, values, call = keys[:, seen], values[:, seen], call.part(keys=seen)
    return keys, values, call


def by_rows(dense, X, seen=None):
    """dense(X) for X (B, T, in), of Keras's own dense layer in rows (B*T, out): that asks for fewer sizes.

    seen: None, or where X counts, (B or 1, T): the other rows are zeros, and not projected.
    """
    if not takes_rows(dense):
        return dense(X)  # (B, T, out)
    if seen is not None:
        return project_rows(dense, X, seen)  # (B, T, out)
    return dense(tf.reshape(X, (-1, shape_of(X)[2])))  # (B*T, out)


def takes_rows(dense):
    """Whether a layer of Keras gives the same for rows; another may look at their neighbours, or count samples."""
    return type(dense) is keras.layers.Dense and is_untouched(dense)


def split(X, sizes, into_batch):
    """The heads of X, in rows or (B, T, H*d): (B, H, T, d), or as `transpose_qkv` gives them; sizes: (B, T, H)."""
    (B, T, H), d = sizes, X.shape[-1] // sizes[2]
    X = tf.transpose(tf.reshape(X, (B, T, H, d)), (0, 2, 1, 3))  # (B, H, T, d)
    return tf.reshape(X, (B * H, T, d)) if into_batch else X  # (B*H, T, d)

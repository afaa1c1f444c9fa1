"""Mathematical mistakes, each described once: a function that takes the place of one that every backend has.

A mistake is given the right function and its arguments. It is planted in the chapters and the engine of a backend, by a
line at the end of the backend's `__init__.py`.
"""

import dataclasses
import functools
import importlib
import math

import numpy as np
import seams

from mha.core import dispatch
from mha.core.call import ARGUMENTS, Plan, record_step
from mha.core.engine.visible_range import reach


def plant(backend, name):
    """Plant the mistake of this name."""
    seam, mistake = next(listed[name] for listed, _ in GROUPS if name in listed)

    def change(right):
        @functools.wraps(right)
        def wrong(*arguments, **named):
            return mistake(right, *arguments, **named)

        return wrong

    seams.replace(backend, seam, change)


# What mistakes are made of, for arrays of any framework


def lesson(X):
    """The lesson of an array's backend."""
    return dispatch.lesson(dispatch.backend_of(X))


def table(X):
    """The operations of an array's backend."""
    return importlib.import_module(f"mha.backends.{dispatch.backend_of(X)}.engine.operations").OPERATIONS


def sizes(X):
    """An array's sizes, some of which only a call may know."""
    return table(X).shape(X)


def reshaped(X, *shape):
    """An array in another shape."""
    return table(X).reshape(X, shape)


def spread(X, *shape):
    """An array broadcast to a shape."""
    return table(X).broadcast_to(X, shape)


def swapped(X, *rest):
    """X (A, B, C) or (A, B, C, *rest) as (A, C, B, *rest)."""
    A, B, C, *_ = sizes(X)
    flat = reshaped(X, A, B, C * math.prod(rest))
    return reshaped(lesson(X).transpose_qkv(flat, C), A, C, B, *rest)


def own(numbers, beside):
    """Numbers as an array of the framework and the dtype of another one."""
    dtype = next(name for name in ("float16", "float32", "float64") if name in str(beside.dtype))
    return dispatch.load(dispatch.backend_of(beside)).tensor(np.array(numbers, dtype))


def where(condition, X, Y):
    """X where the condition holds, else Y; MXNet's has a place in its lesson."""
    return getattr(lesson(X), "where", table(X).where)(condition, X, Y)


# Mistakes of several lines, and functions that make mistakes


def of_call(**changes):
    """Of `visible_keys`: fields of the call or its plan are changed, by functions of their values, where given."""

    def wrong(right, queries, keys, call):
        for name, change in changes.items():
            X = getattr(call.plan if name in Plan._fields else call, name)
            if X is not None:
                call = (call.with_plan if name in Plan._fields else call._replace)(**{name: change(X)})
        return right(queries, keys, call)

    return wrong


def of_order(shift):
    """Of `visible_keys`: the order begins elsewhere, by shift(queries, keys)."""
    return lambda right, q, k, call: right(q, k, call._replace(offset=call.offset + shift(q, k) * bool(call.causal)))


def of_piece(argument, places):
    """Of `of_part`: an argument's places are counted by places(first query, first key)."""
    return lambda right, name, X, cuts, firsts: right(name, X, cuts, places(*firsts) if name == argument else firsts)


def of_first(letter, *arguments):
    """Of `of_part`: each part, by the axis of this letter, gets these arguments of the first one."""

    def wrong(right, name, X, cuts, firsts):
        cut = cuts[letter]
        if name in arguments and cut.start is not None and cut.stop is not None:
            cuts = cuts | {letter: slice(0, cut.stop - cut.start)}
        return right(name, X, cuts, firsts)

    return wrong


def of_rotary(change):
    """Of `rotate`: another rotation."""
    return lambda right, X, places, rotary, num_heads: right(X, places, change(rotary), num_heads)


def of_sinks(change):
    """Of `beside_sinks`: other sinks (1, H, 1, 1), where there are any."""

    def wrong(right, self, call):
        call = right(self, call)
        return call if call.sinks is None else call._replace(sinks=change(call.sinks))

    return wrong


def of_turn(norm, *order):
    """Of `transform_heads`: norm(layer, q, k) in the place of the norms, before the rotation, or after it."""

    def wrong(right, self, q, k, call):
        config, found = self.config, lesson(q)
        for step in order or ("norm", "rotate"):
            if step == "norm" and config.qk_norm:
                q, k = map(record_step, ("norm_q", "norm_k"), norm(self, q, k))
            elif step == "rotate" and config.rotary:
                q = found.rotate(q, found.places(q, call.positions, call.offset), config.rotary, config.num_heads)
                k = found.rotate(k, found.places(k, call.key_positions), config.rotary, config.num_key_value_heads)
                q, k = record_step("rotate_q", q), record_step("rotate_k", k)
        return q, k

    return wrong


def filled(fill, empty=True):
    """Of `visible_softmax`: hidden scores get a number; empty: whether rows without keys are zeros even so."""

    def wrong(right, scores, visible, *sinks):
        scores = lesson(scores).widen(scores)
        if visible is None:
            return right(scores, None, *sinks)
        weights = right(where(visible, scores, own([[[fill]]], scores)), None, *sinks)
        return where(visible, weights, 0 * weights) if empty else weights

    return wrong


def scaled(factor):
    """Of dot products: another scale by default."""
    return lambda right, self, q, k: right(self, q, k) * (factor(q, k) if self.scale is None else 1)


def own_scale_forgotten(right, self, queries, keys):
    return right(self, queries, keys) * (1 if self.scale is None else queries.shape[-1] ** -0.5 / self.scale)


def shared_in_another_order(right, X, times):
    rows, T, d = sizes(X)
    return X if times == 1 else reshaped(spread(X[None], times, rows, T, d), times * rows, T, d)


def tiled(right, pairs, batch_size, num_heads):
    if pairs is None:
        return None
    _, _, Q, K = sizes(pairs)
    pairs = spread(pairs, batch_size, num_heads, Q, K)[None]  # (1, B, H, Q, K)
    return reshaped(swapped(pairs, Q, K), batch_size * num_heads, Q, K)


def gated_by_others(right, pooled, gates, num_heads):
    turned = np.eye(num_heads)[::-1]
    return right(pooled, sum(gates[..., h : h + 1] * own(turned[h], gates) for h in range(num_heads)), num_heads)


def over_queries(right, scores, visible, *sinks):
    *front, Q, K = sizes(scores)
    flat = reshaped(scores, math.prod(front), Q, K)
    if visible is not None:
        visible = swapped(reshaped(spread(visible, *front, Q, K), math.prod(front), Q, K))
    return reshaped(swapped(right(swapped(flat), visible)), *front, Q, K)


def rows_in_another_order(right, of, pairs, shape):
    found, (B, H, G, Q) = right(of, pairs, shape), shape
    if found is pairs:
        return pairs
    K = sizes(found)[3]
    return reshaped(swapped(reshaped(found, B * G, H // G, Q, K), K), B, G, H // G * Q, K)


def only_reached(sides):
    """Of `span`: other first and last keys, by sides(slice, left, right) of an order or a window."""

    def wrong(right, call, num_queries, num_keys, *of):
        seen, (before, after) = right(call, num_queries, num_keys, *of), reach(call)
        first, last = sides(seen, before, after)
        smaller, larger = (of[0].smaller, of[0].larger) if of else (min, max)
        first = smaller(first, seen.stop - 1)
        return slice(first, larger(first + 1, last))

    return wrong


def turned_squares(right, layer, weights):
    return right(layer, {name: X.T if X.ndim == 2 and X.shape[0] == X.shape[1] else X for name, X in weights.items()})


def dropped_twice(right, self, queries, keys, values, visible=None, score_bias=None, training=None, *sinks):
    pooled, weights = right(self, queries, keys, values, visible, score_bias, training, *sinks)
    return pooled, self.drop(weights, training)


def capped_last(right, self, queries, keys, values, visible=None, score_bias=None, training=None, *sinks):
    if self.softcap is None or score_bias is None:
        return right(self, queries, keys, values, visible, score_bias, training, *sinks)
    raw = self.scores(queries, keys)
    cap, widen = lesson(queries).cap, lesson(queries).widen
    late = cap(raw + widen(score_bias), self.softcap, visible) - cap(raw, self.softcap, visible)
    return right(self, queries, keys, values, visible, where(visible, late, 0 * late), training, *sinks)


def scaled_bias(right, self, queries, keys, values, visible=None, score_bias=None, *rest):
    return right(self, queries, keys, values, visible, None if score_bias is None else 0.5 * score_bias, *rest)


def empty_rows_uniform(right, scores, visible, *sinks):
    weights = right(scores, visible, *sinks)
    if visible is None:
        return weights
    empty = table(visible).any(visible, len(visible.shape) - 1) == HIDE
    return where(empty[..., None], right(spread(own([[[0]]], weights), *sizes(scores)), None), weights)


HIDE = False

# The tables: by name, the seam and the mistake

# Of everything that a call computes.
CALL_TESTS = "dropout reference alone native_layers layer calls parity"
CALL = {
    "split without permuting": ("transpose_qkv",
        lambda right, X, H: reshaped(X, sizes(X)[0] * H, sizes(X)[1], X.shape[2] // H)),
    "merge without permuting": ("transpose_output",
        lambda right, X, H: reshaped(X, sizes(X)[0] // H, sizes(X)[1], H * X.shape[2])),
    "lengths tiled over heads, not repeated": ("repeat_heads", tiled),
    "length counts one key too many": ("signed", lambda right, lengths, num_keys: right(lengths, num_keys) + 1),
    "length counts one key too few": ("signed", lambda right, lengths, num_keys: right(lengths, num_keys) - 1),
    "length of the first sample for all": ("signed", lambda right, lengths, num_keys: right(lengths[:1], num_keys)),
    "causal hides the query's own key": ("visible_keys", of_order(lambda q, k: -1)),
    "causal order ends at the last key": ("visible_keys", of_order(lambda q, k: sizes(k)[1] - sizes(q)[1])),
    "causal forgotten where there are lengths": ("visible_keys",
        lambda right, q, k, call: right(q, k, call._replace(causal=call.causal and call.valid_lens is None))),
    "mask means hide": ("visible_keys", of_call(mask=lambda X: X == HIDE)),
    "mask of the first head for all": ("visible_keys", of_call(mask=lambda X: lesson(X).four_axes(X)[:, :1])),
    "mask of the first sample for all": ("visible_keys", of_call(mask=lambda X: lesson(X).four_axes(X)[:1])),
    "mask of the first query for all": ("visible_keys", of_call(mask=lambda X: lesson(X).four_axes(X)[:, :, :1])),
    "no scale": ("DotProductAttention.scores", scaled(lambda q, k: q.shape[-1] ** 0.5)),
    "scale by d, not its root": ("DotProductAttention.scores", scaled(lambda q, k: q.shape[-1] ** -0.5)),
    "scale by the number of keys": ("DotProductAttention.scores",
        scaled(lambda q, k: (q.shape[-1] / k.shape[-2]) ** 0.5)),
    "square kernels not transposed": ("set_weights", turned_squares),
    "keys projected in place of values": ("MultiHeadAttention.project",
        lambda right, self, q, k, v, call: right(self, q, k, k if k.shape == v.shape else v, call)),
    "dropout without growing the kept": ("AttentionPooling.drop",
        lambda right, self, X, training: right(self, X, training) * (1 - self.dropout if training else 1)),
    "weights returned after dropout": ("AttentionPooling.weigh", dropped_twice),
    "weak mask fill": ("visible_softmax", filled(-10)),
    "fill of float16 in every dtype": ("visible_softmax", filled(-65504)),
    "the book's fill, empty rows uniform": ("visible_softmax", filled(-1e6, empty=False)),
    "fill of minus infinity, empty rows NaN": ("visible_softmax", filled(-np.inf, empty=False)),
    "empty rows uniform": ("visible_softmax", empty_rows_uniform),
    "softmax over the queries": ("visible_softmax", over_queries),
    "padding not blanked": ("zero_unused", lambda right, q, k, v, visible: (q, k, v)),
    "queries without keys not blanked": ("zero_unused", lambda right, q, *rest: (q, *right(q, *rest)[1:])),
    "unseen values not blanked": ("zero_unused", lambda right, q, k, v, *used: (*right(q, k, v, *used)[:2], v)),
}  # fmt: skip

# What is taken for the options of today's models elsewhere.
OPTIONS_TESTS = "options"
OPTIONS = {
    "heads of keys are tiled, not repeated": ("repeat_groups", shared_in_another_order),
    "rotary components are paired the other way": ("rotate",
        of_rotary(lambda rotary: dataclasses.replace(rotary, interleaved=not rotary.interleaved))),
    "another base": ("rotate",
        of_rotary(lambda rotary: dataclasses.replace(rotary, frequencies=[X**0.5 for X in rotary.angles()]))),
    "angles in half precision": ("rotate",
        of_rotary(lambda rotary: dataclasses.replace(rotary, frequencies=np.float32(rotary.angles()).tolist()))),
    "the rotation is off by one": ("MultiHeadAttention.transform_heads",
        lambda right, self, q, k, call: right(self, q, k, call._replace(offset=call.offset + 1))),
    "the rotation begins again at every offset": ("MultiHeadAttention.transform_heads",
        lambda right, self, q, k, call: right(self, q, k, call._replace(offset=0))),
    "the norm comes after the rotation": ("MultiHeadAttention.transform_heads",
        of_turn(lambda self, q, k: (self.q_norm(q), self.k_norm(k)), "rotate", "norm")),
    "keys have no norm": ("MultiHeadAttention.transform_heads", of_turn(lambda self, q, k: (self.q_norm(q), k))),
    "the norm of queries for that of keys": ("MultiHeadAttention.transform_heads",
        of_turn(lambda self, q, k: (self.q_norm(q), self.q_norm(k)))),
    "the default scale for the model's own": ("DotProductAttention.scores", own_scale_forgotten),
    "the cap comes after the bias": ("AttentionPooling.weigh", capped_last),
    "the cap is forgotten": ("cap", lambda right, scores, softcap, visible=None: scores),
    "the bias is scaled too": ("AttentionPooling.weigh", scaled_bias),
    "minus infinity does not hide": ("visible_keys",
        lambda right, q, k, call: right(q, k, call._replace(score_bias=None))),
    "the window is one wider to the left": ("visible_keys",
        of_call(window=lambda sides: (sides[0] and sides[0] + 1, sides[1]))),
    "the window is one wider to the right": ("visible_keys",
        of_call(window=lambda sides: (sides[0], sides[1] and sides[1] + 1))),
    "the window is symmetric": ("visible_keys", of_call(window=lambda sides: sides[:1] * 2)),
    "causal order is off by one": ("visible_keys", of_order(lambda q, k: 1)),
    "the offset of the first sample for all": ("visible_keys",
        of_call(offset=lambda X: X if type(X) is int else X[:1])),
    "gates of other heads": ("gate", gated_by_others),
    "gates are forgotten": ("gate", lambda right, pooled, gates, num_heads: pooled),
}  # fmt: skip

# Of calls that are computed in pieces, of which none keeps weights.
PIECES_TESTS = "reference alone blocks"
PIECES = {
    "a part forgets where its queries begin": ("of_part", of_piece("offset", lambda query, key: [0, key])),
    "a part forgets where its keys begin": ("of_part", of_piece("offset", lambda query, key: [query, 0])),
    "lengths forget where the keys of a part begin": ("of_part", of_piece("valid_lens", lambda query, key: [query, 0])),
    "lengths of the first queries in every block": ("of_part", of_first("Q", "valid_lens")),
    "the bias of the first queries in every block": ("of_part", of_first("Q", "score_bias")),
    "the mask of the first queries in every block": ("of_part", of_first("Q", "mask")),
    "arguments of the first samples in every part": ("of_part", of_first("B", *ARGUMENTS)),
    "a query that sees nothing counts as seeing": ("usage",
        lambda right, of, q, k, call: ((found := right(of, q, k, call))[0] == found[0], found[1])),
    "unseen positions keep what they hold": ("zero_out", lambda right, of, q, k, v, *used: (q, k, v)),
    "nothing is ever unused": ("uses_all", lambda right, *arguments: True),
    "the longest sample loses a key": ("longest", lambda right, call, num_keys: max(1, right(call, num_keys) - 1)),
    "lengths hide nothing": ("lengths_hide", lambda right, *arguments: False),
    "causal order ends before the block does": ("span",
        only_reached(lambda seen, left, right: (seen.start, seen.stop - (right is not None)))),
    "a block misses the first key of its window": ("span",
        only_reached(lambda seen, left, right: (seen.start + (left is not None), seen.stop))),
    "rows of a group in another order": ("in_rows", rows_in_another_order),
}  # fmt: skip

# Of positions that a call gives.
PLACED_TESTS = "tokens bad_inputs"
PLACED = {
    "positions are ignored": ("places", lambda right, X, given=None, offset=0: right(X, None, offset)),
    "all samples are where the first is": ("places", lambda right, X, given=None, offset=0: right(
        X, given if given is None or len(given.shape) == 1 else given[:1], offset)),
    "padded keys are seen": ("visible_keys", of_call(key_positions=abs)),
    "padded queries see keys": ("visible_keys", of_call(positions=abs)),
    "positions hide nothing in the engine": ("by_mask",
        lambda right, of, q, k, call: right(of, q, k, call)._replace(mask=call.mask)),
    "the order of rows hides, too": ("by_mask",
        lambda right, of, q, k, call: right(of, q, k, call)._replace(causal=call.causal)),
    "the window of rows hides, too": ("by_mask",
        lambda right, of, q, k, call: right(of, q, k, call).with_plan(window=call.plan.window)),
    "positions may be anywhere": ("near", lambda right, name, X: X),
}  # fmt: skip

# Of segments that a call gives.
PACKED_TESTS = "tokens"
PACKED = {
    "segments are ignored": ("visible_keys", of_call(segments=lambda X: None)),
    "padding is a segment, too": ("visible_keys", of_call(segments=lambda X: X + 1, key_segments=lambda X: X + 1)),
    "segments of queries are other ones": ("visible_keys", of_call(segments=lambda X: X + 1)),
    "all samples have the segments of the first": ("visible_keys", of_call(
        segments=lambda X: X if len(X.shape) == 1 else X[:1])),
}  # fmt: skip

# Where a backend has lines of its own for a mistake of these, as in the loops of a compiler: there, mutants are drawn.
ELSEWHERE = {
    "jax": {
        "a part forgets where its queries begin", "lengths of the first queries in every block",
        "the bias of the first queries in every block", "the mask of the first queries in every block",
        "arguments of the first samples in every part", "the longest sample loses a key", "lengths hide nothing",
    },
    "tensorflow": {
        "the bias of the first queries in every block", "the mask of the first queries in every block",
        "the longest sample loses a key", "lengths hide nothing",
    },
    "mxnet": {"the bias of the first queries in every block"},
}  # fmt: skip

# Of what some models of today have beside these.
FURTHER = {
    "sinks are zeros": ("MultiHeadAttention.beside_sinks", of_sinks(lambda X: 0 * X)),
    "sinks of the first head for all": ("MultiHeadAttention.beside_sinks", of_sinks(lambda X: 0 * X + X[:, :1])),
    "the output gate is forgotten": ("MultiHeadAttention.gate_by", lambda right, self, pooled, gates: pooled),
    "the output gate is of the first head": ("MultiHeadAttention.gate_by",
        lambda right, self, pooled, gates: right(pooled, 0 * gates + gates[:1])),
    "temperatures are not shifted": ("temper", lambda right, X, places, temperature, num_heads: right(
        X, places, dataclasses.replace(temperature, shift=0), num_heads)),
    "queries have no temperature": ("temper", lambda right, X, *rest: X),
    "rotations are not magnified": ("rotate", of_rotary(lambda rotary: dataclasses.replace(rotary, magnitude=1.0))),
    "the norm comes before the rotation in any case": ("MultiHeadAttention.transform_heads",
        of_turn(lambda self, q, k: (self.q_norm(q), self.k_norm(k)))),
    "chunks are one longer": ("visible_keys", of_call(chunk=lambda n: n + 1)),
    "chunks are forgotten": ("visible_keys", of_call(chunk=lambda n: None)),
}  # fmt: skip
FURTHER_TESTS = "alone norms sinks output_gate rotations positions parity"

GROUPS = [
    (CALL, CALL_TESTS),
    (OPTIONS, OPTIONS_TESTS),
    (FURTHER, FURTHER_TESTS),
    (PIECES, PIECES_TESTS),
    (PLACED, PLACED_TESTS),
    (PACKED, PACKED_TESTS),
]

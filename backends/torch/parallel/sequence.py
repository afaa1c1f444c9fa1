"""A layer of PyTorch whose sequence is split over ranks: each has rows of queries, keys and values, in their order.

Letters as in layer.py; Q and K are the rows on this rank. A call is projected here; then a rank gets all rows of some
heads ("ulysses"), all keys and values ("gather"), or meets them one rank's after another ("ring").
"""

from typing import NamedTuple

import torch

from mha import arguments, blocks, calls

from ..fast import used
from ..heads import positions, rotate
from ..layer import blank, four_axes, repeat_groups, repeat_heads, transpose_output, transpose_qkv, visible_keys
from . import split
from .exchange import anywhere, gathered, to_heads, to_rows
from .ranks import agree, shared
from .ring import pool as ring


class Rows(NamedTuple):
    """How the rows of a call lie on the ranks: numbers of queries and of keys of each, and which rank this is."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    rank: int
    of_mask: bool  # whether the mask has a row for each query, not one for all
    of_bias: bool

    @property
    def first_query(self):
        """How many queries come before those here."""
        return sum(self.queries[: self.rank])

    @property
    def first_key(self):
        """How many keys come before those here."""
        return sum(self.keys[: self.rank])


@torch.compiler.disable  # how many rows each rank has is known in a call alone
def call(layer, queries, keys, values, valid_lens=None, *rest):
    """Check a call of this rank's rows, alone and with the other ranks, and make it."""
    if isinstance(valid_lens, arguments.Checked):
        raise TypeError(
            "queries is of NumPy, expected tensors: a layer that is split by its sequence takes its own rows"
        )
    module = arguments.dispatch.load("torch")
    place = module.place(layer, queries)
    mask, score_bias, causal, offset, head_gates, training, return_weights = rest
    switches = causal, training, return_weights
    calls.inputs(layer.config, queries, keys, values, None, None, *switches, is_own=module.is_own, place=place)
    mask = mask if module.is_own(mask) else arguments.known("mask", mask, "bool")
    score_bias = arguments.module_floats(module, "score_bias", score_bias, layer.config.dtype)
    rest = mask, score_bias, causal, offset, head_gates, training, return_weights
    given = {"valid_lens": valid_lens, "mask": mask, "score_bias": score_bias, "head_gates": head_gates}
    facts = {"the layer": str(layer.config), "how": layer.how, "batch": len(queries), "causal": bool(causal)}
    facts |= {name: None if X is None else "given" for name, X in given.items()}
    facts["offset"] = offset if type(offset) is int else "an array"
    facts |= {"training": training, "return_weights": bool(return_weights)}
    facts["requires_grad"] = _tracked(layer, queries, keys, values, score_bias, head_gates)
    told = agree(layer.sequence, facts, (queries.shape[1], keys.shape[1], _rows_of(mask), _rows_of(score_bias)))
    of_queries, of_keys, *of_pairs = zip(*told, strict=True)
    for name, counts in zip(("mask", "score_bias"), of_pairs, strict=True):
        wrong = [rank for rank, count in enumerate(counts) if {*counts} != {1} and count != of_queries[rank]]
        if wrong:
            raise ValueError(
                f"{name} has {counts[wrong[0]]} rows on rank {wrong[0]} of the group, expected {of_queries[wrong[0]]}: "
                "one for each of its queries, or 1 on all ranks"
            )
    each = ({*counts} != {1} or {*of_queries} == {1} for counts in of_pairs)
    everybody = Rows(of_queries, of_keys, layer.sequence.get_local_rank(), *each)
    # All keys of the whole, in the memory of one number.
    whole_keys, whole_values = (X.new_empty(1).expand(len(X), sum(of_keys), X.shape[2]) for X in (keys, values))
    checked = arguments.check("torch", layer, queries, whole_keys, whole_values, valid_lens, *rest)
    call = layer, queries, keys, values, checked, training, return_weights
    if any(X is not None for X in given.values()) or type(offset) is not int:
        agree(layer.sequence, split.facts(*call, rows=False))
    if layer.heads is not None:
        agree(layer.heads, split.facts(*call))
    return layer.attend(queries, keys, values, *checked, training, return_weights, everybody)


def attend(part, mesh, how, rows, queries, keys, values, hiding, head_gates, training, return_weights):
    """The output (B, Q, D) of a layer for the queries on this rank, over the keys on all.

    part: the layer with the heads that are here, in tensors of this rank; rows: a `Rows`; hiding: of the queries here
    and all keys, but for its offset, which is that of the first query of the whole.
    """
    if return_weights:
        raise ValueError(
            "return_weights came to a layer that is split by its sequence, expected False: no rank has them"
        )
    part = split.with_parameters(part, lambda name, X: shared(X, mesh))
    head_gates = None if head_gates is None else shared(head_gates, mesh)
    hiding = hiding._replace(mask=blocks.of_pairs(hiding.mask), score_bias=blocks.of_pairs(hiding.score_bias))
    if not rows.of_bias:
        hiding = hiding._replace(score_bias=shared(hiding.score_bias, mesh))
    queries, keys, values = _blanked(mesh, rows, queries, keys, values, hiding)
    hiding = hiding._replace(offset=hiding.offset + rows.first_query)

    H, G = part.config.num_heads, part.config.num_key_value_heads
    W_q, W_k, W_v = part.W_q(queries), part.W_k(keys), part.W_v(values)  # (B, T, H*d)
    q, k, v = transpose_qkv(W_q, H), transpose_qkv(W_k, G), transpose_qkv(W_v, G)  # (B*H, T, d)
    q, k = _turned(part, q, k, hiding.offset, rows.first_key)
    pooled = HOWS[how](part, mesh, rows, q, k, v, hiding, training)  # (B*H, Q, dv)
    if head_gates is not None:
        pooled = pooled * torch.broadcast_to(head_gates, (len(queries), H)).reshape(-1, 1, 1)  # (B*H, Q, dv)
    return part.W_o(transpose_output(pooled, H))  # (B, Q, D)


def _blanked(mesh, rows, queries, keys, values, hiding):
    """The inputs with zeros for queries that see no key, and for keys and values that no query of any rank sees."""
    whole_keys = keys.new_empty(1).expand(len(keys), sum(rows.keys), 1)  # (B, all keys, 1)
    of_query = hiding.valid_lens is not None and hiding.valid_lens.ndim == 2
    if hiding.mask is None and hiding.score_bias is None and not of_query:
        hides = hiding.valid_lens is not None or blocks.reach(hiding) != (None, None)
        if not hides and 0 not in (sum(rows.queries), sum(rows.keys)):
            return queries, keys, values
        whole = queries.new_empty(1).expand(len(queries), sum(rows.queries), 1)  # (B, all queries, 1)
        sees, seen = _used(whole, whole_keys, hiding)
        sees = sees[:, rows.first_query :][:, : queries.shape[1]]  # (B, Q)
    else:
        sees, seen = _used(queries, whole_keys, hiding._replace(offset=hiding.offset + rows.first_query))
        seen = anywhere(seen.expand(len(keys), -1), mesh)  # (B, all keys)
    seen = seen[:, rows.first_key :][:, : keys.shape[1]]  # (B, K)
    return blank(queries, keys, values, sees, seen)


def _used(queries, keys, hiding):
    """As `used` of the fast path, also where there are no queries or no keys."""
    if 0 in (queries.shape[1], keys.shape[1]):
        return (torch.zeros(X.shape[:2], dtype=torch.bool, device=X.device) for X in (queries, keys))
    return used(queries, keys, hiding)


def _turned(part, q, k, offset, first_key):
    """Heads of queries and keys as they are compared, as `turn` of the lesson, at their places in the whole."""
    config = part.config
    if config.qk_norm:
        q, k = part.q_norm(q), part.k_norm(k)  # (B*H, T, d)
    if config.rotary:
        q = rotate(q, positions(q, offset), config.rotary, config.num_heads)  # (B*H, Q, d)
        k = rotate(k, positions(k, first_key), config.rotary, config.num_key_value_heads)  # (B*G, K, d)
    return q, k


def _ulysses(part, mesh, rows, q, k, v, hiding, training):
    """All rows of some heads on each rank: pooled there, and brought back."""
    H, G, N = part.config.num_heads, part.config.num_key_value_heads, mesh.size()
    B = len(q) // H
    if N > G:  # heads of keys are too few to go round
        k, v, G = repeat_groups(k, H // G), repeat_groups(v, H // G), H  # (B*H, K, d)
    heads = [len(one) for one in torch.arange(G).tensor_split(N)]  # of keys, on each rank
    of_queries = [H // G * one for one in heads]
    own = slice(sum(of_queries[: rows.rank]), sum(of_queries[: rows.rank + 1]))
    q, k, v = (
        to_heads(X.unflatten(0, (B, sum(counts))), counts, lengths, mesh).flatten(0, 1)  # (B*heads here, all rows, d)
        for X, counts, lengths in ((q, of_queries, rows.queries), (k, heads, rows.keys), (v, heads, rows.keys))
    )
    mask, score_bias = (
        _of_heads(X, has_rows, own, of_queries, rows, mesh)
        for X, has_rows in ((hiding.mask, rows.of_mask), (hiding.score_bias, rows.of_bias))
    )
    lengths = hiding.valid_lens
    if lengths is not None and lengths.ndim == 2:
        lengths = gathered(lengths, 1, rows.queries, mesh)  # (B, all queries)
    offset = hiding.offset - rows.first_query
    hiding = hiding._replace(valid_lens=lengths, mask=mask, score_bias=score_bias, offset=offset)
    pooled = pool(part.attention, q, k, v, of_queries[rows.rank], hiding, training)  # (B*heads here, all queries, dv)
    return to_rows(pooled.unflatten(0, (B, of_queries[rows.rank])), of_queries, rows.queries, mesh).flatten(0, 1)  # (B*H, Q, dv)


def _of_heads(pairs, has_rows, own, heads, rows, mesh):
    """A mask or bias (B, H or 1, Q or 1, K) of all queries, of the heads on this rank alone."""
    if pairs is None:
        return None
    if not has_rows:
        return pairs if pairs.shape[1] == 1 else pairs[:, own]
    if pairs.shape[1] == 1:
        return gathered(pairs, 2, rows.queries, mesh)  # (B, 1, all queries, K)
    return to_heads(pairs, heads, rows.queries, mesh)  # (B, heads here, all queries, K)


def _gather(part, mesh, rows, q, k, v, hiding, training):
    """All keys and values on each rank."""
    k, v = (gathered(X, 1, rows.keys, mesh) for X in (k, v))  # (B*G, all keys, d)
    return pool(part.attention, q, k, v, part.config.num_heads, hiding, training)  # (B*H, Q, dv)


def pool(attention, q, k, v, num_heads, hiding, training):
    """What an attention pooling gives for heads on this rank, (B*H, Q, dv): by its fast path, where it has one."""
    if hasattr(attention, "pool") and 0 not in (*q.shape[:2], k.shape[1]):
        return attention.pool(q, k, v, num_heads, hiding, training)
    times, B = len(q) // max(1, len(k)), len(q) // num_heads
    k, v = repeat_groups(k, times), repeat_groups(v, times)  # (B*H, K, d)
    visible = repeat_heads(visible_keys(q, k, *hiding), B, num_heads)  # (B*H, Q, K)
    bias = None if hiding.score_bias is None else repeat_heads(four_axes(hiding.score_bias), B, num_heads)
    return attention(q, k, v, visible, bias, training=training)["pooled"]  # (B*H, Q, dv)


def _tracked(layer, queries, keys, values, score_bias, head_gates):
    """What has gradients: ranks that differ in it would not meet in the backward pass."""
    if not torch.is_grad_enabled():
        return []
    weights = [X.requires_grad for X in layer.parameters()]
    projected = ((queries, layer.W_q), (keys, layer.W_k), (values, layer.W_v))
    inputs = [X.requires_grad or any(W.requires_grad for W in dense.parameters()) for X, dense in projected]
    return weights + inputs + [torch.is_tensor(X) and X.requires_grad for X in (score_bias, head_gates)]


def _rows_of(pairs):
    """How many rows a mask or bias has; 1 where it is a number of something else, or not there."""
    return pairs.shape[-2] if hasattr(pairs, "shape") and len(pairs.shape) > 1 else 1


HOWS = {"ulysses": _ulysses, "ring": ring, "gather": _gather}

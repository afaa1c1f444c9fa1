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
from .ranks import agree, global_rank, shared, telling
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
    with telling(layer.heads):
        checked, rows = _agreed(layer, queries, keys, values, valid_lens, *rest)
    *_, training, return_weights = rest
    if layer.heads is not None:
        agree(layer.heads, split.facts(layer, queries, keys, values, checked, training, return_weights))
    return layer.attend(queries, keys, values, *checked, training, return_weights, rows)


def _agreed(layer, queries, keys, values, valid_lens, *rest):
    """The arguments of a call on which the ranks of its sequence agree, checked, and the `Rows` of all."""
    module = arguments.dispatch.load("torch")
    place = module.place(layer, queries)
    mask, score_bias, causal, offset, head_gates, training, return_weights = rest
    switches = causal, training, return_weights
    with telling(layer.sequence):
        calls.inputs(layer.config, queries, keys, values, None, None, *switches, is_own=module.is_own, place=place)
        mask = mask if module.is_own(mask) else arguments.known("mask", mask, "bool")
        score_bias = arguments.module_floats(module, "score_bias", score_bias, layer.config.dtype)
    rest = mask, score_bias, causal, offset, head_gates, training, return_weights
    given = {"valid_lens": valid_lens, "mask": mask, "score_bias": score_bias, "head_gates": head_gates}
    facts = {"the layer": str(layer.config), "how": layer.how, "batch": len(queries), "causal": bool(causal)}
    facts |= {name: None if X is None else "given" for name, X in given.items()}
    facts["offset"] = offset if type(offset) is int else "an array"
    facts["training"] = bool(layer.training if training is None else training)
    facts["return_weights"] = bool(return_weights)
    facts["requires_grad"] = _tracked(layer, queries, keys, values, score_bias, head_gates)
    rows = _told(layer.sequence, facts, queries, keys, {"mask": mask, "score_bias": score_bias})
    # All keys of the whole, in the memory of one number.
    whole_keys, whole_values = (X.new_empty(1).expand(len(X), sum(rows.keys), X.shape[2]) for X in (keys, values))
    again = any(X is not None for X in given.values()) or type(offset) is not int  # what is not known to be alike yet
    with telling(layer.sequence if again else None):
        checked = arguments.check("torch", layer, queries, whole_keys, whole_values, valid_lens, *rest)
    if again:
        agree(layer.sequence, split.facts(layer, queries, keys, values, checked, training, return_weights, rows=False))
    return checked, rows


def _told(mesh, facts, queries, keys, pairs):
    """The `Rows` of a call on which all ranks agree: facts, by name, are alike; pairs: its mask and bias by name."""
    told = agree(mesh, facts, (queries.shape[1], keys.shape[1], *map(_rows_of, pairs.values())))
    of_queries, of_keys, *of_pairs = zip(*told, strict=True)
    for name, counts in zip(pairs, of_pairs, strict=True):
        wrong = [rank for rank, count in enumerate(counts) if {*counts} != {1} and count != of_queries[rank]]
        if wrong:
            raise ValueError(
                f"{name} has {counts[wrong[0]]} rows on rank {global_rank(mesh, wrong[0])}, expected "
                f"{of_queries[wrong[0]]}: one for each of its queries, or 1 on all ranks"
            )
    each = ({*counts} != {1} or {*of_queries} == {1} for counts in of_pairs)
    return Rows(of_queries, of_keys, mesh.get_local_rank(), *each)


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

    projected = _projected(part, queries, keys, values, hiding.offset, rows.first_key)
    pooled, H = HOWS[how](part, mesh, rows, projected, hiding, training), part.config.num_heads  # (B*H, Q, dv)
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
        seen = anywhere(seen, mesh)  # (B, all keys)
    seen = seen[:, rows.first_key :][:, : keys.shape[1]]  # (B, K)
    return blank(queries, keys, values, sees, seen)


def _used(queries, keys, hiding):
    """As `used` of the fast path, with flags (B, Q) and (B, K), also where one stands for all or there are no rows."""
    if 0 in (queries.shape[1], keys.shape[1]):
        return (torch.zeros(X.shape[:2], dtype=torch.bool, device=X.device) for X in (queries, keys))
    return (flags.expand(X.shape[:2]) for flags, X in zip(used(queries, keys, hiding), (queries, keys), strict=True))


def _projected(part, queries, keys, values, offset, first_key):
    """Heads of queries (B*H, Q, d), keys (B*G, K, d) and values, as they are pooled, at their places in the whole.

    One after the other, so that what is sent elsewhere takes no memory when the next one comes.
    """
    config = part.config
    H, G = config.num_heads, config.num_key_value_heads
    norms = (part.q_norm, part.k_norm) if config.qk_norm else (None, None)
    compared = zip((queries, keys), (part.W_q, part.W_k), (H, G), norms, (offset, first_key), strict=True)
    for X, dense, heads, norm, first in compared:
        split = transpose_qkv(dense(X), heads)  # (B*heads, T, d)
        split = split if norm is None else norm(split)
        if config.rotary:
            split = rotate(split, positions(split, first), config.rotary, heads)
        yield split
    yield transpose_qkv(part.W_v(values), G)  # (B*G, K, dv)


def _ulysses(part, mesh, rows, projected, hiding, training):
    """All rows of some heads on each rank: pooled there, and brought back."""
    H, G, N = part.config.num_heads, part.config.num_key_value_heads, mesh.size()
    times = 1 if N <= G else H // G  # or heads of keys are too few to go round
    heads = [len(one) for one in torch.arange(G * times).tensor_split(N)]  # of keys, on each rank
    of_queries = [H // (G * times) * one for one in heads]
    own = slice(sum(of_queries[: rows.rank]), sum(of_queries[: rows.rank + 1]))
    here = ((1, of_queries, rows.queries), (times, heads, rows.keys), (times, heads, rows.keys))

    def exchanged(X, times, counts, lengths):
        X = repeat_groups(X, times).unflatten(0, (-1, sum(counts)))
        return to_heads(X, counts, lengths, mesh).flatten(0, 1)  # (B*heads here, all rows, d)

    q, k, v = map(exchanged, projected, *zip(*here, strict=True))
    mask, score_bias = (
        _of_heads(X, has_rows, own, of_queries, rows, mesh)
        for X, has_rows in ((hiding.mask, rows.of_mask), (hiding.score_bias, rows.of_bias))
    )
    lengths = hiding.valid_lens
    if lengths is not None and lengths.ndim == 2:
        lengths = gathered(lengths.to(torch.int64), 1, rows.queries, mesh)  # (B, all queries), which had a dtype here
    offset = hiding.offset - rows.first_query
    hiding = hiding._replace(valid_lens=lengths, mask=mask, score_bias=score_bias, offset=offset)
    count = of_queries[rows.rank]
    pooled = pool(part.attention, q, k, v, count, hiding, training)  # (B*heads here, all queries, dv)
    del q, k, v
    pooled = to_rows(pooled.unflatten(0, (-1, count)), of_queries, rows.queries, mesh)  # (B, H, Q, dv)
    return pooled.flatten(0, 1)  # (B*H, Q, dv)


def _of_heads(pairs, has_rows, own, heads, rows, mesh):
    """A mask or bias (B, H or 1, Q or 1, K) of all queries, of the heads on this rank alone."""
    if pairs is None:
        return None
    if not has_rows:
        return pairs if pairs.shape[1] == 1 else pairs[:, own]
    if pairs.shape[1] == 1:
        return gathered(pairs, 2, rows.queries, mesh)  # (B, 1, all queries, K)
    return to_heads(pairs, heads, rows.queries, mesh)  # (B, heads here, all queries, K)


def _gather(part, mesh, rows, projected, hiding, training):
    """All keys and values on each rank."""
    q = next(projected)
    k, v = (gathered(X, 1, rows.keys, mesh) for X in projected)  # (B*G, all keys, d)
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

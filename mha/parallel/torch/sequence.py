"""A layer of PyTorch whose sequence is split over ranks: each has consecutive rows of queries, keys and values.

Letters as in layer.py; Q and K are the rows on this rank. Each rank projects and turns its rows; then it gets all rows
of some heads ("ulysses"), all keys and values ("gather"), or those of one rank after another ("ring"). The steps and
their order are the lesson's.
"""

import dataclasses
import functools

import torch

from mha.backends.torch import arrays
from mha.backends.torch import layer as lesson
from mha.backends.torch.engine.layer import Decisions
from mha.backends.torch.engine.operations import OPERATIONS
from mha.backends.torch.engine.pooling import AttentionPooling
from mha.backends.torch.heads import repeat_groups
from mha.backends.torch.hiding import places, visible_keys
from mha.core.call import ROWS, axes_of
from mha.core.engine import blocks, segments
from mha.core.engine.visible_range import by_mask, by_segments, needs_all, reach, usage, without_positions, zero_out
from mha.parallel.rows import balances, consecutive, zigzag

from .exchange import anywhere, exchange_rows, gather_rows, to_heads, to_rows
from .ranks import share
from .ring import Fused
from .ring import pool as ring
from .ring.circle import move_offset
from .twins import class_of, with_parameters


def over(part, mesh, how, rows, in_zigzag):
    """A layer for one call over the ranks of a mesh, in plain tensors; rows: the `Rows` of the call."""
    part = with_parameters(part, lambda name, X: share(X, mesh))
    part.__class__ = class_of(HOWS[how], type(part))
    part.mesh, part.rows, part.in_zigzag = mesh, rows, in_zigzag
    return part


class OfRows:
    """A layer for one call of the rows on this rank; it comes before the layer's own class in the bases.

    Its call is for the queries here and all keys; the offset is that of the first query of the whole sequence.
    """

    def attend(self, queries, keys, values, call):
        """Take the steps for all samples at once, so that all ranks exchange equally often."""
        if call.by_tokens():
            call = self.mask_tokens(queries, call)
        named = call.arrays().items()
        alike = {name: share(X, self.mesh) for name, X in named if name not in self.rows.own}
        call = call._replace(**alike).with_plan(lesson=True, engine=Decisions())
        return lesson.MultiHeadAttention.attend(self, queries, keys, values, call)

    def mask_tokens(self, queries, call):
        """The call with a mask of the queries here for what hides by positions, and by segments that are not known."""
        if segments.has_segments(call):
            return call
        whole_keys = queries.new_empty(1).expand(len(queries), sum(self.rows.keys), 1)  # (B, all keys, 1)
        own = move_offset(call, self.rows.first_query)
        done = by_mask(OPERATIONS, queries, whole_keys, own)
        self.rows = self.rows._replace(own=self.rows.own | {"mask"})
        mask = done.mask.expand(-1, -1, queries.shape[1], -1)  # (B or 1, H or 1, Q, K or 1)
        return done._replace(mask=mask, offset=call.offset).with_plan(known=call.plan.known)

    def zero_unused(self, queries, keys, values, call):
        """The inputs with zeros for queries that see no key, and for keys and values that no query of any rank sees."""
        rows, first_query = self.rows, self.rows.first_query
        sizes = sum(rows.queries), sum(rows.keys)
        if 0 not in sizes and needs_all(call, *sizes):
            return queries, keys, values, call
        whole_keys = keys.new_empty(1).expand(len(keys), sum(rows.keys), 1)  # (B, all keys, 1)
        if any("Q" in axes_of(name, X) for name, X in call.arrays().items()):
            sees, seen = _use_flags(queries, whole_keys, move_offset(call, first_query))
            seen = anywhere(seen, self.mesh)  # (B, all keys)
        else:
            whole = queries.new_empty(1).expand(len(queries), sum(rows.queries), 1)  # (B, all queries, 1)
            sees, seen = _use_flags(whole, whole_keys, call)
            sees = sees[:, first_query : first_query + queries.shape[1]]  # (B, Q)
        seen = seen[:, rows.first_key : rows.first_key + keys.shape[1]]  # (B, K)
        return *zero_out(OPERATIONS, queries, keys, values, sees, seen), call

    def transform_heads(self, q, k, call):
        """Norm the heads, and rotate and temper them by their places in the whole sequence."""
        rows, of_keys = self.rows, call.key_positions
        own = slice(rows.first_key, rows.first_key + k.shape[1])
        here = places(k, None, rows.first_key) if of_keys is None else of_keys[..., own]  # (B or 1, K) or (K,)
        call = call._replace(offset=call.offset + rows.first_query, key_positions=here)
        return lesson.MultiHeadAttention.transform_heads(self, q, k, call)

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv), by the fast path of the pooling where it has one."""
        fast = isinstance(self.attention, AttentionPooling) and 0 not in (*q.shape[:2], k.shape[1])
        return super().pool(q, k, v, call.with_plan(lesson=not fast))


class Ulysses(OfRows):
    """All rows of some heads on each rank, pooled there and sent back."""

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv)."""
        whole, rank = self.config, self.rows.rank
        H, G, N = whole.num_heads, whole.num_key_value_heads, self.mesh.size()
        times = 1 if N <= G else H // G  # or heads of keys are too few to go round
        of_keys = [len(one) for one in torch.arange(G * times).tensor_split(N)]  # heads on each rank
        self.of_queries = [H // (G * times) * one for one in of_keys]
        q = self.exchange_heads(q, self.of_queries, 1, self.rows.queries)  # (B*H, all queries, d)
        k = self.exchange_heads(k, of_keys, times, self.rows.keys)  # (B*G, all keys, d)
        v = self.exchange_heads(v, of_keys, times, self.rows.keys)  # (B*G, all keys, dv)
        here = {"num_heads": self.of_queries[rank], "num_key_value_heads": of_keys[rank]}
        self.config = dataclasses.replace(whole, **here)
        pooled, _ = super().pool(q, k, v, self.of_all_queries(without_positions(call)))  # (B*H, all queries, dv)
        self.config = whole
        pooled = pooled.unflatten(0, (-1, here["num_heads"]))  # (B, H, all queries, dv)
        return to_rows(pooled, self.of_queries, self.rows.queries, self.mesh).flatten(0, 1), None

    def exchange_heads(self, X, heads, times, rows):
        """Exchange all heads of the rows here for all rows of the heads here: (B*all H, T, d) -> (B*H, all T, d)."""
        split = repeat_groups(X, times)  # (B*all heads, T, d)
        return to_heads(split.unflatten(0, (-1, sum(heads))), heads, rows, self.mesh).flatten(0, 1)

    def of_all_queries(self, call):
        """The call for all queries and the heads here."""
        own, rows, first = self.rows.own, self.rows.queries, sum(self.of_queries[: self.rows.rank])
        changed, plan = {}, _plan_without(call, own)
        for name, X in call.arrays().items():
            axes = axes_of(name, X)
            if name in own and axes == "BHQK" and X.shape[1] > 1:
                changed[name] = to_heads(X, self.of_queries, rows, self.mesh)  # (B or 1, H, all queries, K)
            elif name in own:
                changed[name] = gather_rows(_widen_integers(name, X), axes.index("Q"), rows, self.mesh)
                if ROWS[name].holds == "integers":
                    plan["known"][name] = arrays.value_of(changed[name])
        return call.part(heads=slice(first, first + self.config.num_heads))._replace(**changed).with_plan(**plan)

    def beside_sinks(self, call):
        """The call with the sinks of the heads here."""
        call, first = super().beside_sinks(call), sum(self.of_queries[: self.rows.rank])
        if call.plan.sinks is None:
            return call
        return call.with_plan(sinks=call.plan.sinks[:, first : first + self.config.num_heads])  # (1, H, 1, 1)


class Ring(OfRows):
    """Keys and values of one rank after another come to the queries, in zigzag or not."""

    def mask_tokens(self, queries, call):
        """The call with segments, or beside others a mask, in the place of chunks, which the whole sequence counts."""
        if not call.plan.chunk or call.by_positions():
            return call
        if call.is_packed():
            return super().mask_tokens(queries, call)
        own, first = queries.new_empty(1), self.rows.first_query
        whole_keys = own.expand(len(queries), sum(self.rows.keys), 1)  # (B, all keys, 1)
        self.rows = self.rows._replace(own=self.rows.own | {"segments"})
        return move_offset(by_segments(OPERATIONS, queries, whole_keys, move_offset(call, first)), -first)

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv)."""
        call, rows, mesh = self.beside_sinks(call), self.rows, self.mesh
        own = consecutive(rows.queries), consecutive(rows.keys)
        run = functools.partial(ring, self.attention, self.config.num_heads, mesh)
        if not (balances(call, rows.own) if self.in_zigzag is None else self.in_zigzag):
            return run(own, q, k, v, call), None
        new = zigzag(sum(rows.queries), mesh.size()), zigzag(sum(rows.keys), mesh.size())
        ways = list(zip(own, new, strict=True))  # of queries, and of keys
        q, k, v = exchange_rows((q, k, v), 1, (ways[0], ways[1], ways[1]), mesh)  # (B*H, rows, d), (B*G, rows, any)
        pooled = run(new, q, k, v, self.of_rows(call, own[0], new[0]))  # (B*H, rows, dv)
        return exchange_rows((pooled,), 1, ((new[0], own[0]),), mesh)[0], None

    def of_rows(self, call, before, after):
        """The call for the queries that are here after the exchange."""
        changed = {}
        for name, X in call.arrays().items():
            if name in self.rows.own:
                axis = axes_of(name, X).index("Q")
                (changed[name],) = exchange_rows((_widen_integers(name, X),), axis, ((before, after),), self.mesh)
        return call._replace(**changed).with_plan(**_plan_without(call, self.rows.own))


class Gather(OfRows):
    """All keys and values on each rank."""

    def pool(self, q, k, v, call):
        """The pooled heads, (B*H, Q, dv)."""
        k, v = (gather_rows(X, 1, self.rows.keys, self.mesh) for X in (k, v))  # (B*G, all keys, d)
        later = q.shape[1] and self.rows.first_query and reach(call)[0] is None  # where the kernel knows no order
        if not (later and Fused.takes(self.attention, q, v, call)):
            return super().pool(q, k, v, move_offset(call, self.rows.first_query))
        places = consecutive(self.rows.queries)[self.rows.rank :], [(slice(0, k.shape[1]),)]
        call = self.beside_sinks(without_positions(call))
        return ring(self.attention, self.config.num_heads, None, places, q, k, v, call), None


HOWS = {"ulysses": Ulysses, "ring": Ring, "gather": Gather}


def _plan_without(call, own):
    """The fields of a call's plan without the values of its own arrays, since their rows move between ranks."""
    known = {name: X for name, X in (call.plan.known or {}).items() if name not in own}
    return {"known": known, "extremes": None if "valid_lens" in own else call.plan.extremes}


def _widen_integers(name, X):
    """An array of a call in the dtype in which all ranks send it: int64 for integers."""
    return X.to(torch.int64) if ROWS[name].holds == "integers" else X


def _use_flags(queries, keys, call):
    """The flags of `used` with a value for each query (B, Q) and key (B, K), also where there are no rows.

    A call with pairs is looked at in blocks, to save memory.
    """
    Q, K = queries.shape[1], keys.shape[1]
    if 0 in (Q, K) or call.by_tokens() or call.pairs():
        sees, seen = (torch.zeros(X.shape[:2], dtype=torch.bool, device=X.device) for X in (queries, keys))
        for rows, columns in blocks.pieces(call, Q, K, len(queries)) if Q and K else ():
            cut = call.part(queries=rows, keys=columns)
            visible = visible_keys(queries[:, rows], keys[:, columns], cut).any(1)  # (B or 1, rows or 1, columns or 1)
            sees[:, rows] |= visible.any(2)
            seen[:, columns] |= visible.any(1)
        return sees, seen
    found = zip(usage(OPERATIONS, queries, keys, call), (queries, keys), strict=True)
    return (flags.expand(X.shape[:2]) for flags, X in found)

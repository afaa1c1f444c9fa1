"""Compute calls with a cache by writing slots in place, and then attending to the heads in the slots.

Letters as in the chapters; S slots, Q new tokens. `of` is a backend's table of `Operations`; its arrays can be written
to, and the values of the cache are known: `call.plan.step` says what the call does to its slots.
"""

from typing import Any

import numpy as np

from mha.core.cache import Cache
from mha.core.call import Call, check_widths
from mha.core.engine.operations import Operations
from mha.core.engine.visible_range import by_mask, in_rows


def in_place(queries: Any, call: Call) -> bool:
    """Whether the slots may be written before they are attended to; else the lesson copies them."""
    step = call.plan.step
    if step is None or step.early or call.return_weights:
        return False
    return 0 not in (*queries.shape[:2], *call.cache.keys.shape)


def attend_token(of: Operations, layer: Any, queries: Any, keys: Any, values: Any, call: Call) -> tuple[Any, Cache]:
    """Return the output (B, 1, D) of a call that `is_token`, and the cache after it.

    With one query, the heads that share keys are queries of one head, and no array has to be transposed.
    """
    config, step = layer.config, call.plan.step
    (B, G, _, d), H = call.cache.keys.shape, config.num_heads
    W_q, W_k, W_v = layer.W_q(queries), layer.W_k(keys), layer.W_v(values)  # (B, 1, H*d), (B, 1, G*d), (B, 1, G*dv)
    check_widths(config, W_q, W_k, W_v)
    if config.rotary or config.temperature:
        positions = of.tensor(np.full((1, 1), step.first), queries)  # (1, 1)
        call = call._replace(positions=positions, key_positions=positions)
    q, k = layer.transform_heads(of.reshape(W_q, (B * H, 1, d)), of.reshape(W_k, (B * G, 1, d)), call)
    v = of.reshape(W_v, (B * G, 1, call.cache.values.shape[3]))  # (B*G, 1, dv)
    left = write_heads(of, k, layer.v_norm(v) if config.value_norm else v, call)
    if config.sinks:
        sinks = in_rows(of, layer.beside_sinks(call).plan.sinks, (B, H, G, 1))  # (B, G, H/G, 1)
        call = call.with_plan(sinks=of.repeat_heads(sinks, B, G))  # (B*G, H/G, 1)
    pooled = layer.pool_token(of.reshape(q, (B, G, H // G, d)), left.keys, left.values, call)  # (B, G, H/G, dv)
    if config.output_gate:
        gates = layer.beside_gates(queries, call).plan.gates  # (B*H, 1, dv or 1)
        pooled = layer.gate_by(of.reshape(pooled, (B * H, 1, left.values.shape[3])), gates)  # (B*H, 1, dv)
    output = layer.W_o(of.reshape(pooled, (B, 1, H * left.values.shape[3])))  # (B, 1, D)
    return layer.recall(output, None, call, left)


def is_token(queries: Any, call: Call) -> bool:
    """Whether a call has one token, at the same place in all samples, which sees all slots that are used."""
    step, plain = call.plan.step, call.mask is call.score_bias is call.head_gates is None
    return plain and queries.shape[1] == 1 and step is not None and step.first is not None and step.seen is None


def place_inputs(of: Operations, queries: Any, keys: Any, values: Any, call: Call) -> tuple[Any, Any, Any, Call]:
    """Put zeros for padding, and no keys beside a frozen cache; the call gets positions for the rotation."""
    step, frozen, config = call.plan.step, call.cache.frozen, call.cache.config
    if frozen:
        keys, values = (of.zeros((len(queries), 0, width), queries) for width in call.cache.widths)  # (B, 0, any)
    if step.first is not None:
        if not (config.rotary or config.temperature):
            return queries, keys, values, call
        positions = of.arange(queries.shape[1], queries)[None] + step.first  # (1, Q)
    else:
        positions = of.tensor(step.positions, queries)  # (B, Q)
        if (step.positions < 0).any():
            real = of.tensor(step.positions >= 0, queries)[:, :, None]  # (B, Q, 1)
            queries = of.where(real, queries, of.zeros((), queries))  # (B, Q, any)
            if not frozen:
                keys, values = (of.where(real, X, of.zeros((), X)) for X in (keys, values))  # (B, Q, any)
    lengths = call.valid_lens if frozen else None  # which count slots there, else new tokens
    call = call._replace(valid_lens=lengths, positions=positions, key_positions=positions[:, : keys.shape[1]])
    return queries, keys, values, call


def remember_heads(of: Operations, k: Any, v: Any, call: Call) -> tuple[Any, Any, Call, Cache]:
    """Write the heads of new tokens, k (B*G, Q, d) and v (B*G, Q, dv), into the slots.

    Returns keys and values of the slots, (B*G, used, any), the call of these, and the cache after it.
    """
    step, S = call.plan.step, call.cache.sizes[1]
    cache = call.cache if call.cache.frozen else write_heads(of, k, v, call)
    k, v = (X if step.used == slice(0, S) else X[:, :, step.used] for X in (cache.keys, cache.values))
    pairs = {name: X[..., step.used] if X.shape[-1] > 1 else X for name, X in call.pairs().items()}
    changed = {"positions": None, "key_positions": None, "offset": 0, **pairs}
    if step.in_order:
        changed["offset"] = step.first - step.used.start
    else:
        call = call._replace(causal=False).with_plan(window=None, chunk=None)
    if step.seen is not None:
        seen = of.tensor(step.seen, k)  # (B or 1, 1, Q, used)
        changed["mask"] = of.four_axes(pairs["mask"]) * seen if "mask" in pairs else seen
    call = call._replace(**changed)
    Q = step.slot_state.tokens - step.first if step.positions is None else step.positions.shape[1]
    if pairs or step.hidden:  # what nobody sees may be no number
        visible = of.visible_keys(of.zeros((1, Q, 0), k), k[:, 0], call)  # (B or 1, H or 1, Q or 1, used)
        seen = of.any(of.any(visible, 1), 1)[:, None, :, None]  # (B or 1, 1, used, 1)
        k, v = (of.where(seen, X, of.zeros((), X)) for X in (k, v))  # (B, G, used, any)
    call = by_mask(of, of.zeros((1, Q, 0), k), k[:, 0], call) if call.plan.chunk else call
    return of.merged(k), of.merged(v), call, cache  # (B*G, used, any)


def write_heads(of: Operations, k: Any, v: Any, call: Call) -> Cache:
    """Write new tokens into the slots, and return the cache after it; arguments as of `remember_heads`."""
    step, (B, G, S, _), Q = call.plan.step, call.cache.keys.shape, k.shape[1]
    (*heads, positions, lengths, lost), slot_state = call.cache.arrays(), step.slot_state
    new = [of.reshape(X, (B, G, Q, X.shape[2])) for X in (k, v)]  # (B, G, Q, any)
    if step.first is None:
        if step.rows.size:  # MXNet fails on indices of no size
            rows, there, columns = map(of.index, (step.rows, step.slots, step.columns))
            for slots, X in zip(heads, new, strict=True):
                slots[rows, :, there] = X[rows, :, columns]
        positions, lengths, lost = (of.tensor(X.astype("int32"), k) for X in slot_state.arrays)
    else:
        for there, own in step.runs():
            for slots, X in zip(heads, new, strict=True):
                slots[:, :, there] = X if Q == 1 else X[:, :, own]
            positions[:, there] = step.first if Q == 1 else of.arange(Q, k)[own] + step.first
        lengths[:] = slot_state.tokens
        if slot_state.tokens > S:
            lost[:] = slot_state.tokens - S - 1
    return call.cache.after(*heads, positions, lengths, lost).with_state(slot_state)

"""Check that all ranks make the same call, and learn which rows of a sequence each rank has.

Letters as in layer.py. All but queries, keys and values derives from the declaration of a call's arguments.
"""

import hashlib
import os
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor

from mha.backends.torch import arrays
from mha.core.call import ROWS, Call, axes_of, check
from mha.core.call.declaration import ARRAYS
from mha.core.call.fitting import fit_call, fit_inputs
from mha.core.options import checks

from .ranks import agree, global_rank, in_step, reporting

CHECKS = "MHA_CHECK_RANKS"  # 1: numbers that ranks must have alike are compared, too, which reads all of them
SWITCHES = [name for name, row in ROWS.items() if row.holds == "switch"]
FLOATS = [name for name, row in ROWS.items() if row.differentiable]
PAIRS = [name for name, row in ROWS.items() if row.broadcasts]  # which have one row where it is the same for all


class Rows(NamedTuple):
    """The rows of a call on the ranks: numbers of queries and of keys of each, and which rank this is.

    own: the names of the arguments that have a row for each query here, not one for all queries of all ranks.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    rank: int
    own: frozenset[str]

    @property
    def first_query(self):
        """The number of queries on the ranks before this one."""
        return sum(self.queries[: self.rank])

    @property
    def first_key(self):
        """The number of keys on the ranks before this one."""
        return sum(self.keys[: self.rank])


def agree_on_inputs(layer, queries, keys, values, call):
    """Check a call of whole inputs, and that all ranks over which heads or slots are split make the same call."""
    layer.calls += 1
    with reporting(layer.heads):
        with reporting(layer.sequence):
            call = check(arrays, layer, queries, keys, values, call)
        facts = _facts(layer, queries, keys, values, call)
        if layer.sequence is not None:
            in_step(layer.sequence, agree(layer.sequence, facts, (layer.calls,)))
    if layer.heads is not None:
        in_step(layer.heads, agree(layer.heads, facts, (layer.calls,)))
    return call


def agree_on_rows(layer, queries, keys, values, call):
    """Check a call of this rank's rows, and that all ranks make the same call; return it with the `Rows` of all."""
    layer.calls += 1
    with reporting(layer.heads):
        call, rows = _of_sequence(layer, queries, keys, values, call)
    if layer.heads is not None:
        agree(layer.heads, _facts(layer, queries, keys, values, call))
    return call, rows


def _of_sequence(layer, queries, keys, values, call):
    place, mesh = arrays.place(layer, queries), layer.sequence
    with reporting(mesh):
        fit_inputs(arrays, layer.config, place, queries, keys, values)
        switches = {name: getattr(call, name) for name in (*SWITCHES, "training", "return_weights")}
        fit_call(arrays, layer.config, place, (*queries.shape[:2], keys.shape[1]), Call(**switches))
        rows_of_pairs = [_rows_of(name, getattr(call, name)) for name in PAIRS]
    named = {name: getattr(call, name) for name in ARRAYS}
    given = {name: X if X is None or type(X) is int else "an array" for name, X in named.items()}
    facts = {"the layer": str(layer.config), "how": layer.how, "zigzag": layer.zigzag, "batch": len(queries)}
    facts |= given | switches
    facts["training"] = _trains(layer, call)
    facts["requires_grad"] = _requires_grad(layer, queries, keys, values, call)
    rows = _rows_of_all(mesh, facts, queries, keys, rows_of_pairs, layer.calls)
    # All keys of the whole, in the memory of one number.
    whole_keys, whole_values = (X.new_empty(1).expand(len(X), sum(rows.keys), X.shape[2]) for X in (keys, values))
    again = "an array" in given.values() or checks_numbers()  # of which it is not known yet that they are alike
    with reporting(mesh if again else None):
        call = check(arrays, layer, queries, whole_keys, whole_values, call)
    if again:
        agree(mesh, _facts(layer, queries, keys, values, call, whole=False))
    others = {name for name, X in call.arrays().items() if name not in PAIRS and "Q" in axes_of(name, X)}
    return call, rows._replace(own=rows.own | others)


def _facts(layer, queries, keys, values, call, whole=True):
    """The facts of a checked call by name, for `agree`; whole: whether all ranks have the same rows of the sequence.

    Lengths and offsets are compared by their values, other arrays by their shapes.
    """
    given = {"queries": queries, "keys": keys, "values": values}  # the last two are None beside a frozen cache
    inputs = {name: X for name, X in given.items() if X is not None}
    found = {"the layer": str(layer.config)}
    found |= {name: (_shape(X, "BQ_", whole), str(X.dtype)) for name, X in inputs.items()}
    for name, row in ROWS.items():
        X = found[name] = getattr(call, name)
        if hasattr(X, "shape"):
            axes = axes_of(name, X)
            by_value = row.holds == "integers" and (whole or "Q" not in axes)
            found[name] = _value(call, name, X) if by_value else _shape(X, axes, whole)
    if whole:  # as many sums backward
        found["which of queries, keys and values are one array"] = (queries is keys, keys is values, queries is values)
        floats = *inputs.values(), *(getattr(call, name) for name in FLOATS), *layer.parameters()
        found["requires_grad"] = torch.is_grad_enabled() and [X is not None and X.requires_grad for X in floats]
    if checks_numbers():
        found |= _digests(layer, inputs if whole else {}, call, whole)
    if call.cache is not None:
        book = call.cache.slot_state()
        found["cache"] = call.cache.keys.shape, *(book.arrays if book else ())
    return found | {"return_weights": bool(call.return_weights), "training": _trains(layer, call)}


def checks_numbers():
    """Whether the user wants numbers compared, too, where all ranks must have the same ones."""
    return checks.choice(CHECKS, os.environ.get(CHECKS) or "0", ("0", "1")) == "1"


def _digests(layer, inputs, call, whole):
    """Digests, by name, of all arrays that are the same on ranks which make the same call."""
    alike = {name: X for name, X in call.arrays().items() if whole or "Q" not in axes_of(name, X)}
    found = {f"the digest of {name}": _digest([X]) for name, X in (inputs | alike).items()}
    return found | {"the digest of the weights": digest_of_weights(layer, shared=whole)}


def digest_of_weights(layer, shared=False):
    """A digest of the weights, without those that another engine has split or that are on no device yet.

    shared: leave out those that are split with the heads, too.
    """
    own = []
    for X in layer.parameters():
        if isinstance(X, DTensor) and X.device_mesh == getattr(layer, "heads", None):
            X = None if shared and X.placements[0].is_shard() else X.to_local()
        if not (X is None or isinstance(X, DTensor) or X.is_meta):
            own.append(X)
    return _digest(own)


def _digest(tensors):
    digest = hashlib.blake2b(digest_size=8)
    for X in tensors:
        digest.update(torch.as_tensor(X).detach().cpu().reshape(-1).view(torch.uint8).numpy())  # (bytes,)
    return digest.hexdigest()


def _value(call, name, X):
    known = call.value_of(name)  # which is on the host already
    return arrays.to_numpy(X) if known is None else known


def _shape(X, axes, whole):
    """A shape, with "rows" for an axis of queries in which ranks may differ."""
    return tuple(n if whole or letter != "Q" else "rows" for letter, n in zip(axes, X.shape, strict=True))


def _trains(layer, call):
    return bool(layer.training if call.training is None else call.training)


def _requires_grad(layer, queries, keys, values, call):
    """Whether each weight, input and float has gradients: ranks that differ would not meet in the backward pass."""
    if not torch.is_grad_enabled():
        return []
    weights = [X.requires_grad for X in layer.parameters()]
    projected = ((queries, layer.W_q), (keys, layer.W_k), (values, layer.W_v))
    inputs = [X.requires_grad or any(W.requires_grad for W in dense.parameters()) for X, dense in projected]
    floats = (getattr(call, name) for name in FLOATS)
    return weights + inputs + [torch.is_tensor(X) and X.requires_grad for X in floats]


def _rows_of(name, pairs):
    """The number of rows of a mask or bias; 1 if it is a number, None or no array."""
    if isinstance(pairs, (list, tuple)):
        pairs = checks.array_of(name, pairs, "float64")
    return pairs.shape[-2] if hasattr(pairs, "shape") and len(pairs.shape) > 1 else 1


def _rows_of_all(mesh, facts, queries, keys, rows_of_pairs, calls):
    """Check that all ranks have the same facts; return the `Rows` of their call. rows_of_pairs: those of `PAIRS`."""
    found = agree(mesh, facts, (calls, queries.shape[1], keys.shape[1], *rows_of_pairs))
    in_step(mesh, found)
    _, of_queries, of_keys, *of_pairs = zip(*found, strict=True)
    for name, counts in zip(PAIRS, of_pairs, strict=True):
        wrong = [rank for rank, count in enumerate(counts) if {*counts} != {1} and count != of_queries[rank]]
        if wrong:
            raise ValueError(
                f"{name} has {counts[wrong[0]]} rows on rank {global_rank(mesh, wrong[0])}, expected "
                f"{of_queries[wrong[0]]}: one for each of its queries, or 1 on all ranks"
            )
    each = {name for name, counts in zip(PAIRS, of_pairs, strict=True) if {*counts} != {1} or {*of_queries} == {1}}
    return Rows(of_queries, of_keys, mesh.get_local_rank(), frozenset(each))

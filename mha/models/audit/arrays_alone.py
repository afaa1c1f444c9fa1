"""Audit attention from arrays alone, for a model that is no tree of modules, such as functions of JAX."""

import contextlib
import dataclasses
import fnmatch
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.call import PACKED, PLACES, ROWS
from mha.core.options import checks
from mha.layer import MultiHeadAttention
from mha.models.audit.audit_report import AuditReport, LayerRow
from mha.models.audit.calls.layer_call import score_bias
from mha.models.audit.calls.model_calls import History, ModelCall, UnknownError
from mha.models.audit.calls.session import CapturedCall
from mha.models.audit.layers.attention_layer import AttentionLayer
from mha.models.audit.layers.finding import first_names
from mha.models.audit.layers.partners import NamedReference, Partner, notes_on_guesses, partner_of, partners_of
from mha.models.audit.layers.reference import Reference, natural_key, open_reference, pair_paths
from mha.models.audit.layers.user_layers import parts_of_like
from mha.models.audit.watching import Watch
from mha.parity.rule.layouts import MEANS, STEPS
from mha.weights import models
from mha.weights.checkpoints import LAYER_OPTIONS
from mha.weights.projections import PART_KEYS

INPUTS = ("queries", "keys", "values")
CALLED = ("causal", "cross")  # how a layer is called
OPTIONS = ("num_heads", *CALLED, *LAYER_OPTIONS, *PART_KEYS, "like")
OF_TOKENS = ("offset", *PLACES, *PACKED)


def audit_taps(taps: Mapping[str, Mapping[str, Any]], like: Any = None, layers: Any = None) -> AuditReport:
    """Judge each attention layer of a model by what entered and left it: is one wrong, which is the first, and why?

    Args:
        taps: for each layer, by its name, a mapping of arrays of any framework: "queries" (B, Q, any), "keys" and
            "values" (B, K, any), as they are before the projections, "output" (B, Q, D) as it is after the last one;
            any steps of `trace`, and any arguments of a call, such as causal=True, mask, valid_lens, positions, rows.
            Keys that are left out are the queries, values that are left out the keys. With a cache, keys and values are
            those of all tokens so far.
        like: where the weights and the configuration are that the model should have: a directory or file of a
            checkpoint, a state dict, or a model. None = layers= has them.
        layers: what is known of layers, by patterns of their names: an `mha.MultiHeadAttention`; or a dict of its
            options, and of causal= and cross=, where the configuration does not say them, and of the names of the
            projections in like, W_q="to_q" and so on, as for `audit`; None leaves a layer out.

    Returns:
        An `AuditReport`, as `audit` does. Where the model's configuration or layers= says how a layer is called, the
        queries are the last of the tokens, unless the tap has positions or an offset; what a tap has counts more.

    Raises:
        TypeError, ValueError: if an argument is not as above.
    """
    if not isinstance(taps, Mapping) or not taps:
        raise TypeError(f"taps is {checks.brief(taps)}, expected a mapping of layers, such as {{'layers.0': {{...}}}}")
    split_taps = {str(path): _split_tap(path, one) for path, one in taps.items()}
    user_layers = _match_layers(layers, split_taps)
    no_like = contextlib.nullcontext(Reference({}, None, "the layers of layers="))
    with no_like if like is None else open_reference(like, None, None, None) as reference:
        watching = _ArraysWatch(reference)
        paths = [path for path in split_taps if user_layers.get(path, "") is not None]
        every = reference.layers()
        partners = pair_paths(paths, every)
        for path in paths:  # whose name may be longer at both ends: model.layers.0.attn
            inside = [layer for layer in every if f".{path}." in f".{layer[1]}"]
            if path not in partners and len(inside) == 1:
                partners[path] = inside[0]
        described = {path: one for path, one in user_layers.items() if isinstance(one, Mapping) and parts_of_like(one)}
        where = partners_of(described, reference, partners)
        for number, path in enumerate(sorted(split_taps, key=natural_key), 1):
            partner = partner_of(path, where, partners, reference)
            layer = _describe(path, user_layers.get(path, ""), reference, partner)
            watching.layers.append(layer)
            if layer.reason:
                watching.rows[path] = LayerRow(path, layer.kind, "not known", layer.reason)
                continue
            inputs, outputs, steps, given = split_taps[path]
            captured = CapturedCall(layer, ModelCall(number, {}, History()), inputs, outputs, dict(given), steps)
            watching.take(captured)
        report = AuditReport("arrays", truth=reference.origin, weighed=True)
        report.layers = tuple(watching.rows[one.path] for one in watching.layers if one.path in watching.rows)
        report.kept = tuple(watching.kept.values())
        report.notes = tuple(notes_on_guesses(described, where, [], reference))
        if left := len(every) - len(set(partners.values())):
            report.notes += (f"nothing was given of {left} of the {len(every)} layers of {reference.origin}",)
    return report


class _ArraysWatch(Watch):
    """A watch without a model: it judges calls whose arrays the caller gives."""

    def __init__(self, reference: Reference) -> None:
        self.reference, self.mend = reference, frozenset()
        self.layers, self.rows, self.kept, self.notes, self.library = [], {}, {}, {}, False

    def take(self, captured: CapturedCall) -> None:
        """Judge one call by its own arguments and by what is known of its layer."""
        layer = captured.layer
        attends = layer.attends
        captured.layer = dataclasses.replace(layer, attends=None)
        Q, K = captured.inputs["queries"].shape[1], captured.inputs["keys"].shape[1]
        if attends is not None and not attends.cross:
            captured.given = {"causal": attends.causal} | captured.given
            if K > Q and not any(name in captured.given for name in OF_TOKENS):
                captured.given["offset"] = K - Q
            if attends.bias and "score_bias" not in captured.given:
                try:
                    config, _ = layer.weights_for(K)
                    captured.given["score_bias"] = score_bias(attends, config, self.reference, layer.path, Q, K)
                except (UnknownError, TypeError, ValueError) as error:
                    self.fail(layer.path, str(error))
                    return
        self.judge(captured)


def _split_tap(path: Any, one: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the inputs, the output, the steps and the arguments of a call, as NumPy arrays."""
    if not isinstance(one, Mapping):
        raise TypeError(f"taps has {checks.brief(one)} for {path!r}, expected a mapping of arrays by name")
    allowed = (*INPUTS, "output", *STEPS, MEANS, *ROWS, "rows")
    for name in one:
        if name not in allowed:
            raise ValueError(f"taps has {name!r} for {path!r}, expected some of {', '.join(allowed)}")
    for name in ("queries", "output"):
        if name not in one:
            raise ValueError(f"taps has no {name} for {path!r}; it has {', '.join(one) or 'nothing'}")
    found = {name: X for name, X in one.items() if X is not None}
    for name, X in found.items():
        if not isinstance(X, (bool, int, list, tuple)):
            if dispatch.backend_of(X) is None:
                raise TypeError(
                    f"{name} of {path!r} is {checks.brief(X)}, expected an array of {', '.join(dispatch.FRAMEWORKS)}"
                )
            found[name] = np.asarray(arrays.to_numpy(X))
    found = {"keys": found["queries"]} | found
    found = {"values": found["keys"]} | found
    for name in (*INPUTS, "output"):
        if np.ndim(found[name]) != 3:
            shape = np.shape(found[name])
            raise ValueError(f"{name} of {path!r} has shape {shape}, expected (batch, tokens, features)")
    inputs = {name: found.pop(name) for name in INPUTS}
    output = {"W_o": found.pop("output")}
    steps = {name: X for name, X in found.items() if name not in ROWS and name != "rows"}
    return inputs, output, steps, {name: X for name, X in found.items() if name not in steps}


def _match_layers(layers: Any, split_taps: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each given layer the value of layers= whose pattern fits it."""
    if not isinstance(layers, Mapping | None):
        raise TypeError(f"layers is {checks.brief(layers)}, expected a dict by names of taps, such as 'layers.*'")
    found: dict[str, Any] = {}
    for pattern, user_layer in (layers or {}).items():
        paths = [path for path in split_taps if fnmatch.fnmatchcase(path, str(pattern))]
        if not paths:
            raise ValueError(f"layers has {pattern!r}, which fits no tap; there are {first_names(split_taps)}")
        if not isinstance(user_layer, Mapping | MultiHeadAttention | None):
            came = checks.brief(user_layer)
            raise TypeError(f"layers has {came} for {pattern!r}, expected an mha layer, a dict of options, or None")
        for name in user_layer if isinstance(user_layer, Mapping) else ():
            if name not in OPTIONS:
                raise ValueError(f"layers has {name!r} for {pattern!r}, expected some of {', '.join(OPTIONS)}")
        found |= dict.fromkeys(paths, user_layer)
    return found


def _describe(path: str, user_layer: Any, reference: Reference, partner: Partner | None) -> AttentionLayer:
    """Describe a layer by its value in layers=, "" = none, and its layer in the reference."""
    if user_layer is None:
        return AttentionLayer(path, "left out", reason="left out, as layers= says", left_out=True)
    if isinstance(user_layer, MultiHeadAttention):
        config, weights = user_layer.config, user_layer.weights
        return AttentionLayer(path, "mha", native=True, take=lambda tokens: (config, weights))
    if partner is None:
        return AttentionLayer(path, "arrays", reason=f"{reference.origin} has no layer for it")
    options = {name: X for name, X in (user_layer or {}).items() if name not in (*PART_KEYS, "like")}
    reference, layer = partner
    if isinstance(reference, NamedReference):
        options.setdefault("rotary", None)
    called = {name: options.pop(name) for name in CALLED if name in options}
    try:
        causal, cross = (checks.flag(f"{name} of layers", called.get(name, False)) for name in CALLED)
        attends = models.CallConvention(causal, "", "", cross=cross) if called else reference.attends(layer)
        reference.layer(layer, options, 1)
    except (TypeError, ValueError, OverflowError) as error:
        return AttentionLayer(path, layer[0], reason=str(error))
    take = functools.partial(reference.layer, layer, options)
    return AttentionLayer(path, layer[0], native=True, take=take, attends=attends)

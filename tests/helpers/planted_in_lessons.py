"""A known mistake in a backend's own lesson: the framework computes, with functions of the chapters replaced.

A mistake is a function from one plan of `mha.parity.diagnosis.pipeline` to another. What it changes of weights, inputs,
options and masks is given to the framework's layer. What it does otherwise takes the place of the lesson's function
for it, which has the same name in every lesson, in all chapters that call it, while the call runs.
"""

import dataclasses
import functools
import itertools

import numpy as np
import seams

from mha import arrays
from mha.core import dispatch
from mha.core.call import record_step
from mha.core.options.positions import Rotary
from mha.layer import restore
from mha.parity.diagnosis.pipeline import parts, pieces
from mha.parity.diagnosis.pipeline.plan import OF_HIDING

TURNING = {
    "rotary_offsets",
    "norms",
    "root",
    "rotate",
    "table",
    "magnified",
    "tempered",
    "tempered_places",
    "factors",
}

# Of a plan's fields, those that can be planted.
PLANTABLE = TURNING | {
    "weights", "queries", "keys", "values", "score_bias", "gates", "scale", "softcap", "frequencies", "base",
    "interleaved", "angles", "heads", "groups", "hiding", "lengths", "mask", "window", "chunk", "order_offsets",
    "window_offsets", "chunk_offsets", "segments", "key_segments", "positions", "key_positions", "offsets",
    "temperature", "split", "merge", "share", "share_values", "cached", "bend", "cap", "softmax", "axis", "opened",
    "closed", "after", "blanked", "into_product",
}  # fmt: skip


def changed(right, plan):
    """The fields of a plan that a mistake has changed; but for `rows`, which says only what is computed."""
    names = [field.name for field in dataclasses.fields(plan) if field.name != "rows"]
    found = {name for name in names if getattr(plan, name) is not getattr(right, name)}
    if unknown := found - PLANTABLE:
        raise NotImplementedError(f"no lesson has a place for {', '.join(sorted(unknown))}")
    return found


def steps(backend, layer, inputs, arguments, right, plan=None):
    """Every step of a call, by a backend's lesson with the mistake that makes `plan` of `right`, as NumPy arrays.

    layer, inputs, arguments: on NumPy, without the mistake; plan: None = none is made, and yet all is replaced, by what
    does the same.
    """
    names = changed(right, plan) if plan is not None else PLANTABLE - {"blanked"}
    planting = Planting(backend, right if plan is None else plan, names)
    with np.errstate(all="ignore"):
        return planting.steps(layer, inputs, arguments)


class Planting:
    """A plan with a mistake, on its way into a backend's lesson; names: the fields of it that are planted."""

    def __init__(self, backend, plan, names):
        self.backend, self.plan, self.names = backend, plan, names
        self.lesson, self.module = dispatch.lesson(backend), dispatch.load(backend)
        self.right = {name: getattr(self.lesson, name) for name in ("visible_softmax", "zero_unused")}
        self.bent = {}
        self.shares = itertools.cycle((plan.share, plan.share_values))  # keys are shared before values

    def steps(self, layer, inputs, arguments):
        """The same as the function above."""
        attention = restore(self.config(layer.config), self.weights(layer.weights), self.backend, layer.seed, True)
        with self.planted():
            found = attention.trace(*self.inputs(inputs), **self.arguments(arguments))
        found = {name: arrays.to_numpy(X) for name, X in found.items()}
        for name, X in self.bent.items():
            found[name] = X
        if self.plan.closed is not None:
            gates = self.numpy(attention.layer.W_g(self.own(self.plan.queries)))  # (B, Q, D)
            found["output"] = found["output"] * self.plan.closed(gates).astype(layer.config.dtype)
        if "into_product" in self.names:
            with self.module.context(layer.config.dtype):
                rough = self.plan.into_product(found["merged"])
                found["output"] = self.numpy(attention.layer.W_o(self.own(rough)))
        return found

    # What the layer and its call are given

    def config(self, config):
        """The options of the layer with the mistake."""
        plan, H = self.plan, config.num_heads
        given = {"scale": plan.scale, "softcap": plan.softcap, "temperature": plan.temperature}
        given = {name: X for name, X in given.items() if name in self.names}
        if "norms" in self.names:
            given["value_norm"] = plan.norms.get("v")
            if config.qk_norm and (own := plan.norms.get("q")):
                given["qk_norm"] = dataclasses.replace(own, over=config.qk_norm.over)  # with as many weights
        if self.names & {"frequencies", "interleaved"} and plan.frequencies is not None:
            frequencies = tuple(plan.frequencies.tolist())
            given["rotary"] = Rotary(interleaved=plan.interleaved, frequencies=frequencies, magnitude=plan.magnitude)
        if self.names & {"heads", "groups"}:
            given |= {"num_heads": plan.heads, "num_key_value_heads": plan.groups}
            given |= {"key_dim": config.key_dim * H // plan.heads, "value_dim": config.value_dim * H // plan.heads}
        if self.names & {"bend", "cap"}:
            given["softcap"] = None
        if self.names & {*OF_HIDING}:
            given["window"] = given["chunk"] = None
        if "sinks" not in plan.weights:
            given["sinks"] = False
        return dataclasses.replace(config, **given)

    def weights(self, weights):
        """The weights with the mistake; a bias that it drops is zeros, and sinks that it drops are not there."""
        kept = {name: X for name, X in weights.items() if name != "sinks" or name in self.plan.weights}
        kept = {name: X for name, X in kept.items() if name != "v_norm.scale" or "v" in self.plan.norms}
        found = {name: self.plan.weights.get(name, np.zeros_like(X)) for name, X in kept.items()}
        found = {name: self.rough(X) if name.endswith("kernel") else X for name, X in found.items()}
        return {name: np.ascontiguousarray(X) for name, X in found.items()}  # no framework takes a reversed view

    def inputs(self, inputs):
        """Queries, keys and values with the mistake."""
        if self.names & {"queries", "keys", "values"}:
            inputs = self.plan.queries, self.plan.keys, self.plan.values
        return [arrays.tensor(self.rough(X), backend=self.backend) for X in inputs]

    def arguments(self, arguments):
        """The other arguments with the mistake."""
        given, plan = dict(arguments), self.plan
        if self.names & {*OF_HIDING}:
            given |= {"valid_lens": None, "causal": False, "mask": plan.visible()}
            given |= {"segments": None, "key_segments": None}
            if plan.frequencies is None:  # else the rotation needs them
                given |= {"positions": None, "key_positions": None}
            elif "positions" in self.names:
                places = {name: getattr(plan, name) for name in ("positions", "key_positions")}  # (B or 1, T), or None
                given |= {name: X if X is None or len(X) > 1 else X[0] for name, X in places.items()}
        if self.names & {"score_bias", "hiding"} and plan.score_bias is not None:
            given["score_bias"] = plan.score_bias if "bias" in plan.hiding else pieces.finite(plan.score_bias)
        if "gates" in self.names and plan.gates is not None:
            given["head_gates"] = np.ascontiguousarray(plan.gates[:, :, 0, 0])
        if self.names & {"bend", "cap"}:
            given["score_bias"] = None
        floats = {name: given[name] for name in ("mask", "score_bias", "head_gates") if given.get(name) is not None}
        return given | {name: arrays.tensor(X, backend=self.backend) for name, X in floats.items()}

    def rough(self, X):
        """One side of a matrix product."""
        return self.plan.into_product(X) if "into_product" in self.names else X

    # What takes the place of the lesson's own functions

    def planted(self):
        """The lesson, with its functions replaced as long as this lasts."""
        functions = {
            "transpose_qkv": (self.split, {"split"}),
            "transpose_output": (self.merge, {"merge"}),
            "repeat_groups": (self.share, {"share", "share_values", "cached"}),
            "visible_softmax": (self.softmax, {"bend", "cap", "softmax", "axis", "after"}),
            "zero_unused": (self.blank, {"softmax", "axis", "after", "blanked", "into_product"}),
            "AttentionPooling.drop": (self.dropped(), {"into_product"}),
            "MultiHeadAttention.transform_heads": (self.turn(), TURNING),
            "MultiHeadAttention.gate_by": (self.gate_by(), {"opened"}),
        }
        used = {name: function for name, (function, fields) in functions.items() if self.names & fields}
        return seams.replaced(self.backend, {name: lambda right, wrong=wrong: wrong for name, wrong in used.items()})

    def numpy(self, X):
        """An array of the framework as NumPy's."""
        return np.array(self.module.to_numpy(X))

    def own(self, X):
        """An array of NumPy as the framework's."""
        return self.module.tensor(np.ascontiguousarray(X))

    def of_heads(self, X, number, function):
        """What a function makes of heads (B, H, T, d) in NumPy, for an array (B*H, T, d) of the framework."""
        X = self.numpy(X)
        made = function(X.reshape(-1, number, *X.shape[1:]))  # (B, H, T, d)
        return self.own(made.reshape(-1, *made.shape[2:]))  # (B*H, T, d)

    def split(self, X, num_heads):
        """The same as `transpose_qkv`: (B, T, H*d) -> (B*H, T, d)."""
        heads = self.plan.split(self.numpy(X), num_heads)  # (B, H, T, d)
        return self.own(heads.reshape(-1, *heads.shape[2:]))  # (B*H, T, d)

    def merge(self, X, num_heads):
        """The same as `transpose_output`: (B*H, T, d) -> (B, T, H*d)."""
        X = self.numpy(X)
        return self.own(self.plan.merge(X.reshape(-1, num_heads, *X.shape[1:])))  # (B, T, H*d)

    def share(self, X, times):
        """The same as `repeat_groups`: (B*G, T, d) -> (B*H, T, d)."""
        share = next(self.shares)
        return self.of_heads(X, self.plan.groups, lambda heads: share(self.plan.cached(heads), times))  # (B*H, T, d)

    def softmax(self, scores, visible, sinks=None):
        """The same as `visible_softmax`, of scores (B*H, Q, K): weights (B*H, Q, K)."""
        plan, (BH, Q, K) = self.plan, scores.shape
        flat = self.numpy(scores)
        found = flat.reshape(-1, plan.heads, Q, K)  # (B, H, Q, K)
        if self.names & {"bend", "cap"}:
            bent = plan.bend(plan, found)
            found = [found, *bent.values()][-1]
            self.bent = {name: X.reshape(BH, Q, K).astype(flat.dtype) for name, X in bent.items()}
        if self.names & {"softmax", "axis"}:
            weights = plan.softmax(plan, found, plan.visible())
        else:
            scores = self.own(found.reshape(BH, Q, K).astype(flat.dtype))  # (B*H, Q, K)
            weights = self.numpy(self.right["visible_softmax"](scores, visible, sinks)).reshape(
                found.shape
            )  # (B, H, Q, K)
        return self.own(plan.after(weights).reshape(BH, Q, K).astype(flat.dtype))  # (B*H, Q, K)

    def blank(self, queries, keys, values, visible):
        """The same as `zero_unused`; but where hidden keys have weights, their values are needed."""
        plan = self.plan
        if plan.blanked and plan.softmax is pieces.softmax and plan.after is pieces.as_it_is and plan.axis == 3:
            queries, keys, values = self.right["zero_unused"](queries, keys, values, visible)
        if "into_product" in self.names:
            queries, keys, values = (self.own(self.rough(self.numpy(X))) for X in (queries, keys, values))
        return queries, keys, values

    def dropped(self):
        """The pooling's method `drop`, which has weights last before they are multiplied."""
        return lambda pooling, weights, training: self.own(self.rough(self.numpy(weights)))

    def gate_by(self):
        """The layer's method `gate_by`."""

        def gated(layer, pooled, gates):
            right, H = self.numpy(pooled), layer.config.num_heads
            opened = self.plan.opened(self.numpy(gates).reshape(-1, H, *gates.shape[1:]))  # (B, H, Q, dv or 1)
            made = parts.apply_gates(right, opened.reshape(-1, *opened.shape[2:]))  # (B*H, Q, dv)
            return self.own(made)

        return gated

    def turn(self):
        """The layer's method `transform_heads`."""
        return lambda layer, q, k, call: self.turned(layer, {"q": q, "k": k}, call)

    def turned(self, layer, heads, call):
        """Heads of queries and keys, which are given by q and k, normed and rotated."""
        plan, config, lesson = self.plan, layer.config, self.lesson
        numbers = {"q": config.num_heads, "k": config.num_key_value_heads}
        given = {"q": (call.positions, call.offset), "k": (call.key_positions, 0)}
        after = any(own.after for own in plan.norms.values())
        for change in ("rotate", "norm") if after else ("norm", "rotate"):
            for role, X in heads.items():
                if change == "norm" and (own := plan.norms.get(role)):
                    if "root" in self.names or own.over != config.qk_norm.over:
                        X = self.of_heads(X, numbers[role], functools.partial(pieces.norm, plan, role))  # (B*H, T, d)
                    else:
                        X = getattr(layer, f"{role}_norm")(X)  # (B*H, T, d)
                elif change == "rotate" and config.rotary:
                    places = lesson.places(X, *given[role])  # (B or 1, T)
                    if plan.rotary_offsets is not None:
                        right = self.numpy(places)
                        places = self.own(plan.rotary_offsets(plan, role, right).astype(right.dtype))
                    if self.names & {"rotate", "table", "magnified"}:
                        own = plan if role in plan.magnified else dataclasses.replace(plan, magnitude=1.0)
                        rotate = functools.partial(plan.rotate, own, role, places=self.numpy(places))
                        X = self.of_heads(X, numbers[role], rotate)  # (B*H, T, d)
                    else:
                        X = lesson.rotate(X, places, config.rotary, numbers[role])  # (B*H, T, d)
                else:
                    continue
                heads = heads | {role: record_step(f"{change}_{role}", X)}
        for role in plan.tempered if config.temperature else ():
            places = lesson.places(heads[role], *given[role])  # (B or 1, T)
            if plan.tempered_places is not None:
                right = self.numpy(places)
                places = self.own(plan.tempered_places(plan, right).astype(right.dtype))
            if "factors" in self.names:
                X = self.of_heads(heads[role], numbers[role], functools.partial(parts.apply_temperature, plan, role))
            else:
                X = lesson.temper(heads[role], places, config.temperature, numbers[role])
            heads = heads | {role: X}
        return record_step("tempered_q", heads["q"]) if config.temperature else heads["q"], heads["k"]

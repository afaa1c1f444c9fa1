"""The tasks of the levels: each calls a submission's functions with the arrays of a case, and returns arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .frameworks import FRAMEWORKS, Framework
from .layers import EVALUATION, Layer
from .signatures import call, construct, parameters, takes
from .submission import FailureError

Given = dict[str, np.ndarray]
Found = dict[str, np.ndarray]
INPUTS = ("queries", "keys", "values")


class Tasks:
    """The tasks of a submission.

    names: its definitions by name; aliases: its NAMES; framework: its framework.
    """

    def __init__(self, names: dict[str, Any], aliases: dict[str, str], framework: str) -> None:
        self.names, self.aliases = names, aliases
        self.framework: Framework = FRAMEWORKS[framework]

    def first_of(self, *names: str) -> Any:
        """Return the first of these names that the submission defines."""
        for name in names:
            found = self.names.get(self.aliases.get(name, name))
            if found is not None and callable(found):
                return found
        raise FailureError("missing", f"{' or '.join(names)} is missing")

    def arrays(self, given: Given, *names: str) -> list[Any]:
        """Make arrays of the framework; None stays None."""
        return [self.framework.array(given[name]) if name in given else None for name in names]

    def run(self, kind: str, given: Given, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
        """Run a task; return arrays, and facts for the parent process."""
        task: Callable[..., tuple[Found, dict[str, Any]]] = getattr(self, f"run_{kind}")
        return task(given, options)

    def run_softmax(self, given: Given, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
        """Level 1."""
        function = self.first_of("masked_softmax")
        return {"weights": self.framework.numpy(function(*self.arrays(given, "X", "valid_lens")))}, {}

    def run_pooling(self, given: Given, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
        """Level 2."""
        attend = self.first_of("DotProductAttention", "dot_product_attention")
        inputs = self.arrays(given, "queries", "keys", "values", "valid_lens")
        # NumPy has no mode of training, and a function none that can be known.
        dropout = 0.0 if self.framework.name == "numpy" else options["dropout"]
        if isinstance(attend, type):
            layer = construct(attend, {"dropout": dropout}, {})
            self.framework.prepare(layer, lambda: None)
            bound = next((one for name in ("forward", "call") if (one := getattr(layer, name, None))), layer)
            attend, signature = layer, bound if bound is not layer else type(layer).__call__.__get__(layer)
            if type(layer).__module__ == "submission" and hasattr(layer, "apply") and hasattr(layer, "init"):

                def attend(*given: Any, **named: Any) -> Any:  # Flax
                    return layer.apply({}, *given, **named)
        else:
            signature = attend
        inputs = inputs if inputs[3] is not None or needs(signature, 4) else inputs[:3]
        found = call(attend, inputs, EVALUATION, signature)
        return self.results(found)

    def results(self, found: Any) -> tuple[Found, dict[str, Any]]:
        """Give names to an output, or to a pair of an output and weights."""
        pair = isinstance(found, (tuple, list)) and len(found) == 2
        output, weights = found if pair else (found, None)
        arrays = {"output": self.framework.numpy(output)}
        if weights is not None:
            arrays["weights"] = self.framework.numpy(weights)
        return arrays, {"pair": pair}

    def run_split(self, given: Given, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
        """Level 3, of `transpose_qkv` and `transpose_output`."""
        X, H = self.framework.array(given["X"]), options["num_heads"]
        name = options["name"]
        function = self.names.get(self.aliases.get(name, name))
        if function is None:
            cls = self.first_of("MultiHeadAttention")
            if not callable(getattr(cls, name, None)):
                raise FailureError("missing", f"{name} is missing")
            layer = self.layer(options, {})
            method = getattr(layer.made, name)
            return {"heads": self.framework.numpy(call(method, [X], {"num_heads": H}))}, {}
        return {"heads": self.framework.numpy(function(X, H))}, {}

    def layer(self, options: dict[str, Any], weights: Given) -> Layer:
        """Make the submission's MultiHeadAttention."""
        cls = self.first_of("MultiHeadAttention", "multi_head_attention")
        known = {name: X for name, X in options.items() if name in ("num_hiddens", "num_heads", "dropout", "bias")}
        if self.framework.name == "numpy":
            known["dropout"] = 0.0
        for name in ("num_key_value_heads", "rotary"):
            if name in options:
                if not takes(cls, name):
                    raise FailureError("missing", f"MultiHeadAttention(...) takes no {name}")
                known[name] = options[name]
        aliases = {name: path for name, path in self.aliases.items() if isinstance(path, str)}
        return Layer(cls, aliases, self.framework.name, known, weights)

    def ready(self, given: Given, options: dict[str, Any]) -> tuple[Layer, list[Any], dict[str, Any]]:
        """Make the layer with its weights, its inputs, and the rest of the call."""
        weights = {name: X for name, X in given.items() if name.startswith("W_")}
        layer = self.layer(options, weights)
        inputs = self.arrays(given, *INPUTS)
        extra: dict[str, Any] = {}
        for name in ("valid_lens", "mask"):
            if name in given:
                extra[name] = self.framework.array(given[name])
        if options.get("causal"):
            extra["causal"] = True
        # A call with a cache is causal, whether it takes `causal` or not.
        portions = "portions" in options
        for name in (*extra, "cache") if portions else extra:
            if not layer.takes(name) and not (portions and name == "causal"):
                raise FailureError("missing", f"a call of MultiHeadAttention takes no {name}")
        layer.prepare(inputs, extra)
        return layer, inputs, extra

    def run_layer(self, given: Given, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
        """Levels 4, 5, 6 and 8."""
        layer, inputs, extra = self.ready(given, options)
        arrays, facts = self.results(layer(inputs, extra))
        return arrays, facts | layer.facts

    def run_gradients(self, given: Given, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
        """Level 7."""
        layer, inputs, extra = self.ready(given, options)
        cotangent = self.framework.array(given["cotangent"])

        def loss(result: Any) -> Any:
            output = result[0] if isinstance(result, (tuple, list)) else result
            total = self.framework.xp.reduce_sum if self.framework.name == "tensorflow" else lambda X: X.sum()
            return total(output * cotangent)

        arrays, facts = self.results(layer(inputs, extra))
        named = dict(zip(INPUTS, inputs, strict=True))
        by_hand = self.framework.name == "numpy"
        found = self.by_hand(layer, cotangent) if by_hand else layer.differentiate(named, extra, loss)
        if found is None:
            raise FailureError("missing", "gradients need the class MultiHeadAttention")
        for name, X in found.items():
            if X is not None:
                arrays[f"gradient.{name}"] = X
        return arrays, facts | layer.facts | {"none": [name for name, X in found.items() if X is None]}

    def by_hand(self, layer: Layer, cotangent: Any) -> dict[str, np.ndarray | None]:
        """The gradients by name that `backward(cotangent)` of a layer in NumPy returns."""
        if not callable(getattr(layer.made, "backward", None)):
            raise FailureError("missing", "MultiHeadAttention.backward(cotangent) is missing")
        given = layer.made.backward(cotangent)
        if not isinstance(given, dict):
            raise FailureError(
                "wrong", f"backward returns a {type(given).__name__}, expected a dict of gradients by name"
            )
        found: dict[str, np.ndarray | None] = {}
        for name in (*INPUTS, *layer.slots):
            short = f"b_{name[2]}" if name.endswith(".bias") else name.partition(".")[0]
            words = (name, short, f"d{short}", f"d_{short}", self.aliases.get(short, short))
            X = next((given[word] for word in words if word in given), None)
            found[name] = None if X is None else self.framework.numpy(X)
        return found

    def run_decode(self, given: Given, options: dict[str, Any]) -> tuple[Found, dict[str, Any]]:
        """Level 9: a text in portions, each with the cache that the portion before returned."""
        layer, inputs, extra = self.ready(given, options)
        begun = getattr(layer.made, "cache", None)
        size = inputs[0].shape[1]
        cache = begun(inputs[0].shape[0], size) if callable(begun) and len(parameters(begun)) == 2 else {}
        arrays, start = {}, 0
        for at, length in enumerate(options["portions"]):
            portion = {name: given[name][:, start : start + length] for name in INPUTS}
            tokens = self.arrays(portion, *INPUTS)
            found = layer(tokens, extra | {"cache": cache})
            if not isinstance(found, (tuple, list)) or len(found) < 2:
                raise FailureError("wrong", "a call with a cache returns no pair (output, cache)")
            output, cache = found[0], found[-1]
            arrays[f"output.{at}"] = self.framework.numpy(output)
            start += length
        return arrays, layer.facts


def needs(function: Any, count: int) -> bool:
    """Whether a function requires so many arguments by position."""
    own = [one for one in parameters(function) if one.kind in (0, 1)]
    return len(own) >= count and own[count - 1].default is own[count - 1].empty

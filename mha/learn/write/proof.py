"""The proof of a file: a small case with NumPy's numbers in float64, and a test that needs the framework alone."""

import dataclasses
import json
import operator
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from mha.core.call import OF_PAIRS
from mha.core.options.config import Config
from mha.core.options.names import FloatName
from mha.layer import MultiHeadAttention
from mha.learn.write.lesson import facts
from mha.learn.write.lesson.named import renaming
from mha.learn.write.recipe import BY_HEADS, Recipe
from mha.parity.rule.rules import bound, largest
from mha.weights import schemes

FOLDER = Path(__file__).with_name("proofs")
SEED = 20
BY = "queries", "keys", "values", "W_q.kernel"
GRADIENT = "gradient/"
PADDED = 1  # the number of the call whose padding the test fills with what is no number
B, Q, K = 2, 5, 7
FEATURES = 5  # of most results, that are kept
AXES = {"output": 1, "weights": 2}  # along which the results of steps stand side by side
TOKENS = 5  # that come in steps
DTYPES: tuple[FloatName, ...] = ("float32", "float64")


def test(recipe: Recipe, module: str) -> str:
    """The text of the test of a module that a recipe made."""
    parts = {"CALL": "steps" if "cache" in recipe.takes else "call", "FRAMEWORK": recipe.kind or recipe.backend}
    text = (FOLDER / "test.txt").read_text().replace("MODULE", module)
    for place, part in parts.items():
        text = text.replace(f"# {place}\n", (FOLDER / f"{part}.txt").read_text())
    return re.sub(r"# SET\n(.*?)# LOAD\n(.*?)# END\n", rf"\{2 if renaming.loads(recipe) else 1}", text, flags=re.DOTALL)


def small(config: Config, names: str | None = None) -> Config:
    """A small configuration with the same options: three heads of queries for each of keys, or three in all.

    names: the scheme of its weights in files; some schemes have no biases, or inputs of one width only.
    """
    H, G = (6, 2) if config.num_key_value_heads < config.num_heads else (3, 3)
    pairs = 0 if config.rotary is None else 2  # of a single one nobody sees what turns with what, nor at which base
    d = 2 * pairs + 2 * (config.rotary is None or config.rotary.dim != config.key_dim)
    D = H * d if facts.by_width(config) else 10
    sizes: dict[str, Any] = {"num_hiddens": D, "num_heads": H, "num_key_value_heads": G, "key_dim": d}
    sizes["value_dim"] = d if config.value_dim == config.key_dim else 5
    for name, size in {"query_size": 7, "key_size": 5, "value_size": 11}.items():
        sizes[name] = D if getattr(config, name) == config.num_hiddens else size
    if renaming.packs(names):
        sizes["key_size"] = sizes["value_size"] = sizes["query_size"]
    if config.window is not None:
        sizes["window"] = tuple(None if side is None else n for side, n in zip(config.window, (2, 1), strict=True))
    if config.chunk is not None:
        sizes["chunk"] = 3
    if config.rotary is not None:
        given = config.rotary.frequencies
        changes: dict[str, Any] = {"dim": 2 * pairs, "frequencies": None if given is None else given[:pairs]}
        sizes["rotary"] = dataclasses.replace(config.rotary, **changes)
    if config.temperature is not None:
        sizes["temperature"] = dataclasses.replace(config.temperature, floor=2)
    return dataclasses.replace(config, dropout=0.0, bias=renaming.may_have_biases(names), dtype="float32", **sizes)


def cases(recipe: Recipe) -> bytes:
    """The case file: weights, inputs, calls, and NumPy's results in float64 with their bounds."""
    made, random = small(recipe.config, recipe.names), np.random.default_rng(SEED)
    layers = {dtype: MultiHeadAttention(**vars(made) | {"dtype": dtype}, backend="numpy") for dtype in DTYPES}
    weights = {name: _draw(random, X.shape, 0.5) for name, X in layers["float64"].weights.items()}
    for name in weights:
        if name.endswith(".scale"):
            weights[name] = 1 + weights[name]
    for dtype, layer in layers.items():
        layer.weights = {name: X.astype(dtype) for name, X in weights.items()}
    inputs = {
        "queries": _draw(random, (B, Q, made.query_size)),
        "keys": _draw(random, (B, K, made.key_size)),
        "values": _draw(random, (B, K, made.value_size)),
        "cotangent": _draw(random, (B, Q, made.num_hiddens)),
    }
    own = renaming.own_names(made, recipe.backend, recipe.names)
    arrays = {f"inputs/{name}": X for name, X in inputs.items()}
    if renaming.loads(recipe):
        arranged = schemes.arrange(made, weights, recipe.names)  # type: ignore[arg-type]
        arrays |= {f"file/{name}": X for name, X in arranged.items()}
    else:
        arrays |= {f"weights/{name}": X for name, X in weights.items()}
    rounds: FloatName = "float32" if recipe.fused and recipe.backend in BY_HEADS else "float64"
    as_in: dict[FloatName, FloatName] = {"float32": "float32", "float64": rounds}
    calls: dict[str, Any] = {}
    every = list(_calls(random, made, recipe.takes))
    together = sum("cache" not in call for call in every) - 1  # the number of the call with all arguments
    for number, call in enumerate(every):
        if "cache" in call:
            call = _fitting(layers["float32"], [inputs[one] for one in BY[:3]], call)
        given = {one: X for one, X in call.items() if isinstance(X, np.ndarray)}
        arrays |= {f"call/{number}/{one}": X for one, X in given.items()}
        found = {dtype: _results(layer, dtype, inputs, call) for dtype, layer in layers.items()}
        gradients = {PADDED: BY, together: BY[:3]}.get(number, ())
        kept = [one for one in found["float64"] if not one.startswith(GRADIENT) or one[len(GRADIENT) :] in gradients]
        arrays |= {f"expected/{number}/{one}": found["float64"][one][_corner(one, number)] for one in kept}
        plain = {one: X for one, X in call.items() if one not in given}
        if "cache" in call:
            plain["steps"] = _steps(call)
        calls[f"{number}"] = {"plain": plain, "bounds": {one: _bounds(one, found, as_in) for one in kept}}
    meta = {"padded": f"{PADDED}", "names": own, "sizes": _constructor(made), "calls": calls}
    return save({name: np.ascontiguousarray(X) for name, X in arrays.items()}, {"case": json.dumps(meta)})


def _corner(one: str, number: int) -> tuple[Any, ...]:
    """The part of a result that the case file keeps: a few features are enough, since each comes from all heads."""
    if one == "weights" or (one == "output" and number == 0):
        return (...,)
    return (slice(FEATURES),) if one == "gradient/W_q.kernel" else (..., slice(FEATURES))


def _bounds(one: str, found: dict[FloatName, dict[str, Any]], as_in: dict[FloatName, FloatName]) -> dict[str, float]:
    """The bound of a result's difference from NumPy's, by dtype; as_in: the dtype whose rounding explains it."""
    gradient, double = one.startswith(GRADIENT), found["float64"]
    steep = max((largest(X) for name, X in double.items() if gradient and name.startswith(GRADIENT)), default=0.0)
    bounds = {
        dtype: bound(of, double[one], found[of][one], gradient=gradient, scale=steep) for dtype, of in as_in.items()
    }
    return {dtype: float(f"{size:.2e}") for dtype, size in bounds.items()}


def _draw(random: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Random numbers that float32 holds exactly, so that every dtype gets the same."""
    return (scale * random.standard_normal(shape)).astype("float32")


def _calls(random: Any, config: Config, asked: Collection[str]) -> Iterator[dict[str, Any]]:
    """Calls that use each argument: alone, and together."""
    H = config.num_heads
    whole: dict[str, Any] = {
        "valid_lens": np.array([K - 2, 0], "int32"),
        "mask": random.random((B, H, Q, K)) > 0.3,
        "score_bias": _draw(random, (1, H, Q, K)),
        "causal": True,
        "offset": 1,
        "head_gates": _draw(random, (B, H)),
        "positions": np.array([[*range(2, Q + 1), -1], [*range(1, Q + 1)]], "int32"),
        "key_positions": np.array([[*range(1, K), -1], [*range(K)]], "int32"),
        "segments": np.array([[0] * 3 + [1] * (Q - 3), [2] * Q], "int32"),
        "key_segments": np.array([[0] * 3 + [1] * (K - 3), [2] * (K - 1) + [-1]], "int32"),
        "return_weights": True,
    }
    names = [name for name in whole if name in asked]
    yield {}
    yield {"valid_lens": whole["valid_lens"]}
    yield {"valid_lens": random.integers(1, K + 1, (B, Q)).astype("int32")}
    yield {"mask": random.random((Q, K)) > 0.3}
    yield {"causal": True}
    for name in names:
        if name not in ("valid_lens", "mask", "causal", "key_segments"):
            beside = {"segments": "key_segments", "key_positions": "positions"}.get(name, name)
            order = {"causal": True} if name in ("offset", "positions", "key_positions") else {}
            yield {name: whole[name], beside: whole[beside]} | order
    left_out = {"offset"} | ({"positions"} if "segments" in asked and "key_positions" not in asked else set())
    yield {name: whole[name] for name in names if name not in left_out}
    if "cache" in asked:
        yield from _calls_in_steps(asked, whole, random)


def _calls_in_steps(asked: Any, whole: dict[str, Any], random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The arguments of calls with a cache, without and with others; whole: all arguments that calls may have."""
    lengths = {"valid_lens": np.array([3, 2], "int32")}
    yield {"cache": 0, "causal": True} | lengths
    mask = {"mask": random.random((2, 1, 1, TOKENS)) > 0.3}
    bias = {"score_bias": random.standard_normal((1, 1, 1, TOKENS)).astype("float32")}
    more = {name: whole[name] for name in ("head_gates", "return_weights") if name in asked}
    places = {"positions": np.array([[4], [7]], "int32")}
    yield {"cache": 0, "causal": True} | lengths | places | mask | (bias if "score_bias" in asked else {}) | more


def _steps(call: dict[str, Any]) -> list[tuple[int, int, list[str]]]:
    """The steps of a call with a cache: their first and last tokens, and the names of their arguments."""
    names = [name for name in call if name not in ("cache", "valid_lens", "positions", *OF_PAIRS)]
    own = [["valid_lens"], ["positions"], list(OF_PAIRS)]
    ends = 0, 3, 4, TOKENS
    return [(*ends[n : n + 2], [*names, *(name for name in own[n] if name in call)]) for n in range(3)]  # type: ignore


def _fitting(layer: MultiHeadAttention, inputs: list[Any], call: dict[str, Any]) -> dict[str, Any]:
    """The call with as few slots as it can have, and its mask and bias cut to so many."""
    for size in range(1, TOKENS):
        cut = {name: X[..., :size] if name in OF_PAIRS else X for name, X in call.items()} | {"cache": size}
        try:
            _results_in_steps(layer, inputs, cut)
        except ValueError:
            continue
        return cut
    return call | {"cache": TOKENS}


def _results_in_steps(layer: MultiHeadAttention, inputs: list[Any], call: dict[str, Any]) -> dict[str, Any]:
    """Output and weights of all steps together, as one call gives them; inputs: queries, keys and values of tokens."""
    cache = layer.cache(len(inputs[0]), call["cache"])
    found: dict[str, list[Any]] = {}
    for start, end, names in _steps(call):
        part = [X[:, start:end] for X in inputs]
        *arrays, cache = layer(*part, cache=cache, **{name: call[name] for name in names})
        for name, X in zip(AXES, arrays, strict=False):
            found.setdefault(name, []).append(X)
    return {name: np.concatenate(arrays, AXES[name]) for name, arrays in found.items()}


def _results(layer: MultiHeadAttention, dtype: str, inputs: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    """The output of a call, the weights if the call returns them, and the gradients by the inputs."""

    def cast(X: Any) -> Any:
        return X.astype(dtype) if isinstance(X, np.ndarray) and X.dtype == "float32" else X

    given = {name: cast(X) for name, X in call.items()}
    arrays = [cast(inputs[name]) for name in ("queries", "keys", "values")]
    if "cache" in given:
        return _results_in_steps(layer, arrays, given)
    output = layer(*arrays, **given)
    weights = {}
    if given.pop("return_weights", False):
        output, weights["weights"] = output
    gradients = layer.gradients(*arrays, cotangent=cast(inputs["cotangent"]), **given)
    return {"output": output} | weights | {f"{GRADIENT}{name}": gradients[name] for name in BY}


def _constructor(made: Config) -> dict[str, Any]:
    """The numbers for the constructor, under its own names."""
    found: dict[str, Any] = {"num_hiddens": made.num_hiddens, "num_heads": made.num_heads, "bias": made.bias}
    for expression, (name, _) in facts.constructor(made).items():
        found[name] = operator.attrgetter(expression.removeprefix("config."))(made)
    return found

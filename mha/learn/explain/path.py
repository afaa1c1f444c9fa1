"""Every step of a call, from inputs to output: its shape, its line in the backend's lesson, and its meaning."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.cache import Cache, check_owner, last_heads
from mha.core.call import Arguments, Call, check
from mha.core.options import checks
from mha.core.options.config import BENT, STEPS_OF_PAIRS, Config
from mha.core.options.names import BackendName, LanguageName
from mha.layer import MultiHeadAttention, restore
from mha.learn.explain.lines import Statement, place, stages
from mha.learn.languages import catalogue

INPUTS = "queries", "keys", "values"
Arrays = dict[str, Any]  # of a backend, by name
PLACE = tuple(field.name for field in dataclasses.fields(Statement))


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a call.

    Letters: B samples in the batch, Q queries, K keys and values, D num_hiddens, H heads, G heads of keys and values if
    these are shared, d width of a head of queries and keys, dv width of a head of values, S slots of a cache.

    Attributes:
        stage: the kind of step; all steps of a stage have the same meaning.
        name: of the array; `trace` uses the same names.
        letters, shape: its shape, as "(B*H, Q, d)" and in numbers.
        file, line, function, source: the statement of the backend that computes it, as "torch/heads.py", 24,
            "transpose_qkv" and the text; None for inputs.
        meaning: a sentence in the chosen language.
        value: the array, as a NumPy array.
    """

    stage: str
    name: str
    letters: str
    shape: tuple[int, ...]
    file: str | None
    line: int | None
    function: str | None
    source: str | None
    meaning: str
    value: np.ndarray = dataclasses.field(repr=False, compare=False)


def steps(
    backend: BackendName | None = None,
    *,
    batch: int = 2,
    queries: int = 4,
    keys: int = 6,
    num_hiddens: int = 100,
    num_heads: int = 5,
    valid_lens: Sequence[int] | None = None,
    causal: bool = False,
    language: LanguageName = "en",
    **options: Any,
) -> list[Step]:
    """Explain a call of a new layer of these sizes with random numbers.

    Args:
        backend: the backend whose lesson is shown; None = MHA_BACKEND, else "numpy".
        batch, queries, keys: numbers of samples, of queries, and of keys and values.
        num_hiddens, num_heads: sizes of the layer.
        valid_lens, causal: as for a call of the layer.
        language: language of the meanings: "en", "zh", "ja", "id" or "vi".
        **options: the layer's other options, such as num_key_value_heads and rotary.

    Returns:
        A `Step` for each step, in order.

    Raises:
        TypeError, ValueError: if an argument is not as above; the message says what was expected.
        ModuleNotFoundError: if the backend's framework is not installed; the message says how to install it.
    """
    sizes = {"batch": batch, "queries": queries, "keys": keys}
    B, Q, K = (checks.size(name, size) for name, size in sizes.items())
    attention = MultiHeadAttention(num_hiddens, num_heads, **{"seed": 0} | options, backend=backend)
    inputs = _inputs(attention, B, Q, K)
    return call(attention, **inputs, valid_lens=valid_lens, causal=causal, language=language)


def token(
    backend: BackendName | None = None,
    *,
    batch: int = 2,
    prompt: int = 6,
    tokens: int = 1,
    slots: int = 4,
    num_hiddens: int = 100,
    num_heads: int = 5,
    valid_lens: Sequence[int] | None = None,
    language: LanguageName = "en",
    **options: Any,
) -> list[Step]:
    """Explain one token of a decoder with a cache: the last of several, in causal order, with random numbers.

    Scores and weights are by slots; positions_before and positions_after say which position is in each slot, -1 = an
    empty one, slots where the token goes, lost_after the furthest position that was overwritten, -1 = none.

    Args:
        prompt, tokens: numbers of tokens of the prompt, and of those that follow one by one.
        slots: of the cache, a ring: a token sees itself and the slots - 1 before it, unless `window` says otherwise.
        valid_lens: how many tokens of each prompt are real; None = all.

    The other arguments, the result and the errors are those of `steps`.
    """
    sizes = {"batch": batch, "prompt": prompt, "tokens": tokens, "slots": slots}
    B, K, N, S = (checks.size(name, size) for name, size in sizes.items())
    given: dict[str, Any] = {"seed": 0, "window": (S - 1, None)} | options
    attention = MultiHeadAttention(num_hiddens, num_heads, **given, backend=backend)
    inputs, cache = _inputs(attention, B, K + N, K + N), attention.cache(B, S)

    def portion(first: int, end: int) -> dict[str, Any]:
        return {name: X[:, first:end] for name, X in inputs.items()}  # (B, end - first, any)

    _, cache = attention(**portion(0, K), valid_lens=valid_lens, causal=True, cache=cache)
    for t in range(K, K + N - 1):
        _, cache = attention(**portion(t, t + 1), causal=True, cache=cache)
    return call(attention, **portion(K + N - 1, K + N), causal=True, cache=cache, language=language)


def example(backend: BackendName | None = None, *, language: LanguageName = "en") -> list[Step]:
    """Explain a small call whose numbers can be followed by eye: 2 samples of length 2, 4 features, 2 heads.

    All kernels are the identity, and the values are 10, 11, 12, ... Queries and keys hold 0 and 1, and the scale is
    ln 3: the exponentials of the scores are 1 and 3, so that the attention weights are quarters. The valid lengths are
    2 and 1.

    `backend`, `language`, the result and the errors are those of `steps`.
    """
    attention = MultiHeadAttention(4, 2, scale=math.log(3), seed=0, backend=backend)
    attention.weights = {name: np.eye(4, dtype="float32") for name in attention.weights}
    # 2 queries and 2 keys, the same for both samples. The first two of the 4 features are for head 0.
    queries = np.array([[[1, 0, 0, 1], [0, 1, 1, 1]]] * 2, "float32")  # (2, 2, 4)
    keys = np.array([[[1, 0, 1, 0], [0, 1, 0, 1]]] * 2, "float32")  # (2, 2, 4)
    values = np.arange(10, 26, dtype="float32").reshape(2, 2, 4)  # (2, 2, 4)
    return call(attention, queries, keys, values, [2, 1], language=language)


def _inputs(attention: MultiHeadAttention, B: int, Q: int, K: int) -> Arrays:
    """Random queries, keys and values of a layer's widths, by name."""
    config, backend = attention.config, attention.backend
    sizes = zip(INPUTS, (Q, K, K), (config.query_size, config.key_size, config.value_size), strict=True)
    return {
        name: arrays.normal(0, 1, (B, T, width), config.dtype, seed=seed, backend=backend)
        for seed, (name, T, width) in enumerate(sizes)
    }


def call(
    attention: MultiHeadAttention,
    queries: Any,
    keys: Any = None,
    values: Any = None,
    valid_lens: Any = None,
    *,
    cache: Cache | None = None,
    language: LanguageName = "en",
    **call: Unpack[Arguments],
) -> list[Step]:
    """Explain one call of a layer, without dropout. The layer and the cache are not changed.

    Args:
        attention: the layer.
        queries, keys, values, valid_lens, cache, call: as for a call. With a cache, steps say what is in its slots
            before and after the call, and scores and weights are by slots.
        language: as for `steps`, whose result and errors these are.
    """
    meanings = catalogue(language)["explain"]["steps"]
    lesson = restore(attention.config, attention.weights, attention.backend, attention.seed, readable=True)
    backend, config, module = lesson.backend, lesson.config, dispatch.load(lesson.backend)
    given = {name: X for name, X in zip(INPUTS, (queries, keys, values), strict=True) if X is not None}
    inputs = {
        name: arrays.tensor(dispatch.module_of(X, name).to_numpy(X), backend=backend) for name, X in given.items()
    }
    if isinstance(cache, Cache):
        check_owner(cache, attention.layer)
        cache = cache.to(backend)  # a copy that belongs to no layer
    traced = lesson.trace(**inputs, valid_lens=valid_lens, cache=cache, **call)
    with module.context(config.dtype):
        own = Call(valid_lens, cache=cache, return_weights=cache is not None, **call)
        checked = check(module, lesson.layer, inputs["queries"], inputs.get("keys"), inputs.get("values"), own)
        k, v, held = last_heads(traced, "k"), last_heads(traced, "v"), Arrays()  # (B*G, K, d), (B*G, K, dv)
        if cache is not None:
            inputs["positions_before"] = cache.positions
            k, v, held, checked = _after_call(dispatch.lesson(backend), k, v, inputs, checked)  # (B*G, S, d), ...
        visible = module.visible_keys(inputs["queries"], k, checked)
        path = _path(dispatch.lesson(backend), config, inputs, traced, held, k, v, visible)
        found = [(stage, name, arrays.to_numpy(X)) for stage, name, X in path]
    K = "K" if cache is None else "S"
    named = letters(config, K)
    explained = []
    for stage, name, X in found:
        shown = named.get(name) or _letters(X.shape, K)
        where = {} if stage == "input" else vars(place(backend, name, config.pooling, cache is not None))
        fields = dict.fromkeys(PLACE) | where
        explained.append(Step(stage, name, shown, X.shape, meaning=meanings[stage], value=X, **fields))
    return explained


def letters(config: Config, K: str = "K") -> dict[str, str]:
    """The shape of every step in letters, except for arrays that hide keys, whose axes may be 1.

    K: the letter of the axis of keys in scores, "S" for the slots of a cache.
    """
    G = "H" if config.num_key_value_heads == config.num_heads else "G"
    widths = config.query_size, config.key_size, config.value_size
    Dq, Dk, Dv = ("D" if width == config.num_hiddens else f"D{one}" for one, width in zip("qkv", widths, strict=True))
    known = {"queries": f"(B, Q, {Dq})", "keys": f"(B, K, {Dk})", "values": f"(B, K, {Dv})"}
    for one, T, heads, d in (("q", "Q", "H", "d"), ("k", "K", G, "d"), ("v", "K", G, "dv")):
        known[f"W_{one}"] = f"(B, {T}, {heads}*{d})"
        known[f"reshape_{one}"] = f"(B, {T}, {heads}, {d})"
        known[f"permute_{one}"] = f"(B, {heads}, {T}, {d})"
        known |= dict.fromkeys(
            (f"split_{one}", f"norm_{one}", f"rotate_{one}", f"tempered_{one}"), f"(B*{heads}, {T}, {d})"
        )
        known[f"repeat_{one}"] = f"(B*H, {K}, {d})"
    known |= dict.fromkeys(STEPS_OF_PAIRS, f"(B*H, Q, {K})")
    known |= dict.fromkeys(("pooled", "head_gated", "gated"), "(B*H, Q, dv)")
    known |= {"reshape_pooled": "(B, H, Q, dv)", "permute_pooled": "(B, Q, H, dv)"}
    known |= dict.fromkeys(("positions_before", "positions_after"), "(B, S)") | {
        "slots": "(B, K)",
        "lost_after": "(B,)",
    }
    known |= {"keys_after": f"(B, {G}, S, d)", "values_after": f"(B, {G}, S, dv)"}
    return known | {"merged": "(B, Q, H*dv)", "output": "(B, Q, D)"}


def _letters(shape: tuple[int, ...], K: str) -> str:
    """The shape in letters of an array that hides keys; K: the letter of their axis."""
    axes = ("B", "H", "Q", K) if len(shape) == 4 else ("B*H", "Q", K)
    return f"({', '.join('1' if size == 1 else axis for size, axis in zip(shape, axes, strict=True))})"


def _path(
    module: Any, config: Config, inputs: Arrays, traced: Arrays, held: Arrays, k: Any, v: Any, visible: Any
) -> Iterator[tuple[str, str, Any]]:
    """Every step in order: stage, name and array.

    module: the lesson; traced: the steps from `trace`; held: the steps of a cache's slots; k, v: the heads that queries
    attend to; visible: the keys that are not hidden, None = all.
    """
    H, G = config.num_heads, config.num_key_value_heads

    def kept(*names: str) -> list[tuple[str, str, Any]]:
        return [(name, name, traced[name]) for name in names if name in traced]

    for name, X in inputs.items():
        yield "input", name, X
    for name in ("W_q", "W_k", "W_v"):
        yield "project", name, traced[name]
    heads = {"q": H, "k": G, "v": G}
    split = [stages(module.transpose_qkv, traced[f"W_{one}"], heads[one]) for one in heads]
    names = ("reshape", "permute", "split")
    for stage, name, *of_each in zip(("reshape", "permute", "merge"), names, *split, strict=True):
        for one, X in zip(heads, of_each, strict=True):
            yield stage, f"{name}_{one}", X
    of_heads = {"norm_v": "norm_values", "tempered_q": "temper"}
    of_heads |= {f"{stage}_{one}": stage for stage in ("norm", "rotate") for one in "qk"}
    for name, X in traced.items():
        if name in of_heads:
            yield of_heads[name], name, X
    for name, X in held.items():
        yield "slots", name, X
    if G != H:
        for name, X in (("repeat_k", k), ("repeat_v", v)):
            yield "repeat", name, module.repeat_groups(X, H // G)
    yield config.pooling, "scores", traced["scores"]
    yield from kept(*BENT, "biased")
    if visible is not None:
        yield "visible", "visible", visible
        yield "visible_heads", "visible_heads", module.repeat_heads(visible, inputs["queries"].shape[0], H)
    yield from kept("weights", "pooled", "head_gated", "gated")
    pooled = next(traced[name] for name in ("gated", "head_gated", "pooled") if name in traced)
    for name, X in zip(
        ("reshape_pooled", "permute_pooled", "merged"), stages(module.transpose_output, pooled, H), strict=True
    ):
        yield name, name, X
    yield "output", "output", traced["output"]


def _after_call(module: Any, k: Any, v: Any, inputs: Arrays, call: Any) -> tuple[Any, Any, Arrays, Any]:
    """The contents of a cache's slots after a call, and the steps that put them there.

    module: the lesson; k (B*G, K, d), v (B*G, K, dv): the heads of the new tokens; call: checked, with a cache.
    Returns the heads in the slots, (B*G, S, d) and (B*G, S, dv); the steps by name, none for a frozen cache, where
    "slots" (B, K) is -1 for padding; and the call of the queries with the slots.
    """
    cache = call.cache
    *_, call = module.place(*(inputs.get(name) for name in ("queries", "keys", "values")), call)
    steps = {}
    if not cache.frozen:
        S = cache.sizes[1]
        _, slots, _ = module.slots_after(cache.positions, cache.lengths, cache.lost, call)  # (B, S + K)
        *_, cache = module.remember(k, v, call)
        real = arrays.to_numpy(call.key_positions) >= 0  # (B, K)
        steps = {
            "slots": np.where(real, arrays.to_numpy(slots)[:, S:], -1),  # (B, K)
            "positions_after": cache.positions,
            "lost_after": cache.lost,
            "keys_after": cache.keys,
            "values_after": cache.values,
        }
    call = call._replace(key_positions=cache.positions, offset=0)
    heads = (arrays.to_numpy(X) for X in (cache.keys, cache.values))  # (B, G, S, d), (B, G, S, dv)
    k, v = (arrays.tensor(X.reshape(-1, *X.shape[2:]), backend=cache.backend) for X in heads)  # (B*G, S, d), ...
    return k, v, steps, call

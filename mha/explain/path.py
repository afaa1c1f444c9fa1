"""Every step of a call, from inputs to output: its shape, its line in the backend's lesson, and its meaning."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from mha import arrays, checks, dispatch
from mha.call import Arguments, Call, check
from mha.config import Config
from mha.explain.lines import Place, place, stages
from mha.languages import catalogue
from mha.layer import MultiHeadAttention, restore
from mha.names import BackendName, LanguageName

INPUTS = "queries", "keys", "values"
PLACE = tuple(field.name for field in dataclasses.fields(Place))


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a call.

    Letters: B samples in the batch, Q queries, K keys and values, D num_hiddens, H heads, G heads of keys and values if
    these are shared, d width of a head of queries and keys, dv width of a head of values.

    stage: the kind of step; all steps of a stage have the same meaning. name: of the array; `trace` uses the same
    names. letters: its shape, as "(B*H, Q, d)"; shape: its shape in numbers. file, line, function, source: the
    statement of the backend that computes it, as "torch/heads.py", 24, "transpose_qkv" and the text; None for inputs.
    meaning: a sentence in the chosen language. value: the array, as a NumPy array.
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
    widths = attention.config.query_size, attention.config.key_size, attention.config.value_size
    inputs = {
        name: arrays.normal(0, 1, (B, T, width), attention.config.dtype, seed=seed, backend=attention.backend)
        for seed, (name, T, width) in enumerate(zip(INPUTS, (Q, K, K), widths, strict=True))
    }
    return call(attention, **inputs, valid_lens=valid_lens, causal=causal, language=language)


def call(
    attention: MultiHeadAttention,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    language: LanguageName = "en",
    **call: Unpack[Arguments],
) -> list[Step]:
    """Explain one call of a layer, without dropout. The layer is not changed.

    Args:
        attention: the layer.
        queries, keys, values, valid_lens, call: as for a call.
        language: language of the meanings: "en", "zh", "ja", "id" or "vi".

    Returns:
        A `Step` for each step, in order.

    Raises:
        TypeError, ValueError: if an argument is not as above; the message says what was expected.
    """
    meanings = catalogue(language)["explain"]["steps"]
    lesson = restore(attention.config, attention.weights, attention.backend, attention.seed, readable=True)
    backend, config, module = lesson.backend, lesson.config, dispatch.load(lesson.backend)
    inputs = {
        name: arrays.tensor(dispatch.module_of(X, name).to_numpy(X), backend=backend)
        for name, X in zip(INPUTS, (queries, keys, values), strict=True)
    }
    traced = lesson.trace(**inputs, valid_lens=valid_lens, **call)
    with module.context(config.dtype):
        checked = check(module, lesson.layer, *(inputs[name] for name in INPUTS), Call(valid_lens, **call))  # type: ignore[call-arg]
        visible = module.visible_keys(inputs["queries"], inputs["keys"], checked)
        path = _path(dispatch.lesson(backend), config, inputs, traced, visible)
        found = [(stage, name, arrays.to_numpy(X)) for stage, name, X in path]
    named = letters(config)
    explained = []
    for stage, name, X in found:
        shown = named.get(name) or _letters(X.shape)
        where = {} if stage == "input" else vars(place(backend, name, config.pooling))
        fields = dict.fromkeys(PLACE) | where
        explained.append(Step(stage, name, shown, X.shape, meaning=meanings[stage], value=X, **fields))
    return explained


def letters(config: Config) -> dict[str, str]:
    """The shape of every step in letters, except of the arrays of what hides keys, whose axes may be 1."""
    G = "H" if config.num_key_value_heads == config.num_heads else "G"
    widths = config.query_size, config.key_size, config.value_size
    Dq, Dk, Dv = ("D" if width == config.num_hiddens else f"D{one}" for one, width in zip("qkv", widths, strict=True))
    known = {"queries": f"(B, Q, {Dq})", "keys": f"(B, K, {Dk})", "values": f"(B, K, {Dv})"}
    for one, T, heads, d in (("q", "Q", "H", "d"), ("k", "K", G, "d"), ("v", "K", G, "dv")):
        known[f"W_{one}"] = f"(B, {T}, {heads}*{d})"
        known[f"reshape_{one}"] = f"(B, {T}, {heads}, {d})"
        known[f"permute_{one}"] = f"(B, {heads}, {T}, {d})"
        known |= dict.fromkeys((f"split_{one}", f"norm_{one}", f"rotate_{one}"), f"(B*{heads}, {T}, {d})")
        known[f"repeat_{one}"] = f"(B*H, {T}, {d})"
    known |= dict.fromkeys(("scores", "capped", "biased", "weights"), "(B*H, Q, K)")
    known |= dict.fromkeys(("pooled", "head_gated"), "(B*H, Q, dv)")
    known |= {"reshape_pooled": "(B, H, Q, dv)", "permute_pooled": "(B, Q, H, dv)"}
    return known | {"merged": "(B, Q, H*dv)", "output": "(B, Q, D)"}


def _letters(shape: tuple[int, ...]) -> str:
    """The shape in letters of an array of what hides keys."""
    axes = ("B", "H", "Q", "K") if len(shape) == 4 else ("B*H", "Q", "K")
    return f"({', '.join('1' if size == 1 else axis for size, axis in zip(shape, axes, strict=True))})"


def _path(
    module: Any, config: Config, inputs: dict[str, Any], traced: dict[str, Any], visible: Any
) -> Iterator[tuple[str, str, Any]]:
    """Every step in order: stage, name and array.

    module: the lesson; traced: the steps from `trace`; visible: the keys that are not hidden; None = all.
    """
    H, G = config.num_heads, config.num_key_value_heads
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
    for stage in ("norm", "rotate"):
        for name in (f"{stage}_q", f"{stage}_k"):
            if name in traced:
                yield stage, name, traced[name]
    if G != H:
        turned = next(traced[name] for name in ("rotate_k", "norm_k", "split_k") if name in traced)
        for name, X in (("repeat_k", turned), ("repeat_v", traced["split_v"])):
            yield "repeat", name, module.repeat_groups(X, H // G)
    yield config.pooling, "scores", traced["scores"]
    for name in ("capped", "biased"):
        if name in traced:
            yield name, name, traced[name]
    if visible is not None:
        yield "visible", "visible", visible
        yield "visible_heads", "visible_heads", module.repeat_heads(visible, inputs["queries"].shape[0], H)
    for name in ("weights", "pooled", "head_gated"):
        if name in traced:
            yield name, name, traced[name]
    pooled = traced.get("head_gated", traced["pooled"])
    for name, X in zip(
        ("reshape_pooled", "permute_pooled", "merged"), stages(module.transpose_output, pooled, H), strict=True
    ):
        yield name, name, X
    yield "output", "output", traced["output"]

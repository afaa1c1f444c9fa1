"""Every step of a call, from inputs to output: its shape, its line in the backend's lesson, and what it means."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mha import arguments, arrays, checks, dispatch
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

    Letters: B samples in the batch, Q queries, K keys and values, D num_hiddens, H heads, G heads of keys and values
    where they are grouped, d width of a head of queries and keys, dv width of a head of values.

    stage: what kind of step it is; steps of one stage have one meaning. name: of the array, as `trace` names it where
    that has it. letters: its shape, as "(B*H, Q, d)"; shape: the same in numbers. file, line, function, source: the
    statement of the backend that computes it, as "torch/layer.py", 199, "transpose_qkv" and the text; None for inputs.
    meaning: in the language that was asked for. value: the array itself, as NumPy's.
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
    """The steps of a layer of these sizes, called with random numbers.

    Args:
        backend: whose lesson; None = MHA_BACKEND, else "numpy".
        batch, queries, keys: how many samples, queries, and keys and values.
        num_hiddens, num_heads: of the layer.
        valid_lens, causal: as for a call of the layer.
        language: of what the steps mean: "en", "zh", "ja", "id" or "vi".
        **options: the layer's other options, such as num_key_value_heads and rotary.

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
    mask: Any = None,
    score_bias: Any = None,
    causal: bool = False,
    offset: Any = 0,
    head_gates: Any = None,
    language: LanguageName = "en",
) -> list[Step]:
    """The steps of one call of a layer, without dropout; the layer stays as it is.

    Args:
        attention: the layer.
        queries, keys, values, valid_lens, mask, score_bias, causal, offset, head_gates: as for a call.
        language: of what the steps mean: "en", "zh", "ja", "id" or "vi".

    Raises:
        TypeError, ValueError: if an argument is not as above; the message says what was expected.
    """
    meanings = catalogue(language)["explain"]["steps"]
    lesson = restore(attention.config, attention.weights, attention.backend, attention.seed, readable=True)
    config, module = lesson.config, dispatch.lesson(lesson.backend)
    inputs = {
        name: arrays.tensor(dispatch.module_of(X, name).to_numpy(X), backend=lesson.backend)
        for name, X in zip(INPUTS, (queries, keys, values), strict=True)
    }
    options = {"mask": mask, "score_bias": score_bias, "causal": causal, "offset": offset, "head_gates": head_gates}
    traced = lesson.trace(**inputs, valid_lens=valid_lens, **options)
    with dispatch.load(lesson.backend).context(config.dtype):
        hiding, _ = arguments.check(lesson.backend, lesson.layer, **inputs, valid_lens=valid_lens, **options)
        visible = module.visible_keys(inputs["queries"], inputs["keys"], *hiding)
        path = _path(module, config, inputs, traced, visible)
        found = [(stage, name, where, arrays.to_numpy(X)) for stage, name, where, X in path]
    named = letters(config)
    return [
        Step(
            stage,
            name,
            named.get(name) or _letters(X.shape),
            X.shape,
            meaning=meanings[stage],
            value=X,
            **_fields(where),
        )
        for stage, name, where, X in found
    ]


def letters(config: Config) -> dict[str, str]:
    """The shape of every step in letters; without what is hidden, whose axes may be 1."""
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
    """The shape of what is hidden in letters."""
    axes = ("B", "H", "Q", "K") if len(shape) == 4 else ("B*H", "Q", "K")
    return f"({', '.join('1' if size == 1 else axis for size, axis in zip(shape, axes, strict=True))})"


def _fields(where: Place | None) -> dict[str, Any]:
    """What a step says of its place."""
    return dict.fromkeys(PLACE) if where is None else {name: getattr(where, name) for name in PLACE}


def _path(
    module: Any, config: Config, inputs: dict[str, Any], traced: dict[str, Any], visible: Any
) -> Iterator[tuple[str, str, Place | None, Any]]:
    """Every step in order: stage, name, place and array.

    module: the lesson; traced: the steps that `trace` has; visible: what is not hidden, None = nothing is hidden.
    """
    layer, pooling, H, G = (
        module.MultiHeadAttention,
        module.AttentionPooling,
        config.num_heads,
        config.num_key_value_heads,
    )
    for name, X in inputs.items():
        yield "input", name, None, X
    for name in ("W_q", "W_k", "W_v"):
        yield "project", name, place(layer.steps, name), traced[name]
    split = [
        stages(module.transpose_qkv, traced[f"W_{one}"], heads) for one, heads in zip("qkv", (H, G, G), strict=True)
    ]
    for stage, kind, *of_each in zip(
        ("reshape", "permute", "merge"), ("reshape", "permute", "split"), *split, strict=True
    ):
        for one, (where, X) in zip("qkv", of_each, strict=True):
            yield stage, f"{kind}_{one}", where, X
    for stage, calls in (("norm", "norm"), ("rotate", "rotate")):
        for one in "qk":
            if f"{stage}_{one}" in traced:
                called = f"{one}_norm" if stage == "norm" else calls
                yield stage, f"{stage}_{one}", place(layer.turn, one, called), traced[f"{stage}_{one}"]
    if G != H:
        turned = next(traced[name] for name in ("rotate_k", "norm_k", "split_k") if name in traced)
        for one, X in (("k", turned), ("v", traced["split_v"])):
            yield "repeat", f"repeat_{one}", place(layer.steps, one, "repeat_groups"), module.repeat_groups(X, H // G)
    kind = module.AdditiveAttention if config.pooling == "additive" else module.DotProductAttention
    yield config.pooling, "scores", place(kind.scores), traced["scores"]
    for name in ("capped", "biased"):
        if name in traced:
            yield name, name, place(pooling.weigh, name), traced[name]
    if visible is not None:
        yield "visible", "visible", place(layer.attend, "visible"), visible
        heads = module.repeat_heads(visible, inputs["queries"].shape[0], H)
        yield "visible_heads", "visible_heads", place(module.repeat_heads), heads
    for name in ("weights", "pooled"):
        yield name, name, place(pooling.weigh, name), traced[name]
    pooled = traced["pooled"]
    if "head_gated" in traced:
        pooled = traced["head_gated"]
        yield "head_gated", "head_gated", place(layer.steps, "head_gated"), pooled
    for name, (where, X) in zip(
        ("reshape_pooled", "permute_pooled", "merged"), stages(module.transpose_output, pooled, H), strict=True
    ):
        yield name, name, where, X
    yield "output", "output", place(layer.steps, "output"), traced["output"]

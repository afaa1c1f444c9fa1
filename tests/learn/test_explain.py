"""`mha.explain`: every step's array, shape and source are those of the lesson itself; the worked example, by hand."""

import ast
import math

import numpy as np
import pytest

import mha
from mha import explain
from mha.core import dispatch
from mha.learn.languages import LANGUAGES, catalogue

# All sizes differ, so that a swapped axis fails.
SIZES = {"B": 2, "Q": 3, "K": 5, "H": 6, "G": 2, "D": 11, "Dq": 13, "Dk": 17, "Dv": 19, "d": 8, "dv": 7}
WIDTHS = {"query_size": 13, "key_size": 17, "value_size": 19, "key_dim": 8, "value_dim": 7}
OPTIONS = {
    "num_key_value_heads": 2, "rotary": mha.Rotary(), "qk_norm": "rms", "softcap": 3.0, "window": (4, None),
    "output_gate": "element",
}  # fmt: skip
# What the line of a step must hold: the names of the lesson, and what each framework calls the same.
HOLDS = {
    "W_q": "self.W_q(queries)", "W_k": "self.W_k(keys)", "W_v": "self.W_v(values)", "norm_q": "self.q_norm(q)",
    "norm_k": "self.k_norm(k)", "rotate_q": "rotate(q, ", "rotate_k": "rotate(k, ", "repeat_k": "repeat_groups(k",
    "repeat_v": "repeat_groups(v", "scores": "* scale", "capped": "cap(scores", "biased": "scores + ",
    "visible": "visible_keys(queries, keys", "visible_heads": "reshape(", "weights": "visible_softmax(scores",
    "pooled": "widen(values)", "head_gated": "widen(pooled) * widen(gates)", "gated": "sigmoid(gates)",
    "output": "self.W_o(merged)",
    **{f"reshape_{one}": "X = " for one in (*"qkv", "pooled")},
    **{f"permute_{one}": "0, 2, 1, 3" for one in (*"qkv", "pooled")},
    **dict.fromkeys(("split_q", "split_k", "split_v", "merged"), "return "),
}  # fmt: skip
FUNCTIONS = {
    "W_q": "project", "reshape_q": "transpose_qkv", "split_v": "transpose_qkv",
    "norm_q": "norm_heads", "rotate_k": "transform_heads", "repeat_k": "pool", "scores": "scores", "biased": "bend",
    "visible": "zero_unused", "visible_heads": "repeat_heads", "weights": "weigh", "pooled": "weigh",
    "head_gated": "gate", "gated": "gate_by", "merged": "transpose_output", "output": "attend",
}  # fmt: skip


@pytest.fixture(scope="module")
def explained(backend):
    """A call with every option: its steps by name, and what the lesson's `trace` gives."""
    attention = mha.MultiHeadAttention(11, 6, seed=1, readable=True, backend=backend, **WIDTHS, **OPTIONS)
    rng = np.random.default_rng(5)
    inputs = [rng.normal(size=(2, T, width)).astype("float32") for T, width in ((3, 13), (5, 17), (5, 19))]
    score_bias, gates = rng.normal(size=(3, 5)).astype("float32"), np.array([1, 0.5, 0, 2, -1, 3], "float32")
    call = {"valid_lens": [4, 2], "score_bias": score_bias, "head_gates": gates}
    steps = {step.name: step for step in explain.call(attention, *inputs, **call)}
    return steps, attention.trace(*inputs, **call)


def test_steps_are_those_of_a_real_call(explained):
    steps, traced = explained
    assert [name for name in steps if name in traced] == list(traced)
    for name, X in traced.items():
        assert steps[name].value.dtype == X.dtype
        assert np.array_equal(steps[name].value, X), name
    assert set(steps) - set(traced) - {"queries", "keys", "values"} == {
        *(f"{stage}_{one}" for stage in ("reshape", "permute") for one in (*"qkv", "pooled")),
        "repeat_k", "repeat_v", "visible", "visible_heads",
    }  # fmt: skip


def test_letters_and_numbers_are_the_shape(explained):
    steps, _ = explained
    for name, step in steps.items():
        assert step.shape == step.value.shape == eval(step.letters, {}, SIZES), name
    shown = {name: steps[name].letters for name in ("keys", "reshape_k", "permute_v", "split_k", "repeat_v", "visible")}
    assert shown == {
        "keys": "(B, K, Dk)", "reshape_k": "(B, K, G, d)", "permute_v": "(B, G, K, dv)", "split_k": "(B*G, K, d)",
        "repeat_v": "(B*H, K, dv)", "visible": "(B, 1, Q, K)",
    }  # fmt: skip


def test_the_split_in_three_stages(explained):
    steps, _ = explained
    for one, T, heads, width in (("q", 3, 6, 8), ("k", 5, 2, 8), ("v", 5, 2, 7)):
        parts = steps[f"W_{one}"].value.reshape(2, T, heads, width)  # (B, T, H, d)
        assert np.array_equal(steps[f"reshape_{one}"].value, parts)
        apart = np.stack([parts[:, :, head] for head in range(heads)], 1)  # (B, H, T, d)
        assert np.array_equal(steps[f"permute_{one}"].value, apart)
        assert np.array_equal(steps[f"split_{one}"].value, np.concatenate(list(apart)))  # (B*H, T, d)
    for one in ("repeat_k", "repeat_v"):
        shared = steps[{"repeat_k": "rotate_k", "repeat_v": "split_v"}[one]].value
        assert np.array_equal(steps[one].value, shared[[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]])
    gated = steps["gated"].value  # (B*H, Q, dv)
    assert np.array_equal(steps["reshape_pooled"].value, np.stack([gated[:6], gated[6:]]))
    assert np.array_equal(steps["permute_pooled"].value[1, 2, 3], gated[9, 2])


def test_what_is_hidden(explained):
    steps, _ = explained
    seen = np.array([[[j < length and i - 4 <= j for j in range(5)] for i in range(3)] for length in (4, 2)])
    assert np.array_equal(steps["visible"].value[:, 0], seen)
    assert np.array_equal(steps["visible_heads"].value, seen[[0] * 6 + [1] * 6])
    assert np.array_equal(steps["weights"].value == 0, ~steps["visible_heads"].value)


def test_source_lines_are_those_of_the_files(explained, backend):
    steps, _ = explained
    inputs, chapters = ("queries", "keys", "values"), [f"{backend}/{chapter}.py" for chapter in dispatch.CHAPTERS]
    assert list(HOLDS.keys() - steps.keys()) == []
    for name, step in steps.items():
        if name in inputs:
            assert (step.file, step.line, step.function, step.source) == (None,) * 4
            continue
        assert step.file in chapters
        code = (dispatch.FOLDER / step.file).read_text(encoding="utf-8")
        defined = {node.lineno: node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)}
        lines = step.source.splitlines()
        found = code.splitlines()[step.line - 1 : step.line - 1 + len(lines)]
        assert [line.strip() for line in found] == [line.strip() for line in lines], name
        assert HOLDS[name] in step.source, name
        around = max(line for line, node in defined.items() if line <= step.line <= node.end_lineno)
        assert step.function == defined[around].name == FUNCTIONS.get(name, step.function)
    for one in "qkv":
        three = [steps[f"{stage}_{one}"].line for stage in ("reshape", "permute", "split")]
        assert three == [three[0], three[0] + 1, three[0] + 2]


def test_the_worked_example(backend):
    steps = {step.name: step.value for step in explain.example(backend)}
    assert steps["values"].tolist() == [
        [[10, 11, 12, 13], [14, 15, 16, 17]],
        [[18, 19, 20, 21], [22, 23, 24, 25]],
    ]
    for one, name in zip("qkv", ("queries", "keys", "values"), strict=True):
        assert np.array_equal(steps[f"W_{one}"], steps[name])
    first, second = [[10, 11], [14, 15]], [[12, 13], [16, 17]]  # heads 0 and 1 of sample 0
    third, fourth = [[18, 19], [22, 23]], [[20, 21], [24, 25]]  # of sample 1
    assert steps["reshape_v"][0].tolist() == [[[10, 11], [12, 13]], [[14, 15], [16, 17]]]
    assert steps["permute_v"].tolist() == [[first, second], [third, fourth]]
    assert steps["split_v"].tolist() == [first, second, third, fourth]
    assert steps["split_q"].tolist() == 2 * [[[1, 0], [0, 1]], [[0, 1], [1, 1]]]
    assert steps["split_k"].tolist() == 2 * [[[1, 0], [0, 1]], [[1, 0], [0, 1]]]
    ln3 = math.log(3)
    seen, half = [[[ln3, 0], [0, ln3]], [[0, ln3], [ln3, ln3]]], [[[ln3, 0], [0, 0]], [[0, 0], [ln3, 0]]]
    assert np.allclose(steps["scores"], seen + half, rtol=1e-6, atol=0)  # of sample 1, key 1 counts as 0
    padded = [[1, 0], [1, 0]]
    weights = [[[0.75, 0.25], [0.25, 0.75]], [[0.25, 0.75], [0.5, 0.5]], padded, padded]
    assert np.allclose(steps["weights"], weights, rtol=1e-6, atol=0)
    pooled = [[[11, 12], [13, 14]], [[15, 16], [14, 15]], 2 * [[18, 19]], 2 * [[20, 21]]]
    assert np.allclose(steps["pooled"], pooled, rtol=1e-6, atol=0)
    merged = [[[11, 12, 15, 16], [13, 14, 14, 15]], 2 * [[18, 19, 20, 21]]]
    assert np.allclose(steps["merged"], merged, rtol=1e-6, atol=0)
    assert np.array_equal(steps["output"], steps["merged"])


def test_arrays_of_the_framework_are_explained_as_numpy_s(backend):
    attention, X = mha.MultiHeadAttention(4, 2, seed=0, backend=backend), np.ones((2, 2, 4), "float32")
    own = mha.tensor(X, backend=backend)
    for found, expected in zip(explain.call(attention, own, own, own), explain.call(attention, X, X, X), strict=True):
        assert found == expected
        assert type(found.value) is np.ndarray
        assert np.array_equal(found.value, expected.value)


def test_a_plain_call_has_the_steps_of_the_lesson_alone():
    steps = explain.steps("numpy", batch=3, queries=2, keys=4, num_hiddens=6, num_heads=2)
    sizes = {"B": 3, "Q": 2, "K": 4, "H": 2, "D": 6, "d": 3, "dv": 3}
    assert all(eval(step.letters, {}, sizes) == step.shape for step in steps)
    stages = dict.fromkeys(step.stage for step in steps)
    assert list(stages) == [
        "input", "project", "reshape", "permute", "merge", "dot", "weights", "pooled", "reshape_pooled",
        "permute_pooled", "merged", "output",
    ]  # fmt: skip
    for seed, step in enumerate(steps[:3]):
        assert np.array_equal(step.value, mha.normal(0, 1, step.shape, seed=seed, backend="numpy"))
    hidden = explain.steps("numpy", causal=True)
    assert next(step.letters for step in hidden if step.name == "visible") == "(1, 1, Q, K)"


def test_additive_pooling_has_a_line_and_a_meaning_of_its_own():
    (scores,) = [one for one in explain.steps("numpy", pooling="additive") if one.name == "scores"]
    assert "self.w_v(features)" in scores.source
    assert scores.meaning == catalogue("en")["explain"]["steps"]["additive"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_meanings_are_in_the_language(language):
    texts = catalogue(language)["explain"]["steps"]
    for step in explain.steps("numpy", language=language):
        assert step.meaning == texts[step.stage]
    assert explain.example("numpy", language=language)[0].meaning == texts["input"]


def test_every_meaning_is_of_some_step():
    options = OPTIONS | {"temperature": mha.Temperature(0.1, 2), "value_norm": "rms"}
    steps = explain.steps("numpy", num_heads=10, **options) + explain.steps("numpy", pooling="additive")
    steps += explain.token("numpy")
    told = {step.stage for step in steps}
    assert told | {"biased", "head_gated"} == set(catalogue("en")["explain"]["steps"])


def test_the_layer_and_the_seeds_stay_as_they_were():
    mha.manual_seed(3)
    first = mha.MultiHeadAttention(6, 2, backend="numpy").seed
    mha.manual_seed(3)
    explain.steps("numpy")
    explain.example("numpy")
    attention = mha.MultiHeadAttention(6, 2, backend="numpy")
    assert attention.seed == first
    before = attention.weights
    X = np.ones((1, 2, 6), "float32")
    explain.call(attention, X, X, X)
    assert all(np.array_equal(attention.weights[name], X) for name, X in before.items())
    assert not attention.readable


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch": 0}, ValueError, "batch is 0, expected at least 1"),
        ({"queries": 2.0}, TypeError, r"queries is 2.0 \(float\), expected a positive int"),
        ({"num_hiddens": 100, "num_heads": 7}, ValueError, "num_hiddens is 100, expected a multiple of num_heads = 7"),
        ({"valid_lens": [1, 2, 3]}, ValueError, "valid_lens has shape"),
        ({"language": "de"}, ValueError, "language is 'de', expected one of en, zh, ja, id, vi"),
        ({"backend": "cupy"}, ValueError, "backend is 'cupy', expected one of"),
    ],
)
def test_bad_arguments(options, error, text):
    with pytest.raises(error, match=text):
        explain.steps(**{"backend": "numpy"} | options)


def test_it_is_found_without_an_import_of_its_own(python):
    assert python("import sys, mha; print('mha.explain' in sys.modules, mha.explain.__name__)").split() == [
        "False",
        "mha.learn.explain",
    ]

"""`mha.explain` with a cache: which position is in each slot, what a token sees there, and weights by slots."""

import re

import adapters
import numpy as np
import pytest
from commands import narrow, run
from rich.cells import cell_len

import mha
from mha import explain
from mha.core import dispatch
from mha.learn.languages import LANGUAGES, catalogue

# Where compiling takes seconds, one token in a ring says nearly the same.
LONG = pytest.mark.long(*adapters.COMPILED)

OPTIONS = {"num_hiddens": 24, "num_heads": 4, "num_key_value_heads": 2, "rotary": mha.Rotary(), "dtype": "float64"}
HELD = "slots", "positions_after", "lost_after", "keys_after", "values_after"


def named(steps):
    return {step.name: step for step in steps}


def ring(count, S):
    """Which position is in each slot after so many tokens, one by one; -1 = none."""
    places = [-1] * S
    for n in range(count):
        places[n % S] = n
    return places


@LONG
def test_a_token_in_a_ring_that_wraps(backend):
    N, S, lengths = 4, 5, [3, 0, 7]
    steps = named(explain.token(backend, batch=3, prompt=7, tokens=N, slots=S, valid_lens=lengths, **OPTIONS))
    counts = [length + N for length in lengths]
    assert steps["positions_before"].value.tolist() == [ring(n - 1, S) for n in counts]
    assert steps["slots"].value.tolist() == [[(n - 1) % S] for n in counts]
    assert steps["positions_after"].value.tolist() == [ring(n, S) for n in counts]
    assert steps["lost_after"].value.tolist() == [1, -1, 5]
    seen = steps["positions_after"].value >= 0
    assert not seen.all()
    np.testing.assert_array_equal(steps["visible"].value, seen[:, None, None])
    np.testing.assert_array_equal(steps["weights"].value > 0, seen.repeat(4, 0)[:, None])


@LONG
def test_the_steps_are_those_of_one_causal_call(backend):
    K, N, S = 3, 4, 5
    options = OPTIONS | {"qk_norm": mha.Norm("rms", after=True), "value_norm": "layer"}
    steps = named(explain.token(backend, prompt=K, tokens=N, slots=S, **options))
    attention = mha.MultiHeadAttention(seed=0, window=(S - 1, None), backend=backend, **options)
    X = [mha.normal(0, 1, (2, K + N, 24), "float64", seed=seed, backend=backend) for seed in range(3)]
    whole = named(explain.call(attention, *X, causal=True))
    places = steps["positions_after"].value[0]
    for name in ("scores", "weights"):
        np.testing.assert_allclose(steps[name].value, whole[name].value[:, -1:, places], rtol=1e-12, atol=1e-14)
    for name in ("W_q", "rotate_q", "rotate_k", "pooled", "output"):
        np.testing.assert_allclose(steps[name].value, whole[name].value[:, -1:], rtol=1e-12, atol=1e-14)
    for one in "kv":
        normed = whole[f"norm_{one}"].value  # (B*G, T, d)
        assert np.array_equal(whole[f"repeat_{one}"].value, normed[[0, 0, 1, 1, 2, 2, 3, 3]])
        heads = normed[:, places]  # (B*G, S, d)
        kept = steps[{"k": "keys_after", "v": "values_after"}[one]].value
        np.testing.assert_allclose(kept.reshape(heads.shape), heads, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(steps[f"repeat_{one}"].value, kept.reshape(heads.shape).repeat(2, 0))


@pytest.mark.long("jax")
def test_letters_and_lines(backend):
    steps = explain.token(backend, batch=2, prompt=3, tokens=1, slots=5, **OPTIONS)
    sizes = {"B": 2, "Q": 1, "K": 1, "H": 4, "G": 2, "D": 24, "d": 6, "dv": 6, "S": 5}
    for step in steps:
        assert eval(step.letters, {}, sizes) == step.shape, step.name
    assert {step.name: step.letters for step in steps if "S" in step.letters} == {
        "positions_before": "(B, S)", "positions_after": "(B, S)", "keys_after": "(B, G, S, d)",
        "values_after": "(B, G, S, dv)", "repeat_k": "(B*H, S, d)", "repeat_v": "(B*H, S, dv)",
        "scores": "(B*H, Q, S)", "visible": "(B, 1, 1, S)", "visible_heads": "(B*H, 1, S)", "weights": "(B*H, Q, S)",
    }  # fmt: skip
    own = named(steps)
    assert [step.name for step in steps if step.stage == "slots"] == list(HELD)
    holds = dict(zip(HELD, (") % S]", "state = ", "state = ", "cache.after(", "cache.after("), strict=True))
    for name, code in (holds | {"visible": "repeat_heads(visible_keys("}).items():
        step = own[name]
        lines = (dispatch.FOLDER / step.file).read_text(encoding="utf-8").splitlines()
        assert code in step.source
        assert lines[step.line - 1].strip() == step.source.splitlines()[0]
    assert (own["positions_before"].file, own["positions_before"].source) == (None, None)


@LONG
def test_the_cache_of_a_call_stays(backend):
    attention = mha.MultiHeadAttention(24, 4, num_key_value_heads=2, seed=1, backend=backend)
    X = np.random.default_rng(2).normal(size=(2, 5, 24)).astype("float32")
    _, cache = attention(X[:, :3], X[:, :3], X[:, :3], causal=True, cache=attention.cache(2, 7))
    x, positions = X[:, 3:], [[3, 4], [-1, 3]]
    before = [mha.to_numpy(one).copy() for one in cache.arrays()]
    steps = named(explain.call(attention, x, x, x, causal=True, positions=positions, cache=cache))
    for one, old in zip(cache.arrays(), before, strict=True):
        np.testing.assert_array_equal(mha.to_numpy(one), old)
    assert steps["slots"].value.tolist() == [[3, 4], [-1, 3]]
    assert not steps["visible"].value[1, 0, 0].any()  # of padding
    _, weights, after = attention(x, x, x, causal=True, positions=positions, cache=cache, return_weights=True)
    np.testing.assert_allclose(steps["weights"].value, mha.to_numpy(weights).reshape(8, 2, 7), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(steps["positions_after"].value, mha.to_numpy(after.positions))
    np.testing.assert_array_equal(steps["visible"].value[:, 0], mha.to_numpy(weights)[:, 0] > 0)


@LONG
def test_a_frozen_cache_has_slots_and_no_new_keys(backend):
    attention = mha.MultiHeadAttention(24, 4, num_key_value_heads=2, seed=1, backend=backend)
    X = np.random.default_rng(3).normal(size=(2, 5, 24)).astype("float32")
    frozen = attention.cache_of(X, valid_lens=[5, 2])
    steps, whole = (
        named(explain.call(attention, X[:, :3], cache=frozen)),
        named(explain.call(attention, X[:, :3], X, X, [5, 2])),
    )
    assert steps.keys() == whole.keys() - {"keys", "values"} | {"positions_before"}
    assert steps["W_k"].shape == (2, 0, 12)
    for name in ("weights", "output"):
        np.testing.assert_allclose(steps[name].value, whole[name].value, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(steps["visible"].value, whole["visible"].value.repeat(3, 2))


def test_bad_caches():
    attention, other = (mha.MultiHeadAttention(24, 4, seed=1, backend="numpy") for _ in range(2))
    x = np.ones((2, 1, 24), "float32")
    with pytest.raises(ValueError, match="cache is of another layer, expected this one's"):
        explain.call(attention, x, x, x, cache=other.cache(2, 7))
    with pytest.raises(TypeError, match=r"cache is 3 \(int\), expected an mha.Cache"):
        explain.call(attention, x, x, x, cache=3)
    with pytest.raises(ValueError, match="slots is 0, expected at least 1"):
        explain.token("numpy", slots=0)
    with pytest.raises(ValueError, match="the cache is full: sample 0 would have 5 tokens, and the cache has 4 slots"):
        explain.token("numpy", prompt=4, window=None)


# The command


def shown(*arguments):
    """The output of the command."""
    result = run("explain", "--backend", "numpy", "--decode", *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def tables(text):
    """The tables of the samples: the cells of each row by its name."""
    _, *parts = re.split(r"^sample \d+ ", text, flags=re.MULTILINE)
    rows = (re.findall(r"^([a-z]+(?: [a-z0-9]+)?)  +(\S.*\S) *$", part, re.MULTILINE) for part in parts)
    return [{name: cells.split() for name, cells in found} for found in rows]


def test_the_command_shows_slots_and_positions():
    steps = named(explain.token("numpy", tokens=2, valid_lens=[3, 2]))
    text = shown("2")
    first, second = tables(text)
    assert first["position before"] == ["0", "1", "2", "3"]
    assert first["position after"] == ["4", "1", "2", "3"]
    assert second["position before"] == ["0", "1", "2", "-1"]
    assert second["position after"] == ["0", "1", "2", "3"]
    for b, table in enumerate((first, second)):
        assert table["seen"] == ["True"] * 4
        heads = [table[f"head {head}"] for head in range(5)]
        assert heads == [[f"{weight:.2f}" for weight in row] for row in steps["weights"].value[5 * b : 5 * b + 5, 0]]
    assert text.count("The furthest position that was overwritten: 0.") == text.count("overwritten:") == 1
    assert re.search(r"^sample 1 +slot 0  slot 1  slot 2  slot 3$", text, re.MULTILINE)
    told = "A decoder with a cache of S = 4 slots: a prompt of 6 tokens, then 2 more, one by one."
    assert told in " ".join(text.split())
    _, second = tables(shown("1"))
    assert (second["position after"], second["seen"]) == (["0", "1", "2", "-1"], ["True"] * 3 + ["False"])


def test_the_command_takes_other_sizes():
    sizes = ["--slots", "3", "--keys", "2", "--batch", "1", "--hiddens", "12", "--heads", "2", "--kv-heads", "1"]
    (table,) = tables(shown("5", *sizes))
    assert table["position before"] == ["3", "4", "5"]
    assert table["position after"] == ["6", "4", "5"]
    assert [name for name in table if name.startswith("head")] == ["head 0", "head 1"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_tables_are_in_the_language_and_fit_a_usual_terminal(monkeypatch, language):
    narrow(monkeypatch, 80)
    text, texts = shown("2", "--lang", language), catalogue(language)["explain"]
    rest = text[text.index(texts["axes"]["S"].format(number=0)) :]
    for name in ("positions_before", "positions_after", "visible"):
        assert re.search(f"^{texts['slots'][name]} ", rest, re.MULTILINE)
    assert max(map(cell_len, rest.splitlines())) <= 80
    assert texts["slots"]["lost"].format(position=0) in rest


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--slots", "3"], "--slots is 3 without --decode, expected both: add --decode 1"),
        (["--decode", "1", "--queries", "2"], "--queries came with --decode, whose one query is the last token"),
        (["--decode", "1", "--values"], "--decode came with --values, whose sizes are fixed"),
        (["--decode", "1000000"], "a step has 200,001,200 numbers, expected at most 10,000,000"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, text):
    result = run("explain", "--backend", "numpy", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"mha: {text}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--decode", "0"], ["--decode", "1", "--slots", "17"]])
def test_numbers_of_tokens_and_slots_are_bounded(arguments):
    result = run("explain", *arguments)
    assert (result.exit_code, arguments[-2] in result.stderr) == (2, True)

"""`parity.audit_taps`: the attention of a model that is no tree of modules, from what entered and left its layers.

Letters: B batch, Q queries, T tokens, S slots of a cache.
"""

import json

import numpy as np
import pages
import pytest
import safetensors.numpy

import mha
from mha.models.audit.layers.reference import Reference
from mha.parity import audit_taps
from mha.weights.argument_names import LackingError

from . import tiny_llama as llama

B, T, S, FIRST = 2, 11, 13, 7
LENGTHS = np.array([S, S])
NAMES = [f"layers.{n}" for n in range(llama.LAYERS)]


@pytest.fixture(scope="module")
def arrays():
    """The arrays of a tiny random LLaMA."""
    return llama.checkpoint(np.random.default_rng(1706))


@pytest.fixture
def place(arrays, tmp_path):
    """A checkpoint of it: weights and configuration."""
    there = tmp_path / "checkpoint"
    there.mkdir()
    safetensors.numpy.save_file(arrays, there / "model.safetensors")
    (there / "config.json").write_text(json.dumps(llama.CONFIG))
    return there


def generated(arrays, wrong=(None, "")):
    """The taps of a prompt and of two words after it, each with the keys of all tokens so far."""
    from . import llama_of_jax as port

    tokens = np.random.default_rng(1).integers(1, llama.WORDS, (B, T))
    params, cache, entered, start = port.ported(arrays), port.empty_cache(B, S), None, 0
    for portion in np.split(tokens, [FIRST, FIRST + 1], 1):
        _, cache, taps = port.step(params, portion, cache, start, LENGTHS, wrong)
        own = [np.asarray(X) for X, _ in taps]
        entered = own if entered is None else [np.concatenate(pair, 1) for pair in zip(entered, own, strict=True)]
        start += portion.shape[1]
        yield {
            name: {"queries": X, "keys": every, "values": every, "output": output}
            for name, (X, output), every in zip(NAMES, taps, entered, strict=True)
        }


@pytest.mark.backends("jax")
def test_functions_of_jax_are_judged_by_a_checkpoint_with_a_cache_and_without(arrays, place):
    for taps in generated(arrays):
        report = audit_taps(taps, like=place)
        assert [row.verdict for row in report.layers] == ["same"] * llama.LAYERS, report
        assert report
        assert report.truth == str(place)
        assert report.weighed
    assert report.sight is not None


@pytest.mark.backends("jax")
def test_the_page_runs(arrays, place, monkeypatch):
    from . import llama_of_jax as port

    def step(params, tokens, cache):
        logits, cache, taps = port.step(params, tokens, cache, 0, LENGTHS)
        return logits, cache, [(X, X, output) for X, output in taps]

    monkeypatch.chdir(place.parent)
    place.rename(place.parent / "checkpoint_dir")
    (code,) = [one for one in pages.code("docs/porting.md") if "audit_taps" in one]
    tokens = np.random.default_rng(1).integers(1, llama.WORDS, (B, T))
    names = {"params": port.ported(arrays), "cache": port.empty_cache(B, S), "tokens": tokens, "step": step}
    names["parity"] = mha.parity
    exec(code, names)
    assert names["report"]
    assert len(names["report"].layers) == llama.LAYERS


# The mistake in a port, and what the reason says.
WRONG = {"mask": "causal order is ignored", "scale": "no scale", "heads": "heads of keys are tiled"}


@pytest.mark.backends("jax")
@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_in_one_layer_is_named_and_no_other_layer_blamed(arrays, place, mistake):
    report = audit_taps(next(generated(arrays, (1, mistake))), like=place)
    assert [row.verdict for row in report.layers] == ["same", "differs", "same"]
    assert report.first.path == "layers.1"
    assert not report
    assert WRONG[mistake] in str(report)


@pytest.mark.backends("jax")
def test_weights_that_were_taken_wrongly_are_named(arrays, place):
    name = "model.layers.2.self_attn.{}_proj.weight"
    swapped = {name.format("k"): arrays[name.format("v")], name.format("v"): arrays[name.format("k")]}
    report = audit_taps(next(generated(arrays | swapped)), like=place)
    assert [row.path for row in report.wrong] == ["layers.2"]
    assert "keys are projected as values" in str(report)


def one_tap(rng, backend, **options):
    """A layer, and a tap of a call of it as its user makes it."""
    layer = mha.MultiHeadAttention(12, 3, seed=1, bias=True, dtype="float64", **options)
    X, Y = (rng.normal(size=(2, size, 12)) for size in (5, 7))
    return layer, X, Y


def test_layers_may_be_told_by_mha_and_taps_say_how_they_are_called(rng, backend):
    layer, X, Y = one_tap(rng, backend)
    lengths = np.array([7, 3])
    outputs = layer(X, X, X, causal=True), layer(X, Y, Y, lengths)
    with mha.core.dispatch.load(backend).context("float64"):
        X, Y, *outputs = (mha.tensor(A, backend=backend) for A in (X, Y, *outputs))
    taps = {
        "own": {"queries": X, "output": outputs[0], "causal": True},
        "cross": {"queries": X, "keys": Y, "output": outputs[1], "valid_lens": lengths},
    }
    report = audit_taps(taps, layers={"*": layer})
    assert {row.path: row.verdict for row in report.layers} == {"cross": "same", "own": "same"}
    taps["own"].pop("causal")
    report = audit_taps(taps, layers={"*": layer})
    assert report.first.path == "own"
    assert audit_taps(taps, layers={"cross": layer, "own": None})


def test_steps_of_a_tap_say_where_it_goes_wrong(rng):
    layer, X, _ = one_tap(rng, "numpy")
    steps = layer.trace(X, X, X)
    wrong = steps["merged"][..., ::-1] @ layer.weights["W_o.kernel"] + layer.weights["W_o.bias"]
    tap = {"queries": X, "output": wrong} | {name: steps[name] for name in ("W_q", "scores", "weights", "merged")}
    report = audit_taps({"one": tap}, layers={"one": layer}).first.report
    assert {row.name: row.passed for row in report.rows} == {
        "W_q": True, "scores": True, "weights": True, "merged": True, "output": False,
    }  # fmt: skip


def test_state_dicts_need_options_that_names_do_not_show(arrays, rng):
    X = rng.normal(size=(2, 5, llama.D)).astype("float32")
    rotary = mha.Rotary(base=llama.BASE)
    options = {"num_heads": llama.H, "rotary": rotary, "causal": True}
    name = "model.layers.0.self_attn"
    layer = mha.from_native(arrays, prefix=name, num_heads=llama.H, rotary=rotary)
    taps = {"layers.0": {"queries": X, "output": layer(X, X, X, causal=True)}}
    report = audit_taps(taps, like=arrays, layers={"layers.*": options})
    assert report, report
    assert report.notes == ("nothing was given of 2 of the 3 layers of the arrays of like",)
    taps["layers.0"]["causal"] = False
    assert audit_taps(taps, like=arrays, layers={"layers.*": options}).first.path == "layers.0"
    report = audit_taps(taps, like=arrays)
    assert report.unknown[0].note.startswith("num_heads is not given")
    assert (
        audit_taps({"other": taps["layers.0"]}, like=arrays).unknown[0].note == "the arrays of like has no layer for it"
    )


def by_other_names(arrays, apart):
    """The arrays of the first layer as Flax has them: kernels (in, out), or with an axis for heads."""
    found = {}
    for name in "qkvo":
        own = arrays[f"model.layers.0.self_attn.{name}_proj.weight"].T
        if apart:
            own = own.reshape(llama.H, llama.d, llama.D) if name == "o" else own.reshape(llama.D, -1, llama.d)
        found[f"layers.0.self_attn.{name}_proj.kernel"] = own
    return found


@pytest.mark.parametrize("apart", [False, True])
def test_kernels_of_flax_have_their_own_layout(arrays, apart, rng):
    rotary = mha.Rotary(base=llama.BASE)
    layer = mha.from_native(arrays, prefix="model.layers.0.self_attn", num_heads=llama.H, rotary=rotary)
    X = rng.normal(size=(2, 5, llama.D)).astype("float32")
    options = {"num_heads": llama.H, "rotary": rotary, "causal": True}
    taps = {"layers.0": {"queries": X, "output": layer(X, X, X, causal=True)}}
    assert audit_taps(taps, like=by_other_names(arrays, apart), layers={"*": options})


X = np.zeros((2, 3, 4))
GOOD = {"a": {"queries": X, "output": X}}
BAD = {
    "taps is 3 .int., expected a mapping of layers": (3, None),
    "taps has 3 .int. for 'a', expected a mapping of arrays": ({"a": 3}, None),
    "taps has 'query' for 'a', expected some of queries": ({"a": {"query": X}}, None),
    "taps has no output for 'a'; it has queries": ({"a": {"queries": X}}, None),
    "output of 'a' has shape .2, 3., expected": ({"a": {"queries": X, "output": X[..., 0]}}, None),
    "mask of 'a' is 'x' .str., expected an array of numpy": ({"a": {"queries": X, "mask": "x", "output": X}}, None),
    "layers is 3 .int., expected a dict": (GOOD, 3),
    "layers has 'b', which fits no tap; there are a": (GOOD, {"b": None}),
    "layers has 3 .int. for 'a', expected an mha layer": (GOOD, {"a": 3}),
    "layers has 'scheme' for 'a', expected some of num_heads": (GOOD, {"a": {"scheme": "bert"}}),
}


@pytest.mark.parametrize("message", BAD)
def test_arguments_that_are_wrong_are_named(message):
    taps, layers = BAD[message]
    with pytest.raises((TypeError, ValueError), match=message):
        audit_taps(taps, layers=layers)


def test_a_layer_that_lacks_an_option_is_not_known_the_second_time_either(arrays):
    reference = Reference(arrays, None, "arrays")
    for _ in range(2):
        with pytest.raises(LackingError, match="rotary is not given"):
            reference.layer(("llama", "model.layers.0.self_attn."), {"num_heads": llama.H}, 1)
    X = np.zeros((B, T, llama.D), "float32")
    one = {"queries": X, "output": X}
    taps = {"layers.0": one, "layers.0.self_attn": one}  # which are the same layer of the arrays
    report = audit_taps(taps, like=arrays, layers={"*": {"num_heads": llama.H}})
    assert [row.verdict for row in report.layers] == ["not known"] * 2, report

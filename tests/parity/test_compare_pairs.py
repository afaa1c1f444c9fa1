"""`mha compare` of whole models: which layers belong together, which are swapped, which have no partner."""

import json

import numpy as np
import pytest
import safetensors.numpy
from commands import run

import mha
from mha import parity
from mha.weights.schemes import from_canonical

from .ported import H, made, stored, with_weights

GPT2, TIMM = "h.{}.attn.", "blocks.{}.attn."
LAYERS = [made(seed) for seed in range(6)]


@pytest.fixture
def compare(tmp_path):
    """Compare two files of these layers, with GPT-2's names in A."""

    def compare(ours, theirs, scheme="timm", prefix=TIMM, **options):
        a = stored(ours, "gpt2", GPT2, tmp_path / "a.safetensors")
        b = stored(theirs, scheme, prefix, tmp_path / "b.safetensors", options.pop("dtype", None))
        return parity.compare_files(a, b, **{"num_heads": H} | options), (a, b)

    return compare


def arrays_of(layer, scheme, prefix):
    """The arrays of a layer as a scheme names and stores them."""
    arrays = from_canonical(layer.config, layer.weights, scheme)
    return {prefix + name: np.ascontiguousarray(X) for name, X in arrays.items()}


def prefixes(report):
    """The numbers of the layers in A and in B, pair by pair."""
    return [tuple(int(prefix.split(".")[1]) for _, prefix in pair) for pair in report.layers]


def of(places):
    """The layers in these places."""
    return [LAYERS[i] for i in places]


# 1. By prefixes


def test_equal_prefixes_come_first(compare):
    report, paths = compare(of([0, 1, 2, 3]), of([0, 3, 2, 1]), "gpt2", GPT2)
    assert prefixes(report) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [bool(one) for one in report.reports] == [True, False, True, False]
    assert [tuple(prefix for _, prefix in pair) for pair in report.swapped] == [("h.1.attn.", "h.3.attn.")]
    assert report.verdict.endswith("; but h.1.attn. and h.3.attn. are swapped")
    result = run("compare", *paths, "--num-heads", "3")
    assert result.exit_code == 1
    assert "\nh.1.attn. of A is h.3.attn. of B\nh.3.attn. of A is h.1.attn. of B\n" in result.stdout


def test_a_layer_that_was_copied_over_another_one_is_no_move(compare):
    report, _ = compare(of([0, 1, 2]), of([0, 2, 2]), "gpt2", GPT2)
    assert report.moves == ()  # the third is in its place, too
    assert "that of h.2.attn." in report.verdict


def test_the_bias_of_another_layer_is_said_where_outputs_do_not_show_it(compare):
    foreign = with_weights(LAYERS[1], **{"W_k.bias": LAYERS[2].weights["W_k.bias"]})
    report, _ = compare(of([0, 1, 2]), [LAYERS[0], foreign, LAYERS[2]], "gpt2", GPT2)
    assert report
    how = "W_k.bias: that of h.2.attn., which the softmax takes back"
    assert report.reports[1].verdict == f"the same layer, stored in another way: {how}"


# 2. By weights


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_layers_are_found_by_their_weights(compare, dtype):
    report, _ = compare(of([0, 1, 2, 3]), of([5, 0, 2, 3]), dtype=dtype)
    assert prefixes(report) == [(0, 1), (1, 0), (2, 2), (3, 3)]
    assert [bool(one) for one in report.reports] == [True, False, True, True]
    assert report.notes == (
        "paired by their weights, since their prefixes differ: 3 layers",
        "paired by their order, since their prefixes differ: 1 layer",
    )


def with_transposed(layer, *names):
    """The layer with some kernels transposed."""
    return with_weights(layer, **{f"{name}_kernel": layer.weights[f"{name}.kernel"].T for name in names})


def test_layers_with_mistakes_are_found_all_the_same(compare):
    wrong = [with_weights(LAYERS[i], W_v_kernel=LAYERS[i].weights["W_k.kernel"]) for i in (2, 1)]
    report, _ = compare(of([1, 2]), wrong)
    assert prefixes(report) == [(0, 1), (1, 0)]
    assert not any(report.reports)
    report, _ = compare(of([1, 2]), [with_transposed(LAYERS[i], "W_q", "W_k", "W_o") for i in (2, 1)])
    assert prefixes(report) == [(0, 1), (1, 0)]


def test_layers_under_the_numbers_of_others_are_in_another_order(compare):
    report, paths = compare(of([0, 1, 2, 3]), of([0, 3, 2, 1]))
    assert prefixes(report) == [(0, 0), (1, 3), (2, 2), (3, 1)]
    assert all(report.reports)
    assert not report
    assert report.verdict == "all 4 layers are the same; but h.1.attn. and h.3.attn. are swapped"
    result = run("compare", *paths, "--num-heads", "3")
    assert result.exit_code == 1
    assert "\nh.1.attn. of A is blocks.3.attn. of B\n" in result.stdout


def test_other_names_say_nothing_about_the_order(compare, tmp_path):
    names = {"x.0.attn.": 1, "y.1.attn.": 0, "x.2.attn.": 2}
    arrays = {key: X for name, i in names.items() for key, X in arrays_of(LAYERS[i], "timm", name).items()}
    safetensors.numpy.save_file(arrays, tmp_path / "c.safetensors")
    _, (a, _) = compare(of([0, 1, 2]), of([0, 1, 2]))
    report = parity.compare_files(a, tmp_path / "c.safetensors", num_heads=H)
    assert report
    assert [pair[1][1] for pair in report.layers] == ["y.1.attn.", "x.0.attn.", "x.2.attn."]


# 3. Another number of layers


def test_a_layer_that_is_missing_is_said(compare):
    report, paths = compare(of([0, 1, 2, 3]), of([0, 1, 3]))
    assert prefixes(report) == [(0, 0), (1, 1), (3, 2)]
    assert all(report.reports)
    assert not report
    assert report.alone == ((("gpt2", "h.2.attn."),), ())
    assert report.verdict == "all 3 layers are the same; but no partner for 1 layer of A"
    result = run("compare", *paths, "--num-heads", "3")
    assert result.exit_code == 1
    assert "\nwithout a partner: 1 layer of A (h.2.attn.)\n" in result.stdout
    assert "4 layers\n" not in result.stdout
    back = parity.compare_files(*reversed(paths), num_heads=H)
    assert back.verdict == "all 3 layers are the same; but no partner for 1 layer of B"


def test_files_are_compared_as_far_as_they_go(compare):
    report, _ = compare(of([0, 1]), of([5, 4, 3]))
    assert prefixes(report) == [(0, 0), (1, 1)]
    assert report.verdict.startswith("2 of 2 layers differ; the first: ")
    assert report.verdict.endswith("; but no partner for 1 layer of B")
    report, _ = compare(of([0, 1, 2]), of([0, 1]), "gpt2", GPT2)
    assert report.verdict == "all 2 layers are the same; but no partner for 1 layer of A"
    report, _ = compare(of([2]), of([0, 1, 2]))
    assert report.verdict == "the same layer: the same bits; but no partner for 2 layers of B"


def test_a_prefix_chooses_a_layer_and_its_partner(compare):
    report, paths = compare(of([0, 1, 2, 3]), of([5, 0, 2]), prefix_a="h.0.attn")
    assert prefixes(report) == [(0, 1)]
    assert report  # no other layer counts
    assert report.alone == ((), ())
    report = parity.compare_files(*paths, prefix_b="blocks.2.attn", num_heads=H)
    assert prefixes(report) == [(2, 2)]
    result = run("compare", *paths, "--prefix-a", "h.3.attn", "--num-heads", "3")
    assert result.exit_code == 2
    assert "b.safetensors does not hold the layer that is asked for: 3 attention layers are there" in result.stderr


# 4. What one of the files does not say


@pytest.fixture
def models(tmp_path):
    """A layer with a window, a scale and a rotation in mha's own file, and in one that says nothing of them."""
    options = {"window": (2, 0), "scale": 0.7, "softcap": 5.0, "rotary": mha.Rotary(base=300.0)}
    layer, plain = made(bias=False, **options), made(bias=False)
    plain.weights = layer.weights
    layer.save(tmp_path / "own.safetensors")
    return str(tmp_path / "own.safetensors"), stored([plain], "torch", "a.", tmp_path / "plain.safetensors")


def test_options_are_the_other_files_where_one_does_not_say_them(models):
    for paths, names in ((models, "BA"), (models[::-1], "AB")):
        report = parity.compare_files(*paths)
        assert report, str(report)
        noted = [f"{names[0]} does not say {name}: " for name in ("num_heads", "scale", "softcap", "window", "rotary")]
        assert [note.partition(": ")[0] + ": " for note in report.notes] == noted
        assert all(note.endswith(f" is taken from {names[1]}") for note in report.notes)


def test_a_file_that_says_an_option_keeps_it(models, tmp_path):
    plain = mha.load(models[1], num_heads=H)
    plain.save(tmp_path / "none.safetensors")
    report = parity.compare_files(models[0], tmp_path / "none.safetensors")
    assert not report
    assert {name for name, _, _ in report.reports[0].options} == {"window", "scale", "softcap", "rotary"}


def test_each_file_may_say_what_the_other_does_not(tmp_path):
    layer = mha.MultiHeadAttention(24, 4, num_key_value_heads=2, seed=0, backend="numpy")
    (tmp_path / "meta").mkdir()
    a = stored([layer], "llama", "layers.0.self_attn.", tmp_path / "a.safetensors")
    b = stored([layer], "meta", "layers.0.attention.", tmp_path / "meta" / "b.safetensors")
    (tmp_path / "meta" / "params.json").write_text(json.dumps({"dim": 24, "n_heads": 4, "n_kv_heads": 2}))
    result = run("compare", a, b)  # neither says the rotation, and only B says the number of heads
    assert result.exit_code == 2
    assert f"mha: {a} (A) and {b} (B) do not say everything: --rotary is not given" in result.stderr
    report = parity.compare_files(a, b, rotary=None)
    assert report
    assert report.notes == ("A does not say num_heads: 4 is taken from B",)


def test_what_b_alone_lacks_is_said_of_b(tmp_path):
    layer = mha.MultiHeadAttention(24, 4, seed=0, backend="numpy")
    a = stored([layer], "torch", "a.", tmp_path / "a.safetensors")
    b = str(tmp_path / "b.safetensors")
    norms = {f"b.{letter}_norm.weight": np.ones(6, "float32") for letter in "qk"}
    safetensors.numpy.save_file(arrays_of(layer, "llama", "b.") | norms, b)
    for first, second, side in ((a, b, "B"), (b, a, "A")):
        result = run("compare", first, second, "--num-heads", "4", "--rotary", "none")
        assert result.exit_code == 2
        assert f"mha: {b} ({side}) does not say everything: --qk-norm is not given" in result.stderr


# 5. Checkpoints of several files


def sharded(folder, layers, count):
    """A directory with the layers' arrays dealt out to some files in turn, as a checkpoint in parts has them."""
    folder.mkdir()
    arrays = [
        item for i, layer in enumerate(layers) for item in arrays_of(layer, "bert", f"layer.{i}.attention.").items()
    ]
    names = [f"model-{at + 1:05}-of-{count:05}.safetensors" for at in range(count)]
    for at, name in enumerate(names):
        safetensors.numpy.save_file(dict(arrays[at::count]), folder / name)
    places = {name: names[i % count] for i, (name, _) in enumerate(arrays)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "num_attention_heads": H}))
    return str(folder)


def test_a_directory_of_shards_is_compared_with_a_file(compare, tmp_path):
    _, (_, ported) = compare(of([0]), of([0, 1, 2]))
    directory = sharded(tmp_path / "bert", of([0, 1, 2]), 5)
    report = parity.compare_files(directory, ported)
    assert report, str(report)
    assert report.others == ((), ("embeddings",))
    assert "B does not say num_heads: 3 is taken from A" in report.notes
    wrong = sharded(tmp_path / "wrong", of([0, 2, 1]), 2)
    report = parity.compare_files(directory, wrong)
    assert report.verdict.endswith("; but layer.1.attention. and layer.2.attention. are swapped")
    assert run("compare", directory, wrong).exit_code == 1

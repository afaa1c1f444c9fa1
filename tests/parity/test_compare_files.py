"""`mha compare` and `parity.compare_files`: the layers of two files, their weights and what they compute."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from commands import refused, run
from pages import text

import mha
from mha import parity
from mha.core.options.config import numpy_dtype

from .ported import H, made, neighbours, stored, with_weights

LEFT_OUT = "not compared: 1 array of B (embeddings)"  # of a file that `stored` writes, beside one of mha's own
BERT, LLAMA = "layer.0.attention.", "model.layers.0.self_attn."


@pytest.fixture
def ours(tmp_path):
    """A layer and the file in which mha saved it."""
    layer = made()
    layer.save(tmp_path / "ours.safetensors")
    return layer, str(tmp_path / "ours.safetensors")


# 1. The same layer


@pytest.mark.parametrize(
    ("scheme", "prefix"), [("torch", "encoder."), ("bert", BERT), ("keras", "a."), ("gpt2", "h.0.")]
)
def test_the_same_layer_in_another_scheme(ours, tmp_path, scheme, prefix):
    layer, path = ours
    other = stored([layer], scheme, prefix, tmp_path / "theirs.safetensors")
    for a, b in ((path, other), (other, path)):
        report = parity.compare_files(a, b)
        assert report, str(report)
        assert [row.name for row in report.reports[0].rows] == list(layer.weights)
        assert all(
            (row.verdict, row.note, row.difference) == ("the same bits", "", 0) for row in report.reports[0].rows
        )
        assert report.reports[0].outputs.ratio <= 1
        assert report.verdict == "the same layer: the same bits"
    result = run("compare", path, other)
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"^W_q\.kernel +\(12, 12\) +the same bits +0 *$", result.stdout, re.MULTILINE)
    assert result.stdout.endswith(f"the same layer: the same bits\n{LEFT_OUT}\n")
    said = "B does not say num_heads: 3 is taken from A"
    assert (said in result.stdout) == (scheme != "keras")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_rounded_copy_is_the_same_to_what_its_dtype_explains(ours, tmp_path, dtype):
    layer, path = ours
    other = stored([layer], "bert", BERT, tmp_path / "theirs.safetensors", dtype)
    for a, b in ((path, other), (other, path)):
        report = parity.compare_files(a, b)
        assert report, str(report)
        assert {row.verdict for row in report.reports[0].rows} == {f"the same to {dtype}"}
        assert 0 < report.reports[0].rows[0].difference < 0.01
        assert report.verdict == f"the same layer: the same to {dtype}"
        assert report.reports[0].outputs.dtype == dtype
    rounded = {name: X.astype(numpy_dtype(dtype)).astype("float32") for name, X in layer.weights.items()}
    back = with_weights(layer, **rounded)
    assert parity.compare_layers(layer, back).verdict == f"the same layer: the same to {dtype}"  # float32 both
    widened = parity.compare_files(other, stored([back], "bert", BERT, tmp_path / "wide.safetensors"), num_heads=H)
    assert widened.verdict == "the same layer: the same numbers"
    assert ("dtype", dtype, "float32") in widened.reports[0].options


# 2. The same layer, but for


def test_a_transposed_and_rounded_weight_is_both(ours, tmp_path):
    layer, path = ours
    wrong = with_weights(layer, W_q_kernel=layer.weights["W_q.kernel"].T)
    report = parity.compare_files(path, stored([wrong], "bert", BERT, tmp_path / "theirs.safetensors", "bfloat16"))
    assert report.reports[0].rows[0].note == "transposed, to bfloat16"
    assert "W_q.kernel is not transposed" in report.reports[0].outputs.diagnosis.mistakes
    assert not report


def test_dropped_biases_and_swapped_kernels(ours, tmp_path):
    layer, path = ours
    bare = made(bias=False)
    bare.weights = {name: layer.weights[name] for name in bare.weights}
    report = parity.compare_files(path, stored([bare], "bert", BERT, tmp_path / "bare.safetensors")).reports[0]
    assert report.verdict == "the same layer, but for W_q.bias, W_k.bias, W_v.bias, W_o.bias: not in B"
    assert "every bias is dropped" in report.outputs.diagnosis.mistakes
    assert parity.compare_layers(bare, layer).verdict.endswith(": not in A")
    W = layer.weights
    swapped = parity.compare_layers(layer, with_weights(layer, W_q_kernel=W["W_k.kernel"], W_k_kernel=W["W_q.kernel"]))
    assert swapped.verdict == "the same layer, but for W_q.kernel: A's W_k.kernel; W_k.kernel: A's W_q.kernel"
    assert "Q and K are swapped" in swapped.outputs.diagnosis.mistakes


def test_it_is_printed_as_the_page_shows_it(tmp_path, monkeypatch):
    layers = [made(0), made(1)]
    wrong = with_weights(layers[0], W_q_kernel=layers[0].weights["W_q.kernel"].T)
    stored(layers, "bert", "encoder.layer.{}.attention.", tmp_path / "bert.safetensors")
    stored([wrong], "keras", "attention.", tmp_path / "ported.safetensors")
    monkeypatch.chdir(tmp_path)
    page = text("docs/one-layer.md")
    command, shown = re.search(r"```sh\nmha (compare .*?)\n```\n\n```text\n(.*?)```", page, re.S).groups()

    def without_digits(printed):  # the last of them are the processor's; the page breaks long lines
        return re.sub(r"[\d.e+-]+", "0", printed).split()

    result = run(*command.split())
    assert (result.exit_code, without_digits(result.stdout)) == (1, without_digits(shown))


def test_layers_of_other_shapes(ours, tmp_path):
    _, path = ours
    other = mha.MultiHeadAttention(20, 4, bias=True, seed=0, backend="numpy")
    result = run("compare", path, stored([other], "bert", BERT, tmp_path / "theirs.safetensors"), "--num-heads", "4")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "num_hiddens: 12 in A, 20 in B" in result.stdout
    assert re.search(
        r"^W_q\.kernel +\(12, 12\) and \(20, 20\) +DIFFERS +of another shape *$", result.stdout, re.MULTILINE
    )
    assert "outputs: none, since no inputs fit both" in result.stdout
    assert result.stdout.endswith(f"not the same layer: it has other sizes\n{LEFT_OUT}\n")


# 3. Options of models, and what a file does not say


@pytest.fixture
def rotated(tmp_path):
    """A layer whose positions rotate, as Hugging Face stores it, with config.json, and as Meta does, without."""
    layer = mha.MultiHeadAttention(32, 4, num_key_value_heads=2, rotary=mha.Rotary(base=500.0), seed=0, backend="numpy")
    plain = mha.MultiHeadAttention(32, 4, num_key_value_heads=2, backend="numpy")
    (tmp_path / "hf").mkdir()
    (tmp_path / "meta").mkdir()
    told = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 500}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(told))
    plain.weights = layer.weights
    first = stored([plain], "llama", LLAMA, tmp_path / "hf" / "model.safetensors")
    turned = {name: neighbours(plain.weights[name], heads) for name, heads in (("W_q.kernel", 4), ("W_k.kernel", 2))}
    second = stored([with_weights(plain, **turned)], "meta", "layers.0.attention.", tmp_path / "meta" / "a.safetensors")
    wrong = stored([plain], "meta", "layers.0.attention.", tmp_path / "meta" / "wrong.safetensors")
    return first, second, wrong


def test_pairs_that_lie_and_turn_another_way_are_the_same_layer(rotated):
    first, second, wrong = rotated
    report = parity.compare_files(first, second)
    assert report
    assert report.verdict == (
        "the same layer, stored in another way: W_q.kernel, W_k.kernel: rotary pairs, neighbours for halves"
    )
    back = parity.compare_files(second, first)
    assert back.verdict.endswith(": rotary pairs, halves for neighbours")
    result = run("compare", first, wrong)
    assert result.exit_code == 1
    assert "B does not say rotary: Rotary(base=500, dim=8, interleaved=True) is taken from A" in result.stdout
    assert "why: rotary components are paired the other way" in result.stdout


def test_options_are_for_what_neither_file_says(rotated, tmp_path):
    _, second, wrong = rotated
    said = f"mha: {second} (A) and {wrong} (B) do not say everything: --num-heads is not given"
    assert said in run("compare", second, wrong).stderr
    arguments = ("compare", second, second)
    told = run(*arguments, "--num-heads", "4")
    assert "--rotary is not given" in told.stderr
    assert "pass --rotary BASE as the model's configuration says, or --rotary none if" in told.stderr
    assert run(*arguments, "--num-heads", "4", "--rotary", "500").exit_code == 0
    assert run(*arguments, "--num-heads", "4", "--rotary", "none").exit_code == 0
    assert run("compare", second, wrong, "--num-heads", "4", "--rotary", "500").exit_code == 1


# 4. Several layers


@pytest.fixture
def models(tmp_path):
    """Two files of 12 layers each, of the same numbers, and a way to write others."""
    layers = [made(seed) for seed in range(12)]

    def write(changed, count=12):
        chosen = [changed.get(i, layer) for i, layer in enumerate(layers[:count])]
        return stored(chosen, "timm", "blocks.{}.attn.", tmp_path / "timm.safetensors")

    return layers, stored(layers, "gpt2", "h.{}.attn.", tmp_path / "gpt2.safetensors"), write


def test_all_layers_in_the_order_of_their_numbers(models):
    _, first, write = models
    result = run("compare", first, write({}), "--num-heads", "3")
    assert result.exit_code == 0
    pairs = re.findall(
        r"^h\.(\d+)\.attn\. +blocks\.(\d+)\.attn\. +0 +the same layer: the same bits *$", result.stdout, re.M
    )
    assert pairs == [(str(i), str(i)) for i in range(12)]
    everything = "all 12 layers are the same\nnot compared: 1 array of A (embeddings); 1 array of B (embeddings)\n"
    assert result.stdout.endswith(everything)


def test_the_first_layer_that_differs_in_detail(models):
    layers, first, write = models
    wrong = {
        10: with_weights(layers[10], W_v_kernel=layers[10].weights["W_v.kernel"].T),
        3: with_weights(layers[3], **{name: layers[4].weights[name] for name in ("W_q.kernel", "W_q.bias")}),
    }
    report = parity.compare_files(first, write(wrong), num_heads=H)
    assert [bool(one) for one in report.reports] == [i not in wrong for i in range(12)]
    assert (
        report.verdict
        == "2 of 12 layers differ; the first: the same layer, but for W_q.kernel, W_q.bias: that of h.4.attn."
    )
    assert report.reports[3].outputs.diagnosis.mistakes == ("W_q of another layer",)
    assert report.reports[10].verdict == "the same layer, but for W_v.kernel: transposed"
    printed = str(report)
    assert "\nthe first that differs: scheme gpt2, prefix h.3.attn.; scheme timm, prefix blocks.3.attn. in" in printed
    assert printed.count("W_q.kernel  (12, 12)") == 1
    rows = [line.split()[:2] for line in printed.splitlines() if line.startswith("h.")]
    assert rows == [[f"h.{i}.attn.", f"blocks.{i}.attn."] for i in range(len(report.layers))]
    one = parity.compare_files(first, write(wrong), prefix_a="h.10.attn", prefix_b="blocks.10.attn", num_heads=H)
    assert one.layers == ((("gpt2", "h.10.attn."), ("timm", "blocks.10.attn.")),)
    assert "W_v.kernel is not transposed" in one.reports[0].outputs.diagnosis.mistakes


# 5. What is wrong


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("absent",), "mha: there is no file "),
        (("empty",), "empty is a directory without weights, expected model.safetensors or "),
        (("pickle",), "pickle is a pickle, which may run code and is never opened; if you trust"),
        (("none",), "none does not hold the layer that is asked for: no attention layer of a known scheme is there"),
        (("nan",), "nan does not hold the layer that is asked for: layer.0.attention.self.query.weight holds NaN"),
        (("ours", "--num-heads", "3"), "--num-heads 3 is not needed: both files say it themselves; leave it out"),
        (("ours", "--from-b", "brt"), "--from-b is 'brt', expected one of auto, mha"),
        (("ours", "--from-a", "gpt2"), "with --from-a gpt2"),
        (("theirs", "--num-heads", "5"), "expected a multiple of --num-heads = 5"),
        (("theirs", "--prefix-b", "x"), "is there with --from-b auto --prefix-b x; choose --from-b bert"),
        (("theirs", "--rotary", "x"), "--rotary is 'x': base of Rotary"),
        (("theirs", "--rotary", "100"), "--rotary BASE is not needed: both files say it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(ours, tmp_path, arguments, told):
    layer, path = ours
    (tmp_path / "empty").mkdir()
    (tmp_path / "ours").write_bytes((tmp_path / "ours.safetensors").read_bytes())
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94.")
    safetensors.numpy.save_file({"table": np.ones((2, 3))}, tmp_path / "none")
    stored([layer], "bert", BERT, tmp_path / "theirs")
    arrays = safetensors.numpy.load_file(tmp_path / "theirs")
    arrays[f"{BERT}self.query.weight"][0, 0] = np.nan
    safetensors.numpy.save_file(arrays, tmp_path / "nan")
    refused(told, "compare", path, str(tmp_path / arguments[0]), *arguments[1:])


def test_wrong_arguments_of_the_functions(ours):
    layer, path = ours
    with pytest.raises(TypeError, match=r"b is a str, expected an mha\.MultiHeadAttention"):
        parity.compare_layers(layer, path)
    with pytest.raises(TypeError, match="window is no argument here, expected one of num_heads, rotary, qk_norm"):
        parity.compare_files(path, path, window=(1, 1))
    with pytest.raises(
        ValueError, match=r"no attention layer is there with scheme_b='bert', prefix_b=None; choose sch"
    ):
        parity.compare_files(path, path, scheme_b="bert")

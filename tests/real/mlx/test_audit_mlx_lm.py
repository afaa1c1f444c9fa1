"""Audits and records of models of mlx-lm: right ones are not blamed, a mistake is named where it is."""

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import save_config, save_model
from real_mlx.small_mlx_lm import LAYERS, MISTAKES, MODELS, SIZES, attention_of, empty, made, tokens

from mha import parity

pytestmark = pytest.mark.backends("mlx")


def verdicts(report):
    """The verdicts on the layers, in their order."""
    return [row.verdict for row in report.layers]


def generated(model, count=7):
    """What a model goes on with after one sample of tokens."""
    return [int(token) for token, _ in generate_step(tokens(9)[0], model, max_tokens=count)]


def decoded(model, cache=None, first=6):
    """Call a model with a first part of the tokens, then token by token."""
    cache, ids = make_prompt_cache(model) if cache is None else cache, tokens()
    model(ids[:, :first], cache=cache)
    for at in range(first, ids.shape[1]):
        model(ids[:, at : at + 1], cache=cache)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_right_model_is_right_in_one_pass_and_in_generate(kind, dtype):
    model = made(kind, dtype)
    alone = generated(model)
    report = parity.audit(model, tokens())
    assert report, report
    assert verdicts(report) == ["same"] * LAYERS
    with parity.watch(model) as report:
        assert generated(model) == alone
    assert report, report
    assert all(row.calls > 6 for row in report.layers)
    assert max(row.ratio for row in report.layers) < 0.75


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_caches_of_batches_have_padding(kind):
    model = made(kind)
    caches = [
        BatchRotatingKVCache(one.max_size, [3, 0]) if isinstance(one, RotatingKVCache) else BatchKVCache([3, 0])
        for one in make_prompt_cache(model)
    ]
    with parity.watch(model) as report:
        decoded(model, caches)
    assert report, report
    assert verdicts(report) == ["same"] * LAYERS


def test_caches_are_followed():
    model, ids = made("llama"), tokens()
    with parity.watch(model) as report:
        cache = make_prompt_cache(model)
        model(ids[:, :6], cache=cache)
        trim_prompt_cache(cache, 2)
        model(ids[:, 6:9], cache=list(cache))  # another list of the same caches
        assert cache[0].offset == 7
    assert report, report
    assert "trim" not in vars(cache[0])
    with parity.watch(model) as report:
        model(ids[:, 9:], cache=cache)
    assert {row.note for row in report.layers} == {"its cache has tokens from before this was watched"}


def test_caches_that_forget_or_round_are_not_known():
    model = made("llama", hidden_size=128, head_dim=32)
    with parity.watch(model) as report:
        decoded(model, [RotatingKVCache(8) for _ in model.layers])
    assert {row.note for row in report.layers} == {"its cache keeps 8 of 9 tokens"}
    with parity.watch(model) as report:
        decoded(model, [one.to_quantized(group_size=32, bits=8) for one in make_prompt_cache(model)])
    assert {row.note for row in report.layers} == {"its cache is quantised"}


def test_projections_that_are_adapted_or_quantised_are_not_known():
    model = made("llama", hidden_size=32, intermediate_size=32)
    linear_to_lora_layers(model, 1, {"rank": 2, "scale": 1.0, "dropout": 0.1})
    report = parity.audit(model, tokens())
    assert verdicts(report) == ["same", "same", "not known"]
    assert report.layers[2].note == "model.layers.2.self_attn.q_proj is adapted"
    nn.quantize(model.layers[0], 32, 8)
    report = parity.audit(model, tokens())
    assert report.layers[0].note == "model.layers.0.self_attn.q_proj is quantised"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_one_layer_is_named_and_no_other_layer_blamed(mistake):
    plant, word, cached = MISTAKES[mistake]
    model = made("qwen3")
    plant(attention_of(model))
    report = parity.audit(model, tokens())
    assert bool(report) == cached, report
    with parity.watch(model) as watched:
        decoded(model)
    for one in (watched,) if cached else (report, watched):
        assert verdicts(one) == ["same", "differs", "same"], one
        assert word in str(one)
    assert watched.first.call == (2 if cached else 1)


def test_a_window_that_is_forgotten_is_named():
    model = made("mistral")
    model.layers[2].use_sliding = False
    report = parity.audit(model, tokens())
    assert verdicts(report) == ["same", "same", "differs"]
    assert "window" in str(report)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3_text"])
def test_a_transposed_kernel_is_named_by_another_model_and_by_a_checkpoint(kind, tmp_path):
    right, wrong = made(kind), made(kind)
    save_model(tmp_path, right)
    save_config(dict(vars(right.args)), tmp_path / "config.json")
    attention = attention_of(wrong)
    part = attention["o_proj"] if "o_proj" in attention else attention["c_proj"]
    part.weight = mx.array(np.resize(np.array(part.weight).T, part.weight.shape))
    for like in (right, tmp_path):
        report = parity.audit(wrong, tokens(), like=like)
        assert verdicts(report) == ["same", "differs", "same"], report
        assert report.weighed
        assert parity.audit(right, tokens(), like=like)


def of_transformers(kind="llama"):
    """A model of transformers and one of mlx-lm, with the same weights."""
    import torch
    import transformers

    name = {"llama": "Llama", "gpt2": "GPT2"}[kind]
    said = MODELS[kind][1] | ({"attn_implementation": "eager"})
    said = {key: X for key, X in said.items() if key != "n_ctx"}
    torch.manual_seed(3)
    theirs = getattr(transformers, f"{name}{'ForCausalLM' if kind == 'llama' else 'LMHeadModel'}")(
        getattr(transformers, f"{name}Config")(**said, tie_word_embeddings=True)
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4)
    ours = empty(kind)
    arrays = {key: mx.array(X.numpy()) for key, X in theirs.state_dict().items()}
    if kind == "gpt2":
        arrays = {key.removeprefix("transformer."): X for key, X in arrays.items() if key != "lm_head.weight"}
    ours.load_weights(list(ours.sanitize(arrays).items()))
    mx.eval(ours.parameters())
    return theirs, ours


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_port_is_judged_by_the_model_of_transformers_whose_weights_it_has(kind):
    theirs, ours = of_transformers(kind)
    report = parity.audit(ours, tokens(), like=theirs)
    assert report, report
    assert report.weighed
    attention = attention_of(ours)
    part = attention["k_proj"] if kind == "llama" else attention["c_attn"]
    part.weight = part.weight[::-1]
    assert verdicts(parity.audit(ours, tokens(), like=theirs)) == ["same", "differs", "same"]


def both_recorded(change=None, cached=False):
    """Records of LLaMA in PyTorch and in MLX with the same weights; change: what is changed in the latter."""
    import torch

    theirs, ours = of_transformers()
    if change is not None:
        change(ours)
    with parity.record(theirs, weights=True) as a, torch.no_grad():
        theirs(torch.tensor(np.array(tokens())))
    with parity.record(ours) as b:
        decoded(ours) if cached else ours(tokens())
    return parity.compare_records(a, b)


@pytest.mark.parametrize("cached", [False, True], ids=["one pass", "with a cache"])
def test_records_of_pytorch_and_mlx_agree(cached):
    report = both_recorded(cached=cached)
    assert report, report
    assert report.partners["model.layers.1.self_attn.q_proj"] == "model.layers.1.self_attn.q_proj"
    assert len(report.rows) > 20
    assert all(audit for audit in report.audits if audit is not None)


def _eps(model):
    model.layers[1].post_attention_layernorm.eps = 1e-2


def _scale(model):
    attention_of(model).scale = 1.0


def _base(model):
    attention_of(model).rope = nn.RoPE(SIZES["head_dim"], base=1e4)


WHERE = {
    _eps: ("model.layers.1.post_attention_layernorm", "output"),
    _scale: ("model.layers.1.self_attn.o_proj", "input"),
    _base: ("model.layers.1.self_attn.o_proj", "input"),
}


@pytest.mark.parametrize("change", WHERE)
def test_records_say_where_a_mistake_begins(change):
    report = both_recorded(change)
    assert (report.first.path, report.first.what) == WHERE[change], report

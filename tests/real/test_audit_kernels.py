"""`parity.audit` of models that no table knows: each call of a kernel is judged by what entered it.

Letters: B samples, T tokens, H heads of queries, G of keys and values, d the width of a head.
"""

import copy
import functools
import importlib
import sys

import pytest
import torch
from real import small

from mha import parity

pytestmark = pytest.mark.backends("torch")
LATENT = {"head_dim": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 12}
LATENT |= {"kv_lora_rank": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}
RIGHT = "its kernel is right for what entered it"
GROUPS = {"num_key_value_heads": 2}
# Kinds that no table knows, what their configuration needs beside small sizes, and whether they have a fused kernel.
KINDS = {
    "deepseek_v3": (LATENT, True),
    "diffllama": ({}, False),
    "doge": (GROUPS, True),
    "granite_swa": (GROUPS, False),
    "jetmoe": (GROUPS, True),
    "moonshine": ({}, True),
    "openai_privacy_filter": (GROUPS, False),
    "persimmon": ({}, True),
    "t5gemma": ({}, False),
}


def made(kind, implementation="eager", dtype=torch.float32):
    """A model of a kind with random weights, and the arguments of a call."""
    model = small.model(small.configuration(kind, **KINDS[kind][0])).to(dtype)
    model.set_attn_implementation(implementation)
    given = small.call(model)
    return model, {name: X.to(dtype) if X.is_floating_point() else X for name, X in given.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_right_models_that_no_table_knows_are_right(kind, implementation, dtype):
    if implementation == "sdpa" and not KINDS[kind][1]:
        implementation = "eager"
    model, given = made(kind, implementation, dtype)
    report = parity.audit(model, **given)
    assert report, report
    name = "sdpa_attention_forward" if implementation == "sdpa" else "eager_attention_forward"
    assert {row.kind for row in report.layers} == {name}
    assert all(row.ratio < 0.7 and row.calls in (1, 2) for row in report.layers)
    assert any("neither projections, norms, rotation" in note for note in report.notes)
    assert not any("contradict" in note for note in report.notes)


def attend(q, k, v, mask, scale, softcap=None, sinks=None):
    """Right attention of heads (B, H or G, T, d) by steps, as eager functions have it."""
    k, v = (X.repeat_interleave(q.shape[1] // X.shape[1], 1) for X in (k, v))  # (B, H, T, d)
    scores = q @ k.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : k.shape[2]] @ v


def later(mask):
    """A mask of which each query has that of the next one."""
    return torch.cat([mask[:, :, 1:], mask[:, :, -1:]], 2)


def tiled(X, H):
    """Heads of which head h reads h % G, not h // (H / G)."""
    return X.repeat(1, H // X.shape[1], 1, 1)


def capped_first(q, k, v, mask, scale, softcap, sinks):
    """The cap before the scale."""
    scores = softcap * torch.tanh(q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / softcap) * scale
    scores = scores if mask is None else scores + mask
    return scores.softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


WRONG = {
    "no scale": lambda q, k, v, mask, scale, *rest: attend(q, k, v, mask, 1.0, *rest),
    "the scale twice": lambda q, k, v, mask, scale, *rest: attend(q, k, v, mask, scale**2, *rest),
    "the mask ignored": lambda q, k, v, mask, *rest: attend(q, k, v, None, *rest),
    "a later key": lambda q, k, v, mask, *rest: attend(q, k, v, later(mask), *rest),
    "the first sample's mask": lambda q, k, v, mask, *rest: attend(q, k, v, mask[:1], *rest),
    "groups tiled": lambda q, k, v, *rest: attend(q, tiled(k, q.shape[1]), tiled(v, q.shape[1]), *rest),
    "no sinks": lambda *given: attend(*given[:-1]),
    "sinks twice": lambda *given: attend(*given[:-1], 2 * given[-1]),
    "no cap": lambda *given: attend(*given[:5]),
    "the cap first": capped_first,
    "keys for values": lambda q, k, v, *rest: attend(q, k, k, *rest),
    "heads reversed": lambda *given: attend(*given).flip(1),
}
PLANTED = (
    ("deepseek_v3", "no scale"), ("deepseek_v3", "the mask ignored"), ("deepseek_v3", "a later key"),
    ("diffllama", "the scale twice"), ("diffllama", "heads reversed"), ("diffllama", "the first sample's mask"),
    ("doge", "groups tiled"), ("doge", "the mask ignored"), ("doge", "no scale"),
    ("granite_swa", "no sinks"), ("granite_swa", "sinks twice"), ("granite_swa", "groups tiled"),
    ("jetmoe", "a later key"), ("jetmoe", "keys for values"),
    ("moonshine", "no scale"), ("moonshine", "the mask ignored"), ("moonshine", "a later key"),
    ("openai_privacy_filter", "no sinks"), ("openai_privacy_filter", "groups tiled"),
    ("persimmon", "a later key"), ("persimmon", "the scale twice"), ("persimmon", "the first sample's mask"),
    ("t5gemma", "no cap"), ("t5gemma", "the cap first"), ("t5gemma", "the mask ignored"),
)  # fmt: skip


def plant(monkeypatch, model, path, wrong):
    """Let one layer of a model compute something else."""
    layer = model.get_submodule(path)
    file = sys.modules[type(layer).__module__]
    right = file.eager_attention_forward

    def eager(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, **kwargs):
        if module is not layer:
            more = {} if softcap is None else {"softcap": softcap}
            return right(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **more, **kwargs)
        sinks = getattr(module, "sinks", None)
        return wrong(query, key, value, attention_mask, scaling, softcap, sinks).transpose(1, 2).contiguous(), None

    monkeypatch.setattr(file, "eager_attention_forward", eager)


@pytest.mark.parametrize(("kind", "mistake"), PLANTED, ids=[f"{kind}: {mistake}" for kind, mistake in PLANTED])
def test_a_wrong_kernel_is_found_in_its_layer_alone(monkeypatch, kind, mistake):
    model, given = made(kind)
    paths = [row.path for row in parity.audit(model, **given).layers if "self" in row.path]
    path = next((one for one in reversed(paths) if "decoder" in one), paths[-1])  # an encoder may have no mask
    plant(monkeypatch, model, path, attend)
    assert parity.audit(model, **given)
    monkeypatch.undo()
    plant(monkeypatch, model, path, WRONG[mistake])
    report = parity.audit(model, **given)
    assert [row.path for row in report.wrong] == [path], report
    assert report.first.kind == "eager"
    assert {row.verdict for row in report.layers} == {"same", "differs"}
    with pytest.raises(ValueError, match="a kernel's call"):
        report.first.save("unused.safetensors")


def test_enough_mistakes_are_planted():
    assert len(PLANTED) >= 20
    assert len({kind for kind, _ in PLANTED}) >= 8


def small_llama():
    """A LLaMA of two layers with random weights, and the arguments of a call."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 24, "intermediate_size": 29, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(1)
    return LlamaModel(LlamaConfig(vocab_size=37, **sizes)).eval(), torch.arange(1, 8)[None]


def test_a_wrong_layer_with_a_right_kernel_says_so():
    model, tokens = small_llama()
    model.layers[1].self_attn.scaling = 0.9
    report = parity.audit(model, tokens)
    assert [(row.verdict, row.note) for row in report.layers] == [("same", ""), ("differs", RIGHT)]
    assert report.mended.paths == ("layers.1.self_attn",)


@pytest.mark.parametrize("right", [True, False])
def test_a_layer_that_is_not_known_says_what_its_kernel_is(monkeypatch, right):
    model, tokens = small_llama()
    layer = model.layers[1].self_attn
    torch.nn.utils.parametrizations.weight_norm(layer.q_proj)
    layer.config = copy.copy(layer.config)
    layer.config._attn_implementation = "eager"
    file = importlib.import_module(type(layer).__module__)
    own = file.eager_attention_forward

    def wrong(*args, **options):
        return own(*args, **options | {"scaling": 0.9 * options["scaling"]})

    monkeypatch.setattr(file, "eager_attention_forward", own if right else functools.wraps(own)(wrong))
    report = parity.audit(model, tokens)
    assert [row.verdict for row in report.layers] == ["same", "not known", *["differs"] * (not right)], report
    assert report.unknown[0].note.endswith(
        f"parametrised; {RIGHT if right else 'its kernel is wrong for what entered it'}"
    )
    assert not report

"""Checkpoints that pack queries, keys and values group by group, as GPT-NeoX and Falcon do, with their config.json.

Letters: H heads, G groups, d width of a head.
"""

import json

import numpy as np
import pytest
import safetensors.numpy

import mha
from mha import parity

H = 4
PREFIX = "model.layers.1.self_attn."
PACKED = {
    "GPT-NeoX": (H, {"model_type": "gpt_neox", "use_parallel_residual": True}, {"rotary": mha.Rotary(2)}),
    "GPT-NeoX, older": (
        H,
        {"model_type": "gpt_neox", "rotary_pct": 1.0, "rotary_emb_base": 50},
        {"rotary": mha.Rotary(8, 50.0)},
    ),
    "Falcon": (1, {"model_type": "falcon", "multi_query": True, "parallel_attn": True, "alibi": False}, {}),
    "Falcon, alibi": (H, {"model_type": "falcon", "multi_query": False, "alibi": True}, {"rotary": None}),
    "BLOOM": (H, {"model_type": "bloom", "attention_softmax_in_fp32": True, "n_embed": 32}, {"rotary": None}),
    "Falcon, groups": (2, {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2}, {}),
}


@pytest.mark.parametrize("name", PACKED)
def test_groups_that_are_packed_one_after_another(tmp_path, name):
    groups, model, options = PACKED[name]
    rows = np.arange((H + 2 * groups) * 8.0, dtype="float32")
    arrays = {f"{PREFIX}query_key_value.weight": rows[:, None] * np.ones(32, "float32")}
    arrays |= {f"{PREFIX}dense.weight": np.ones((32, 32), "float32")}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path)
    model = {"num_attention_heads": H} | ({} if "n_embed" in model else {"hidden_size": 32}) | model
    (tmp_path / "config.json").write_text(json.dumps(model))
    found = mha.load(path, "numpy")
    options = {"rotary": mha.Rotary(8), "num_key_value_heads": groups, "value_dim": 8} | options
    assert found.config == mha.MultiHeadAttention(32, H, **options, backend="numpy").config
    split = rows.reshape(groups, -1, 8)  # (G, H / G + 2, d)
    for letter, part in (("q", split[:, :-2]), ("k", split[:, -2]), ("v", split[:, -1])):
        assert np.array_equal(found.weights[f"W_{letter}.kernel"][0], part.ravel())
    for wrong, text in (
        ({"relative": True}, "relative is True, which may change the attention"),
        ({"model_type": "gptj"}, "model_type is 'gptj', whose attention is not known in scheme 'neox'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(model | wrong))
        with pytest.raises(ValueError, match=text):
            mha.load(path)
    with pytest.raises(ValueError, match="has 31 numbers, expected"):
        mha.from_native(arrays | {f"{PREFIX}query_key_value.bias": np.ones(31, "float32")}, num_heads=H, rotary=None)
    with pytest.raises(ValueError, match=r"dense\.weight has 32 inputs, expected a multiple of num_heads = 5"):
        mha.from_native(arrays, num_heads=5, rotary=None)


@pytest.mark.parametrize("factor", [0.1, 0.4])
def test_a_part_that_cannot_turn_is_refused(tmp_path, factor):
    arrays = {"query_key_value.weight": np.ones((96, 32), "float32"), "dense.weight": np.ones((32, 32), "float32")}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    model = {"model_type": "gpt_neox", "num_attention_heads": H, "hidden_size": 32, "rotary_pct": factor}
    (tmp_path / "config.json").write_text(json.dumps(model))
    with pytest.raises(ValueError, match="dim of Rotary is"):
        mha.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("rows", [40, 72])
def test_rows_that_make_no_groups_are_refused(rows):
    arrays = {"query_key_value.weight": np.ones((rows, 32), "float32"), "dense.weight": np.ones((32, 32), "float32")}
    with pytest.raises(
        ValueError, match=rf"query_key_value\.weight has {rows} outputs, expected 32 plus 16 for each group"
    ):
        mha.from_native(arrays, num_heads=H, rotary=None)


def test_whether_positions_rotate_is_asked():
    arrays = {"query_key_value.weight": np.ones((96, 32), "float32"), "dense.weight": np.ones((32, 32), "float32")}
    with pytest.raises(TypeError, match="rotary is not given") as error:
        mha.from_native(arrays, num_heads=H)
    assert OTHERWISE in str(error.value)  # so is how they are packed


OTHERWISE = "where it has all queries, then all keys, then all values, as in ChatGLM2"


def test_a_packing_that_only_a_configuration_says_is_said_to_be_taken_and_the_other_one_is_read(tmp_path):
    random = np.random.default_rng(4)
    wide, d, D = (2 * H, 2), 8, 32  # heads of queries, and of keys
    pieces = [random.normal(size=(count * d, D)).astype("float32") for count in (wide[0], wide[1], wide[1])]
    W_o = random.normal(size=(D, wide[0] * d)).astype("float32")
    names = [f"{PREFIX}{name}_proj.weight" for name in "qkvo"]
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("apart", "blocks", "renamed")}
    blocks = np.concatenate(pieces)  # ((H + 2G) * d, D)
    stored = {
        "apart": dict(zip(names, [*pieces, W_o], strict=True)),
        "blocks": {f"{PREFIX}query_key_value.weight": blocks, f"{PREFIX}dense.weight": W_o},
        "renamed": {f"{PREFIX}qkv_proj.weight": blocks, f"{PREFIX}o_proj.weight": W_o},
    }
    for name, arrays in stored.items():
        safetensors.numpy.save_file(arrays, paths[name])
    given = {"num_heads": wide[0], "rotary": None}
    report = parity.compare_files(paths["apart"], paths["blocks"], **given)
    assert not report
    assert "B has no config.json: query_key_value is taken to lie group by group" in " ".join(str(report).split())
    for more in ({"scheme_b": "neox"}, {}):  # somebody says it, or the names are others
        report = parity.compare_files(paths["apart"], paths["blocks" if more else "renamed"], **given, **more)
        assert bool(report) == (not more)
        assert "query_key_value is taken" not in " ".join(str(report).split())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_there_and_back(rng, groups):
    layer = mha.MultiHeadAttention(32, H, bias=True, num_key_value_heads=groups, value_dim=8, backend="numpy")
    pieces = [rng.normal(size=(count * 8, 33)).astype("float32") for count in (H, groups, groups)]  # a bias beside each
    packed = np.concatenate([piece.reshape(groups, -1, 8, 33) for piece in pieces], 1).reshape(-1, 33)  # ((H+2G)*d, 33)
    arrays = {"query_key_value.weight": packed[:, :32], "query_key_value.bias": packed[:, 32]}
    arrays |= {"dense.weight": np.ones((32, 32), "float32"), "dense.bias": np.ones(32, "float32")}
    found = mha.from_native(arrays, num_heads=H, rotary=None, backend="numpy")
    assert found.config == layer.config
    for letter, piece in zip("qkv", pieces, strict=True):
        assert np.array_equal(found.weights[f"W_{letter}.kernel"], piece[:, :32].T)
        assert np.array_equal(found.weights[f"W_{letter}.bias"], piece[:, 32])

"""Files whose arrays are not read: quantised, adapters, other attention. Each way in calls them by what they are."""

import itertools
import json

import numpy as np
import pytest
from commands import run
from safetensors.numpy import save_file

import mha
from mha import parity

LAYER, D = "model.layers.3.self_attn.", 12
CONFIG = {"model_type": "llama", "hidden_size": D, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4}
CONFIG |= {"rope_theta": 1e4, "max_position_embeddings": 50}
INTS, ROW, KERNEL = np.zeros((3, D), "int32"), np.ones(D, "float32"), np.ones((D, D), "float32")
BYTES, SMALL = np.zeros((72, 1), "uint8"), np.zeros((D, D), "int8")
WORDS = np.zeros((D, 2), "uint32")
# The arrays of each projection, what config.json says, and what is said with it and without it.
QUANTISED = {
    "GPTQ": ({"qweight": INTS, "qzeros": INTS, "scales": ROW, "g_idx": INTS[0]}, "gptq", "by GPTQ", "by GPTQ"),
    "AWQ": ({"qweight": INTS, "qzeros": INTS, "scales": ROW}, "awq", "by AWQ", "by GPTQ or AWQ"),
    "with zeros for biases": (
        {"qweight": INTS, "qzeros": INTS, "scales": ROW, "g_idx": INTS[0], "bias": ROW}, "gptq", "by GPTQ", "by GPTQ",
    ),
    "FP8 by blocks": ({"weight": KERNEL, "weight_scale_inv": ROW}, "fp8", "to FP8", "to FP8"),
    "FP8 by rows": ({"weight": KERNEL, "weight_scale": ROW}, "fbgemm_fp8", "by fbgemm", "to integers or FP8"),
    "NF4": (
        {"weight": BYTES, "weight.absmax": ROW, "weight.quant_map": ROW,
         "weight.quant_state.bitsandbytes__nf4": BYTES[0]},
        "bitsandbytes", "by bitsandbytes to 4 bits", "by bitsandbytes to 4 bits",
    ),
    "int8": (
        {"weight": SMALL, "SCB": ROW, "weight_format": BYTES[0]}, "bitsandbytes", "by bitsandbytes", "by bitsandbytes",
    ),
    "compressed": ({"weight_packed": INTS, "weight_scale": ROW}, "compressed-tensors", "by compr", "by compressed"),
    "compressed, one array": ({"weight": KERNEL, "weight_scale": ROW}, "compressed-tensors", "by compr", "to integers"),
    "HQQ": ({"W_q": INTS, "scale": ROW, "zero": ROW}, "hqq", "by HQQ", "by HQQ"),
    "AQLM": ({"codes": INTS, "codebooks": ROW, "scales": ROW}, "aqlm", "by AQLM", "by AQLM"),
    "EETQ": ({"weight": SMALL, "weight_scales": ROW}, "eetq", "by EETQ", "by EETQ"),
    "torchao": ({"weight:qdata": INTS, "weight:scale": ROW}, "torchao", "by torchao", "by torchao"),
    "quanto": ({"weight._data": INTS, "weight._scale": ROW}, "quanto", "by quanto", "by quanto"),
    "MLX without its format": ({"weight": WORDS, "scales": ROW, "biases": ROW}, "x", "by 'x'", "by MLX"),
    "nothing says by what": ({"weight": SMALL}, "new", "by 'new'", "to int8, and nothing says by what"),
}  # fmt: skip


def written(folder, arrays, config=None, name="model.safetensors"):
    """Write arrays, and what lies beside them; returns the folder."""
    save_file({name: X.copy() for name, X in arrays.items()}, folder / name, {"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def projections(arrays, begin=LAYER):
    return {f"{begin}{letter}_proj.{name}": X for letter in "qkvo" for name, X in arrays.items()}


def doors(folder):
    """What each way in says of a folder; each is an error."""
    own = folder / "own.npz"
    np.savez(own, **{f"{name}.kernel": KERNEL for name in ("W_q", "W_k", "W_v", "W_o")})
    calls = [
        lambda: mha.load(folder, "numpy", num_heads=3),
        lambda: mha.load(folder, "numpy", num_heads=3, scheme="llama"),
        lambda: mha.load(folder, "numpy", num_heads=3, prefix=LAYER.removesuffix("."), rotary=None),
        lambda: mha.load(folder, "numpy", num_heads=3, prefix=LAYER, scheme="llama"),
        lambda: parity.compare_files(folder, own, scheme_b="mha", num_heads=3),
        lambda: parity.compare_files(own, folder, scheme_a="mha", num_heads=3, prefix_b=LAYER),
        lambda: parity.audit_taps({"layers.3.self_attn": {"queries": KERNEL[None], "output": KERNEL[None]}}, folder),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"^{folder}") as raised:
            call()
        yield str(raised.value)
    for command in (("convert", str(folder), str(folder / "new")), ("compare", str(own), str(folder))):
        result = run(*command, "--num-heads", "3", *(("--from-a", "mha") if command[0] == "compare" else ()))
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        yield result.stderr
    result = run("weights", "show", str(folder))
    assert result.exit_code == 0
    yield " ".join(result.stdout.split())


def test_what_the_configuration_alone_shows_is_said_by_it(tmp_path):
    arrays = projections({"grid": ROW, "points": INTS})
    with pytest.raises(ValueError, match="no attention layer of a known scheme is there"):
        mha.load(written(tmp_path, arrays), "numpy")
    for words in doors(written(tmp_path, arrays, {"quantization_config": {"quant_method": "new"}})):
        assert "is quantised by 'new' (quant_method 'new' in config.json)" in words


@pytest.mark.parametrize(("kind", "said"), [(kind, at % 2 == 0) for at, kind in enumerate(QUANTISED)])
def test_quantised_files_are_called_so_at_each_door(tmp_path, kind, said):
    arrays, method, *texts = QUANTISED[kind]
    text = texts[not said]
    config = CONFIG | {"quantization_config": {"quant_method": method}} if said else None
    written(tmp_path, projections(arrays), config)
    for words in itertools.islice(doors(tmp_path), None if kind == "AWQ" else 1):
        assert f"is quantised {text}" in words
        assert "pass the weights that it was made of" in words
        assert ("quant_method" in words) == said
        assert "does not hold" not in words


def test_a_layer_that_is_not_quantised_is_read_whatever_the_rest_is(tmp_path):
    """As in files of gpt-oss, whose experts alone are quantised."""
    arrays = projections({"weight": KERNEL}) | projections({"weight_scale_inv": ROW}, "model.layers.3.mlp.")
    arrays |= projections({"qweight": INTS, "qzeros": INTS}, "model.layers.4.self_attn.")
    folder = written(tmp_path, arrays, CONFIG | {"quantization_config": {"quant_method": "mxfp4"}})
    assert mha.load(folder, "numpy").config.num_heads == 3
    for prefix, text in {
        "model.layers.4.self_attn": r"is quantised to MXFP4 \(see model.layers.4.self_attn.k_proj.qzeros and quant",
        "model.layers.3": r"prefix='model.layers.3'; choose scheme='llama', prefix='model.layers.3.self_attn.'",
        "model.layers.5": r"no attention layer is there with .*prefix='model.layers.5'; choose scheme='llama'",
    }.items():
        with pytest.raises(ValueError, match=text):
            mha.load(folder, "numpy", prefix=prefix)


def test_a_wrong_number_of_heads_is_not_laid_to_the_configuration(tmp_path):
    config = CONFIG | {"quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(ValueError, match="says 3 heads, but num_heads is 5"):
        mha.load(written(tmp_path, projections({"weight": KERNEL}), config), "numpy", num_heads=5)


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"load_in_8bit": True}},
        {"compression_config": {"quant_method": "bitsandbytes"}},
        {"text_config": {"quantization_config": {"quant_method": "bitsandbytes"}}},
    ],
)
def test_older_and_nested_configurations_say_it_too(tmp_path, config):
    with pytest.raises(ValueError, match="is quantised by bitsandbytes"):
        mha.load(written(tmp_path, {"attn.grid": ROW}, config), "numpy")


@pytest.mark.parametrize(
    "config", ["", "{", "[]", '{"quantization_config": 3}', '{"quantization_config": {"bits": 4}}']
)
def test_a_broken_configuration_does_not_hide_what_names_show(tmp_path, config):
    folder = written(tmp_path, projections({"qweight": INTS, "g_idx": INTS[0]}))
    (folder / "config.json").write_text(config)
    with pytest.raises(ValueError, match=r"is quantised by GPTQ \(see .*k_proj.g_idx\); dequantise it: "):
        mha.load(folder, "numpy")


ADAPTERS = {
    "LoRA of peft": ("base_model.model.", "lora_A.weight", "merge_and_unload"),
    "LoRA in the names of diffusers or kohya-ss": ("lora_unet.", "lora_down.weight", "fuse_lora"),
    "LoRA of mlx-lm": ("", "lora_a", "mlx_lm.fuse"),
    "IA3 of peft": ("base_model.model.", "ia3_l", "merge_and_unload"),
    "LoHa or LoKr": ("base_model.model.", "hada_w1_a", "merge_and_unload"),
    "and its model, not merged": ("base_model.model.", "base_layer.weight", "merge_and_unload"),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_are_called_so_at_each_door(tmp_path, kind):
    begin, name, advice = ADAPTERS[kind]
    written(tmp_path, projections({name: ROW}, begin + LAYER), name="adapter_model.safetensors")
    for prefix in (None, begin + LAYER):
        with pytest.raises(ValueError, match=f"is an adapter, {kind}.*{advice}"):
            mha.load(tmp_path, "numpy", num_heads=3, prefix=prefix)
    result = run("weights", "show", str(tmp_path))
    assert (result.exit_code, f"is an adapter, {kind}" in " ".join(result.stdout.split())) == (0, True)


def test_an_adapter_beside_its_own_kernels_is_named(tmp_path):
    arrays = projections(
        {"weight": KERNEL, "lora_A.default.weight": KERNEL[:2], "lora_B.default.weight": KERNEL[:, :2]}
    )
    for words in doors(written(tmp_path, arrays, CONFIG)):
        assert "is an adapter, LoRA of peft" in words


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["kv_a_proj_with_mqa.weight", "kv_b_proj.weight", "q_proj.weight", "o_proj.weight"], "has DeepSeek's"),
        (["wkv_a.weight", "wkv_b.weight", "wq.weight", "wo.weight"], "has DeepSeek's attention with compressed keys"),
        (["query_proj.weight", "key_proj.weight", "value_proj.weight", "pos_key_proj.weight"], "has DeBERTa's"),
        (["mixer.A_log", "mixer.conv1d.weight"], "has layers of a state-space model"),
        (["qkv_proj.weight", "out_proj.weight"], "packed as CodeGen does"),
        (["wqkv.weight", "wo.weight"], "InternLM2 packs them group by group, gpt-fast one after another"),
    ],
)  # fmt: skip
def test_attention_that_is_not_read_is_named(tmp_path, names, text):
    written(tmp_path, {LAYER + name: KERNEL for name in names})
    for prefix in (None, LAYER):
        with pytest.raises(ValueError, match=text):
            mha.load(tmp_path, "numpy", num_heads=3, prefix=prefix)


def test_named_arrays_in_memory_are_called_so_too():
    with pytest.raises(ValueError, match="what is there is quantised by GPTQ"):
        mha.from_native(projections({"qweight": INTS, "g_idx": INTS[0]}), num_heads=3)
    with pytest.raises(ValueError, match="what is there is quantised to FP8 by blocks"):
        mha.from_native(projections({"weight": KERNEL, "weight_scale_inv": ROW}), num_heads=3, rotary=None)


def test_an_unknown_layout_shows_what_looks_like_attention_and_how_to_name_it(tmp_path):
    arrays = {f"a.{number}": ROW for number in range(9)} | {"block.attn.wide.weight": KERNEL}
    with pytest.raises(
        ValueError, match=r"rename its arrays .* W_q.weight.*\(out, in\).* arrays are block.attn.wide.w"
    ):
        mha.load(written(tmp_path, arrays), "numpy")


@pytest.mark.usefixtures("bounded")
def test_a_large_header_is_named_quickly(tmp_path):
    arrays = {f"model.layers.{n}.mlp.w{k}.weight": ROW[:1] for n in range(400) for k in range(50)}
    with pytest.raises(ValueError, match="is quantised by AWQ"):
        mha.load(
            written(tmp_path, arrays | projections({"qweight": INTS, "qzeros": INTS}),
                    {"quantization_config": {"quant_method": "awq"}}), "numpy",
        )  # fmt: skip

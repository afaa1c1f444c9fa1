"""Refuse arrays that are not read, by their names: quantised ones, adapters, and other kinds of attention.

`KINDS` has a row for each: its title, the advice, and how names show it. `config.json` has the method of quantising as
well, under the name that transformers gives it.

Source: the files that these libraries write, and `quantization_config` of transformers 5.23.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

_LOADED = "transformers.AutoModelForCausalLM.from_pretrained(FOLDER"
_SAVED = ".save_pretrained(NEW), and pass NEW"
_SCALED = "weights of FP8 times weight_scale are what they stand for"
_PEFT = f"merge it: peft.PeftModel.from_pretrained(MODEL, FOLDER).merge_and_unload(){_SAVED}"
_RECORDS = "no layer of mha computes that; two models of it are compared by mha.parity.record and compare_records"


@dataclasses.dataclass(frozen=True)
class ArrayKind:
    """A kind of arrays that are not read.

    Attributes:
        of: the group of the kind.
        what: the end of a sentence about the arrays.
        advice: to the user.
        shown: sets of parts of names; arrays whose names have all parts of one set are of this kind.
        methods: its names in `config.json`.
    """

    of: Literal["quantised", "adapter", "attention"]
    what: str
    advice: str
    shown: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


def _quantisation(title: str, do: str, *shown: str, methods: tuple[str, ...] = ()) -> ArrayKind:
    advice = f"dequantise it: {do}; or " if do else ""
    return ArrayKind(
        "quantised", f"is quantised {title}", f"{advice}pass the weights that it was made of", shown, methods
    )


def _adapter(title: str, do: str, *shown: str) -> ArrayKind:
    return ArrayKind("adapter", f"is an adapter, {title}", do, shown)


def _attention(title: str, *shown: str, do: str = _RECORDS) -> ArrayKind:
    return ArrayKind("attention", f"has {title}", do, shown)


_GPTQ = "gptqmodel.GPTQModel.load(FOLDER), each of whose modules has dequantize_weight(), a kernel (in, out)"
_AWQ = "awq.utils.packing_utils.dequantize_gemm(qweight, qzeros, scales, bits, group_size) is each kernel, (in, out)"
_MLX = _quantisation(
    "by MLX, but its metadata does not say the format mlx",
    "mlx_lm.convert --hf-path FOLDER --dequantize",
    "weight scales biases",
)
# A row whose sets of names have more parts stands before those that it has them in common with.
KINDS = (
    _adapter("and its model, not merged", "merge them: model.merge_and_unload(), and save that", "base_layer"),
    _adapter("LoRA of peft", _PEFT, "lora_A", "lora_B", "lora_embedding_A", "lora_magnitude_vector", "lora_E"),
    _adapter(
        "LoRA in the names of diffusers or kohya-ss",
        f"merge it: pipeline.load_lora_weights(FILE), pipeline.fuse_lora(), pipeline{_SAVED}",
        "lora_down",
        "lora_up",
        "lora down",
        "lora up",
    ),
    _adapter("LoRA of mlx-lm", "merge it: mlx_lm.fuse --model MODEL --adapter-path FOLDER", "lora_a", "lora_b"),
    _adapter("IA3 of peft", _PEFT, "ia3_l"),
    _adapter("LoHa or LoKr", _PEFT, "hada_w1_a", "lokr_w1", "lokr_w1_a"),
    _adapter("OFT, BOFT or VeRA of peft", _PEFT, "oft_r", "oft_R", "boft_R", "vera_lambda_b"),
    _adapter(
        "prompts or prefixes of peft",
        "pass the model: such an adapter has no weights of attention",
        "prompt_embeddings",
    ),
    _quantisation("by GPTQ", _GPTQ, "qweight g_idx", methods=("gptq", "auto-round", "intel/auto-round")),
    _quantisation("by AWQ", _AWQ, methods=("awq",)),
    _quantisation("by GPTQ or AWQ", f"by GPTQ: {_GPTQ}; by AWQ: {_AWQ}", "qweight qzeros", "qweight scales"),
    _quantisation(
        "to FP8 by blocks, as DeepSeek's files",
        f"{_LOADED}, quantization_config=transformers.FineGrainedFP8Config(dequantize=True)){_SAVED}",
        "weight_scale_inv",
        methods=("fp8", "finegrained_fp8"),
    ),
    _quantisation(
        "by bitsandbytes to 4 bits, NF4 or FP4",
        f"{_LOADED}).dequantize(){_SAVED}",
        "absmax", "quant_map", "bitsandbytes__nf4", "bitsandbytes__fp4",
        methods=("bitsandbytes_4bit",),
    ),
    _quantisation(
        "by bitsandbytes to 8 bits", f"{_LOADED}).dequantize(){_SAVED}", "SCB", methods=("bitsandbytes_8bit",)
    ),
    _quantisation("by bitsandbytes", f"{_LOADED}).dequantize(){_SAVED}", methods=("bitsandbytes",)),
    _quantisation(
        "by compressed-tensors",
        f"{_LOADED}, quantization_config=transformers.CompressedTensorsConfig(run_compressed=False)){_SAVED}",
        "weight_packed", "weight_global_scale", "weight_zero_point", "compressed bitmask",
        methods=("compressed-tensors", "compressed_tensors"),
    ),
    _quantisation("by ModelOpt", "", "weight_scale_2", "weight_scale input_scale k_scale", methods=("modelopt",)),
    _quantisation("by fbgemm to FP8", _SCALED, "weight_scale input_scale_ub", methods=("fbgemm_fp8",)),
    _quantisation("by HQQ", "dequantize() of each hqq HQQLinear", "W_q meta", "W_q scale zero", methods=("hqq",)),
    _quantisation("by AQLM", "", "codes codebooks", methods=("aqlm",)),
    _quantisation("by VPTQ", "", "indices centroids", methods=("vptq",)),
    _quantisation("by SpQR", "", "dense_weights row_offsets", methods=("spqr",)),
    _quantisation("by EETQ to 8 bits", "", "weight_scales", methods=("eetq",)),
    _quantisation("by quanto", "module.weight.dequantize() of each module", "_data _scale", methods=("quanto",)),
    _quantisation(
        "by torchao", "weight.dequantize() of each module", "qdata", "_weight_qdata", "weight_qdata",
        methods=("torchao",),
    ),
    _quantisation("by ExLlamaV2", "", "q_weight q_scale", methods=("exl2",)),
    _quantisation("by ExLlamaV3", "", "trellis", methods=("exl3",)),
    _quantisation("to MXFP4", f"{_LOADED}, quantization_config=transformers.Mxfp4Config(dequantize=True)){_SAVED}",
               methods=("mxfp4",)),
    _quantisation("by HIGGS", f"{_LOADED}).dequantize(){_SAVED}", methods=("higgs",)),
    _quantisation("to integers or FP8, with scales", _SCALED, "weight_scale", "kernel_scale", "weight_zp"),
    _MLX,
    _attention("DeepSeek's attention with compressed keys and values, MLA", "kv_a_proj_with_mqa", "kv_a_proj",
               "kv_b_proj", "wkv_a", "wkv_b", "q_a_proj q_b_proj"),
    _attention("a gated delta rule and no softmax", "in_proj_qkvz", "in_proj_qkv A_log"),
    _attention("layers of a state-space model, such as Mamba", "A_log"),
    _attention("RWKV's mixing of time, and no attention", "receptance", "time_mix_k", "time_maa_k"),
    _attention("DeBERTa's attention, whose scores have parts of positions", "pos_key_proj", "pos_query_proj",
               "pos_q_proj", "pos_proj in_proj", "rel_embeddings query_proj"),
    _attention("XLNet's attention, whose scores have parts of positions", "rel_attn"),
    _attention("Transformer-XL's attention, whose scores have parts of positions", "qkv_net", "r_net"),
    _attention("a Conformer's attention, whose scores have parts of positions", "pos_bias_u", "linear_pos"),
    _attention("Longformer's attention, which has queries of its own for some tokens", "query_global"),
    _attention("Reformer's attention, whose queries are its keys", "query_key"),
    _attention("attention of two streams, with projections for the second, as SD3's and Flux'", "add_k_proj"),
    _attention(
        "queries, keys and values packed as CodeGen does, in blocks and in the order q, v, k", "qkv_proj out_proj",
        do="split them as its code does, and pass them to mha.from_native by names of scheme='opt'",
    ),
    _attention(
        "queries, keys and values packed as wqkv: InternLM2 packs them group by group, gpt-fast one after another",
        "wqkv",
        do="pass them to mha.from_native, wqkv.weight renamed to query_key_value.weight and wo.weight to dense.weight "
        "with scheme='neox' if they lie group by group, or to qkv_proj.weight and o_proj.weight with scheme='phi3'",
    ),
)  # fmt: skip


class UnreadError(ValueError):
    """Arrays of a kind that is not read.

    Args:
        kind: the kind.
        why: the names that show it.
        method: the configuration's name for the way they are quantised.
        subject: the beginning of the sentence, "" = the path of the file, which others put before it.
    """

    def __init__(self, kind: ArrayKind, why: str = "", method: str = "", subject: str = "what is there ") -> None:
        shown = " and ".join(filter(None, (why, method and f"quant_method {method!r} in config.json")))
        super().__init__(f"{subject}{kind.what} ({shown}); {kind.advice}")
        self.kind, self.why = kind, why

    def with_method(self, method: str, subject: str = "what is there ") -> "UnreadError":
        """Return the same with the method of quantising in a configuration; "" = it has none."""
        if not method or self.kind.of != "quantised":
            return UnreadError(self.kind, self.why, subject=subject)
        same = any(one.startswith(method.lower()) for one in self.kind.methods)
        return UnreadError(self.kind if same else kind_by_method(method), self.why, method, subject)


def refuse(names: Iterable[str]) -> None:
    """Raise UnreadError if arrays of these names are of a kind that is not read."""
    if found := unreadable(names):
        raise found


def unreadable(names: Iterable[str], packed: bool = False) -> UnreadError | None:
    """Return the error for arrays of these names if they are not read; packed: of all kinds but attention."""
    parts: dict[str, str] = {}  # each with the first name that has it
    for name in names:
        for part in re.split(r"[.:/]", name):
            parts.setdefault(part, name)
    for kind in KINDS:
        if packed and kind.of == "attention":
            continue
        for shown in kind.shown:
            if all(part in parts for part in shown.split()):
                return UnreadError(kind, f"see {parts[shown.split()[-1]]}")
    return None


def kind_by_method(method: str) -> ArrayKind:
    """Return the kind with this name in a configuration; a new one with the name alone if it is not known."""
    known = next((kind for kind in KINDS if method.lower() in kind.methods), None)
    return known or _quantisation(f"by {method!r}", "")


def kind_by_dtype(dtype: str) -> ArrayKind | None:
    """Return the kind of quantised kernels of this dtype, of 8 bits or fewer or MLX' words; else None."""
    if dtype == "uint32":
        return _MLX
    packed = dtype in ("int8", "uint8") or dtype.strip("'").startswith(("F8_", "F6_", "F4"))
    return _quantisation(f"to {dtype}, and nothing says by what", "") if packed else None


def method_of(model: Mapping[str, Any] | None) -> str:
    """Return the method of quantising that a model's configuration names; "" = it names none."""
    for part in (model or {}, (model or {}).get("text_config")):
        if isinstance(part, Mapping):
            for name in ("quantization_config", "compression_config"):
                settings = part.get(name)
                if isinstance(settings, Mapping) and isinstance(settings.get("quant_method"), str):
                    return str(settings["quant_method"])
            settings = part.get("quantization_config")
            if isinstance(settings, Mapping) and (settings.get("load_in_8bit") or settings.get("load_in_4bit")):
                return "bitsandbytes"
    return ""

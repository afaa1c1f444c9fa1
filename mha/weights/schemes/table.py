"""The table of naming schemes: the names and the layout of an attention layer's weights in each library.

A scheme says which array holds each canonical weight, with which axes. To add a scheme, add its rows to SCHEMES. The
shape of a square kernel does not show which axis is its input; only the scheme does.

Axes, in the order in which an array has them: i and o, a projection's inputs and outputs; H and d, heads and the width
of one, into which the outputs of W_q, W_k and W_v and the inputs of W_o may be split.
"""

import dataclasses
import itertools
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

from mha.names import SchemeName
from mha.norms import Norm
from mha.weights.schemes.sizes import PROJECTIONS


@dataclasses.dataclass(frozen=True)
class Place:
    """The array that holds a canonical weight.

    name: of the array, after the layer's prefix.
    axes: "io", "oi", "iHd" or "Hdo" for a kernel; "o" or "Hd" for a bias; "d" for the weight of a norm; "H" for sinks.
    part: None, or (i, n): the weight is part i of n that are packed along the outputs.
    by: how they are packed: "all" = one after another; "group" = group by group: query heads of a group, its head of
        keys, its head of values; "head" = head by head: queries of a head, then its gate.
    """

    name: str
    axes: str
    part: tuple[int, int] | None = None
    by: Literal["all", "group", "head"] = "all"


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The names that one library, or one family of models, uses.

    about: a description in one line.
    places: the array of each canonical weight.
    others: places of weights that some of its models name otherwise.
    tied: projections that may have no arrays of their own, and then are another one, by name.
    gate: places of the output gate, which some of its models have.
    gate_beside_queries: True if a gate that has no array of its own lies in the queries' array, head by head.
    biases: sets of projections that may be the only ones with biases; the biases of the others are then zeros.
    beside: patterns of the names of other weights that stand beside these, each of one array: not of the attention.
    buffers: patterns of what a model makes itself, such as its causal order written down: a file may lack it.
    instead: a scheme with the same names: it is this one if the file says its format, or without one if W_q has a bias.
    format: the format that a file says in its metadata if its arrays lie as here, not as in the scheme `instead`.
    grouped: True if several heads of queries may share one head of keys and values.
    asks: options that some of its models have and others do not, while the names are the same.
    implied: options that its models have unless others are given; an option of norms only if there are norms.
    interleaved: True if the two components of a pair that rotates are neighbours.
    config: the name of the model's configuration file in the same folder; "" = none.
    """

    about: str
    places: dict[str, Place]
    others: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gate: Mapping[str, Place] = dataclasses.field(default_factory=dict)
    gate_beside_queries: bool = False
    biases: tuple[tuple[str, ...], ...] = ()
    beside: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    instead: SchemeName | None = None
    format: str = ""
    grouped: bool = False
    asks: tuple[str, ...] = ()
    implied: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    interleaved: bool = False
    config: str = ""

    @property
    def kernels(self) -> dict[str, None]:
        """The names of the arrays that a layer has in any case, each once, that of the kernel of W_q first."""
        needed = {f"{name}.kernel" for name in PROJECTIONS if name not in self.tied}
        needed |= {"W_q.bias"} if self.instead and not self.format else set()
        return {place.name: None for weight, place in self.places.items() if weight in needed}

    @property
    def names(self) -> list[str]:
        """The names of the arrays that a layer usually has."""
        return [place.name for place in self.places.values()]

    @property
    def every(self) -> list[tuple[str, Place]]:
        """Each weight with each of its places, the usual one last."""
        return [*self.others.items(), *self.gate.items(), *self.places.items()]

    def of_layer(self, names: Container[str], prefix: str, gated: bool) -> list[tuple[str, Place]]:
        """The places, as of `every`, in a layer with arrays of these names; gated: whether it has an output gate."""
        gate, places = dict(self.gate), dict(self.places)
        for name, other in self.tied.items():
            if prefix + places[f"{name}.kernel"].name not in names:
                places |= {f"{name}.{kind}": places[f"{other}.{kind}"] for kind in ("kernel", "bias")}
        if gated and self.gate_beside_queries and not any(prefix + place.name in names for place in gate.values()):
            for part, projection in enumerate(("W_q", "W_g")):
                for kind in ("kernel", "bias"):
                    packed = dataclasses.replace(self.places[f"W_q.{kind}"], part=(part, 2), by="head")
                    (places if projection == "W_q" else gate)[f"{projection}.{kind}"] = packed
        return [*self.others.items(), *gate.items(), *places.items()]

    def pattern(self, name: str) -> str:
        """The pattern of an array that stands beside the weights, by its name after the prefix; "" if it does not."""
        return next((one for one in (*self.beside, *self.buffers) if re.fullmatch(one, name)), "")


def _each(names: Iterable[str], kernel: str, axes: str, bias: bool = True) -> dict[str, Place]:
    """Places of a kernel and, if bias, a bias for each projection, under these names."""
    places = {}
    for projection, name in zip(PROJECTIONS, names, strict=True):
        heads = "H" in axes
        lies = "Hdo" if heads and projection == "W_o" else axes
        places[f"{projection}.kernel"] = Place(f"{name}.{kernel}", lies)
        if bias:
            places[f"{projection}.bias"] = Place(f"{name}.bias", "Hd" if heads and projection != "W_o" else "o")
    return places


def _vars(*names: str) -> dict[str, Place]:
    """Places of projections whose arrays Keras 3 stores by number under these names: the kernel, then the bias."""
    kernels = _each(names, "vars.0", "iHd").items()
    return {key: dataclasses.replace(X, name=X.name.replace(".bias", ".vars.1")) for key, X in kernels}


def _packed(kernel: str, bias: str, output: str, axes: str, by: Literal["all", "group"] = "all") -> dict[str, Place]:
    """Places of queries, keys and values packed in one array, in this order, and of the output in its own array."""
    places = {}
    for part, projection in enumerate(PROJECTIONS[:3]):
        places[f"{projection}.kernel"] = Place(kernel, axes, (part, 3), by)
        places[f"{projection}.bias"] = Place(bias, "o", (part, 3), by)
    return places | {"W_o.kernel": Place(f"{output}.weight", axes), "W_o.bias": Place(f"{output}.bias", "o")}


def _norms(queries: str, keys: str) -> dict[str, Place]:
    """Places of the norms of queries and keys, under these names."""
    return {"q_norm.scale": Place(queries, "d"), "k_norm.scale": Place(keys, "d")}


HUGGING_FACE = "config.json"
_TORCH = _packed("in_proj_weight", "in_proj_bias", "out_proj", "oi")
SCHEMES: dict[SchemeName, Scheme] = {
    "mha": Scheme(
        "this package; also Dive into Deep Learning in Keras and Flax",
        _each(PROJECTIONS, "kernel", "io"),
    ),
    "d2l": Scheme(
        "Dive into Deep Learning in PyTorch and MXNet",
        _each(PROJECTIONS, "weight", "oi"),
    ),
    "torch": Scheme(
        "torch.nn.MultiheadAttention, queries, keys and values of one width",
        _TORCH,
    ),
    "torch-separate": Scheme(
        "torch.nn.MultiheadAttention, keys or values of another width",
        _TORCH | {f"W_{letter}.kernel": Place(f"{letter}_proj_weight", "oi") for letter in "qkv"},
    ),
    "keras": Scheme(
        "keras.layers.MultiHeadAttention and GroupQueryAttention",
        _each(("query", "key", "value", "attention_output"), "kernel", "iHd"),
        gate={"W_g.kernel": Place("gate.kernel", "iHd"), "W_g.bias": Place("gate.bias", "Hd")},
        grouped=True,
    ),
    "keras3": Scheme(
        "the same as Keras 3 stores them, in .weights.h5 and .keras",
        _vars("query_dense", "key_dense", "value_dense", "output_dense"),
        gate={"W_g.kernel": Place("gate_dense.vars.0", "iHd"), "W_g.bias": Place("gate_dense.vars.1", "Hd")},
        grouped=True,
    ),
    "flax": Scheme(
        "flax.linen.MultiHeadDotProductAttention and flax.nnx.MultiHeadAttention",
        _each(("query", "key", "value", "out"), "kernel", "iHd") | _norms("query_ln.scale", "key_ln.scale"),
        buffers=(r"rngs\..*",),  # the random numbers of dropout
        grouped=True,
        implied={"qk_norm": Norm("layer")},
    ),
    "equinox": Scheme(
        "equinox.nn.MultiheadAttention",
        _each(("query_proj", "key_proj", "value_proj", "output_proj"), "weight", "oi"),
        biases=tuple(some for count in (1, 2, 3) for some in itertools.combinations(PROJECTIONS, count)),
    ),
    "haiku": Scheme(
        "haiku.MultiHeadAttention",
        {
            weight: dataclasses.replace(place, name=place.name.replace(".bias", ".b"))
            for weight, place in _each(("query", "key", "value", "linear"), "w", "io").items()
        },
    ),
    "mlx": Scheme(
        "mlx.nn.MultiHeadAttention",
        _each(("query_proj", "key_proj", "value_proj", "out_proj"), "weight", "oi"),
    ),
    "bert": Scheme(
        "BERT, RoBERTa, ELECTRA",
        _each(("self.query", "self.key", "self.value", "output.dense"), "weight", "oi"),
        beside=(
            r"output\.LayerNorm\.(weight|gamma)",  # after the attention
            r"output\.LayerNorm\.(bias|beta)",
            r"(LayerNorm|ln|self_attn_layer_norm)\.weight",  # before it
            r"(LayerNorm|ln|self_attn_layer_norm)\.bias",
        ),
        buffers=(r"self\.rotary_embeddings\.inv_freq",),  # ESM
        config=HUGGING_FACE,
    ),
    "albert": Scheme(
        "ALBERT",
        _each(("query", "key", "value", "dense"), "weight", "oi"),
        beside=(r"LayerNorm\.(weight|gamma)", r"LayerNorm\.(bias|beta)"),  # after the attention
        config=HUGGING_FACE,
    ),
    "distilbert": Scheme(
        "DistilBERT",
        _each(("q_lin", "k_lin", "v_lin", "out_lin"), "weight", "oi"),
        config=HUGGING_FACE,
    ),
    "vit": Scheme(
        "ViT, DeiT, DINOv2, BEiT in transformers",
        _each(("attention.query", "attention.key", "attention.value", "output.dense"), "weight", "oi"),
        biases=(("W_o",), ("W_q", "W_v", "W_o")),  # BEiT
        config=HUGGING_FACE,
    ),
    "timm": Scheme(
        "ViT in timm",
        _packed("qkv.weight", "qkv.bias", "proj", "oi"),
        biases=(("W_o",),),
    ),
    "vit-pytorch": Scheme(
        "vit-pytorch; diffusers after fuse_qkv_projections()",
        _packed("to_qkv.weight", "to_qkv.bias", "to_out.0", "oi"),
        biases=(("W_o",),),
        beside=(r"norm\.weight", r"norm\.bias"),  # before the attention
        asks=("rotary",),
    ),
    "gpt2": Scheme(
        "GPT-2",
        _packed("c_attn.weight", "c_attn.bias", "c_proj", "io"),
        buffers=("bias", "masked_bias"),  # the causal order, written down
        config=HUGGING_FACE,
    ),
    "gpt2-mlx": Scheme(
        "GPT-2 as mlx-lm stores it; nanoGPT, minGPT",
        _packed("c_attn.weight", "c_attn.bias", "c_proj", "oi"),
        buffers=("bias", "masked_bias"),
        instead="gpt2",
        format="mlx",
        config=HUGGING_FACE,
    ),
    "llama": Scheme(
        "LLaMA, Mistral, Qwen, Gemma and others",
        _each(("q_proj", "k_proj", "v_proj", "o_proj"), "weight", "oi")
        | _norms("q_norm.weight", "k_norm.weight")
        | {"sinks": Place("sinks", "H")},
        others=_norms("query_layernorm.weight", "key_layernorm.weight"),  # Hunyuan
        gate={"W_g.kernel": Place("gate_proj.weight", "oi"), "W_g.bias": Place("gate_proj.bias", "o")},  # AFMoE
        gate_beside_queries=True,  # Qwen3-Next
        tied={"W_v": "W_k"},  # Gemma 4
        # Qwen2; ViT and DINOv3, whose names these are while they are in memory
        biases=(("W_q", "W_k", "W_v"), ("W_o",), ("W_q", "W_v", "W_o")),
        buffers=(r"rotary_emb\.inv_freq",),
        grouped=True,
        asks=("rotary",),
        config=HUGGING_FACE,
    ),
    "meta": Scheme(
        "LLaMA and Mistral as their authors store them",
        _each(("wq", "wk", "wv", "wo"), "weight", "oi"),
        buffers=(r"inner_attention\.rope\.freqs",),
        grouped=True,
        asks=("rotary",),
        interleaved=True,
        config="params.json",
    ),
    "neox": Scheme(
        "GPT-NeoX, Pythia, Falcon, BLOOM",
        _packed("query_key_value.weight", "query_key_value.bias", "dense", "oi", by="group"),
        buffers=("bias", "masked_bias", r"rotary_emb\.inv_freq"),  # the causal order, written down
        grouped=True,
        asks=("rotary",),
        config=HUGGING_FACE,
    ),
    "megatron": Scheme(
        "Megatron Core, NeMo",
        _packed("linear_qkv.weight", "linear_qkv.bias", "linear_proj", "oi", by="group")
        | _norms("q_layernorm.weight", "k_layernorm.weight"),
        beside=(r"linear_qkv\.layer_norm_weight", r"linear_qkv\.layer_norm_bias"),  # before the attention
        buffers=(r".*_extra_state",),  # of TransformerEngine
        grouped=True,
        biases=(("W_q", "W_k", "W_v"),),  # of Qwen's models
        asks=("rotary",),
    ),
    "phi3": Scheme(
        "Phi-3, Phi-4",
        _packed("qkv_proj.weight", "qkv_proj.bias", "o_proj", "oi"),
        grouped=True,
        asks=("rotary",),
        config=HUGGING_FACE,
    ),
    "phi": Scheme(
        "Phi-1, Phi-1.5, Phi-2",
        _each(("q_proj", "k_proj", "v_proj", "dense"), "weight", "oi"),
        buffers=(r"rotary_emb\.inv_freq",),
        grouped=True,
        asks=("rotary",),
        config=HUGGING_FACE,
    ),
    "modernbert": Scheme(
        "ModernBERT",
        _packed("Wqkv.weight", "Wqkv.bias", "Wo", "oi"),
        asks=("rotary",),
        config=HUGGING_FACE,
    ),
    "flash-attn": Scheme(
        "flash_attn.modules.mha.MHA; MPT",
        _packed("Wqkv.weight", "Wqkv.bias", "out_proj", "oi"),
        grouped=True,
        biases=(("W_o",), ("W_q", "W_k", "W_v")),
        asks=("rotary",),
        config=HUGGING_FACE,
    ),
    "esmc": Scheme(
        "ESM C, ESM3",
        _packed("layernorm_qkv.1.weight", "layernorm_qkv.1.bias", "out_proj", "oi")
        | _norms("q_ln.weight", "k_ln.weight"),
        beside=(r"layernorm_qkv\.0\.weight", r"layernorm_qkv\.0\.bias"),  # before the attention
        implied={"qk_norm": Norm("layer", 1e-5, "all")},
        asks=("rotary",),
        config=HUGGING_FACE,
    ),
    "t5": Scheme(
        "T5, mT5, UMT5, Switch Transformers",
        _each(("q", "k", "v", "o"), "weight", "oi", bias=False),
        beside=(r"relative_attention_bias\.weight",),  # a table of biases, which are an argument of the call
        implied={"scale": 1.0},
        config=HUGGING_FACE,
    ),
    "mpnet": Scheme(
        "MPNet",
        _each(("q", "k", "v", "o"), "weight", "oi"),
        instead="t5",
        config=HUGGING_FACE,
    ),
    "blip": Scheme(
        "pictures of BLIP, BLIP-2 and InstructBLIP",
        _packed("qkv.weight", "qkv.bias", "projection", "oi"),
        biases=(("W_o",),),
        config=HUGGING_FACE,
    ),
    "internvl": Scheme(
        "pictures of InternVL and Janus",
        _each(("q_proj", "k_proj", "v_proj", "projection_layer"), "weight", "oi"),
        biases=(("W_o",),),
        config=HUGGING_FACE,
    ),
    "opt": Scheme(
        "OPT, BART, CLIP, Whisper, Marian, GPT-J, GPT-Neo, LFM2",
        _each(("q_proj", "k_proj", "v_proj", "out_proj"), "weight", "oi")
        | _norms("q_layernorm.weight", "k_layernorm.weight"),  # LFM2
        grouped=True,
        biases=(("W_q", "W_v", "W_o"), ("W_o",)),  # Whisper; GPT-Neo
        buffers=("bias", "masked_bias"),  # the causal order, written down
        config=HUGGING_FACE,
    ),
    "whisper": Scheme(
        "Whisper as OpenAI and mlx-examples store it",
        _each(("query", "key", "value", "out"), "weight", "oi"),
        biases=(("W_q", "W_v", "W_o"),),
    ),
    "diffusers": Scheme(
        "diffusers.models.attention_processor.Attention, Stable Diffusion",
        _each(("to_q", "to_k", "to_v", "to_out.0"), "weight", "oi") | _norms("norm_q.weight", "norm_k.weight"),
        grouped=True,
        biases=(("W_o",), ("W_q", "W_k", "W_v")),
        asks=("rotary",),
    ),
}

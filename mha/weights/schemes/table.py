"""The table of naming schemes: the names and the layout of an attention layer's weights in each library.

A scheme says which array holds each canonical weight, with which axes. To add a scheme, add its rows to SCHEMES. The
shape of a square kernel does not show which axis is its input; only the scheme does.
"""

import itertools

from mha.core.options.names import SchemeName
from mha.core.options.norms import Norm
from mha.weights.schemes.places import ArrayPlace, Scheme, joint_places, norm_places, separate_places
from mha.weights.schemes.sizes import PROJECTIONS

__all__ = ["SCHEMES", "ArrayPlace", "Scheme"]

HUGGING_FACE = "config.json"
CAUSAL = "bias", "masked_bias"  # the causal order, written down
_INPUTS = "W_q", "W_k", "W_v"
_TORCH = joint_places("in_proj", "out_proj", joint="_")
SCHEMES: dict[SchemeName, Scheme] = {
    "mha": Scheme(
        "this package; also Dive into Deep Learning in Keras and Flax",
        separate_places("W_q W_k W_v W_o", "kernel", "io"),
    ),
    "d2l": Scheme("Dive into Deep Learning in PyTorch and MXNet", separate_places("W_q W_k W_v W_o")),
    "torch": Scheme("torch.nn.MultiheadAttention, queries, keys and values of one width", _TORCH),
    "torch-separate": Scheme(
        "torch.nn.MultiheadAttention, keys or values of another width",
        _TORCH | {f"W_{letter}.kernel": ArrayPlace(f"{letter}_proj_weight", "oi") for letter in "qkv"},
    ),
    "keras": Scheme(
        "keras.layers.MultiHeadAttention and GroupQueryAttention",
        separate_places("query key value attention_output", "kernel", "iHd"),
        gate={"W_g.kernel": ArrayPlace("gate.kernel", "iHd"), "W_g.bias": ArrayPlace("gate.bias", "Hd")},
        grouped=True,
    ),
    "keras3": Scheme(
        "the same as Keras 3 stores them, in .weights.h5 and .keras",
        separate_places("query_dense key_dense value_dense output_dense", "vars.0", "iHd", bias="vars.1"),
        gate={"W_g.kernel": ArrayPlace("gate_dense.vars.0", "iHd"), "W_g.bias": ArrayPlace("gate_dense.vars.1", "Hd")},
        grouped=True,
    ),
    "flax": Scheme(
        "flax.linen.MultiHeadDotProductAttention and flax.nnx.MultiHeadAttention",
        separate_places("query key value out", "kernel", "iHd") | norm_places("query_ln key_ln", "scale"),
        buffers=(r"rngs\..*",),  # the random numbers of dropout
        grouped=True,
        implied={"qk_norm": Norm("layer")},
    ),
    "equinox": Scheme(
        "equinox.nn.MultiheadAttention",
        separate_places("query_proj key_proj value_proj output_proj"),
        biases=tuple(some for count in (1, 2, 3) for some in itertools.combinations(PROJECTIONS, count)),
    ),
    "haiku": Scheme("haiku.MultiHeadAttention", separate_places("query key value linear", "w", "io", bias="b")),
    "mlx": Scheme("mlx.nn.MultiHeadAttention", separate_places("query_proj key_proj value_proj out_proj")),
    "bert": Scheme(
        "BERT, RoBERTa, ELECTRA",
        separate_places("self.query self.key self.value output.dense"),
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
        separate_places("query key value dense"),
        beside=(r"LayerNorm\.(weight|gamma)", r"LayerNorm\.(bias|beta)"),  # after the attention
        config=HUGGING_FACE,
    ),
    "distilbert": Scheme("DistilBERT", separate_places("q_lin k_lin v_lin out_lin"), config=HUGGING_FACE),
    "vit": Scheme(
        "ViT, DeiT, DINOv2, BEiT in transformers",
        separate_places("attention.query attention.key attention.value output.dense"),
        biases=(("W_o",), ("W_q", "W_v", "W_o")),  # BEiT
        config=HUGGING_FACE,
    ),
    "timm": Scheme("ViT in timm", joint_places("qkv", "proj") | norm_places("q_norm k_norm"), biases=(("W_o",),)),
    "vit_pytorch": Scheme(
        "vit-pytorch; diffusers after fuse_qkv_projections()",
        joint_places("to_qkv", "to_out.0"),
        biases=(("W_o",),),
        beside=(r"norm\.weight", r"norm\.bias"),  # before the attention
        may_rotate=True,
    ),
    "gpt2": Scheme("GPT-2", joint_places("c_attn", "c_proj", "io"), buffers=CAUSAL, config=HUGGING_FACE),
    "gpt2-mlx": Scheme(
        "GPT-2 as mlx-lm stores it; nanoGPT, minGPT",
        joint_places("c_attn", "c_proj"),
        instead="gpt2",
        format="mlx",
        buffers=CAUSAL,
        config=HUGGING_FACE,
    ),
    "llama": Scheme(
        "LLaMA, Mistral, Qwen, Gemma and others",
        separate_places("q_proj k_proj v_proj o_proj")
        | norm_places("q_norm k_norm")
        | {"sinks": ArrayPlace("sinks", "H")},
        others=norm_places("query_layernorm key_layernorm"),  # Hunyuan
        gate={
            "W_g.kernel": ArrayPlace("gate_proj.weight", "oi"),
            "W_g.bias": ArrayPlace("gate_proj.bias", "o"),
        },  # AFMoE
        gate_beside_queries=True,  # Qwen3-Next
        tied={"W_v": "W_k"},  # Gemma 4
        # Qwen2; ViT and DINOv3, whose names these are while they are in memory
        biases=(_INPUTS, ("W_o",), ("W_q", "W_v", "W_o")),
        buffers=(r"rotary_emb\.inv_freq",),
        grouped=True,
        may_rotate=True,
        config=HUGGING_FACE,
    ),
    "meta": Scheme(
        "LLaMA and Mistral as their authors store them",
        separate_places("wq wk wv wo"),
        buffers=(r"inner_attention\.rope\.freqs",),
        grouped=True,
        may_rotate=True,
        interleaved=True,
        config="params.json",
    ),
    "neox": Scheme(
        "GPT-NeoX, Pythia, Falcon, BLOOM",
        joint_places("query_key_value", "dense", by="group"),
        buffers=(*CAUSAL, r"rotary_emb\.inv_freq"),
        grouped=True,
        may_rotate=True,
        config=HUGGING_FACE,
        unsure="query_key_value is taken to lie group by group, as in GPT-NeoX, BLOOM, Falcon and the first ChatGLM; "
        "where it has all queries, then all keys, then all values, as in ChatGLM2 and GLM-4, rename it to qkv_proj and "
        "dense to o_proj, for scheme='phi3'",
    ),
    "megatron": Scheme(
        "Megatron Core, NeMo",
        joint_places("linear_qkv", "linear_proj", by="group") | norm_places("q_layernorm k_layernorm"),
        beside=(r"linear_qkv\.layer_norm_weight", r"linear_qkv\.layer_norm_bias"),  # before the attention
        buffers=(r".*_extra_state",),  # of TransformerEngine
        grouped=True,
        biases=(_INPUTS,),  # of Qwen's models
        may_rotate=True,
    ),
    "phi3": Scheme(
        "Phi-3, Phi-4",
        joint_places("qkv_proj", "o_proj") | norm_places("q_norm k_norm"),
        grouped=True,
        may_rotate=True,
        config=HUGGING_FACE,
    ),
    "phi": Scheme(
        "Phi-1, Phi-1.5, Phi-2",
        separate_places("q_proj k_proj v_proj dense"),
        buffers=(r"rotary_emb\.inv_freq",),
        grouped=True,
        may_rotate=True,
        config=HUGGING_FACE,
    ),
    "modernbert": Scheme("ModernBERT", joint_places("Wqkv", "Wo"), may_rotate=True, config=HUGGING_FACE),
    "flash_attn": Scheme(
        "flash_attn.modules.mha.MHA; MPT",
        joint_places("Wqkv", "out_proj"),
        grouped=True,
        biases=(("W_o",), _INPUTS),
        may_rotate=True,
        config=HUGGING_FACE,
    ),
    "esmc": Scheme(
        "ESM C, ESM3",
        joint_places("layernorm_qkv.1", "out_proj") | norm_places("q_ln k_ln"),
        beside=(r"layernorm_qkv\.0\.weight", r"layernorm_qkv\.0\.bias"),  # before the attention
        implied={"qk_norm": Norm("layer", 1e-5, "all")},
        may_rotate=True,
        config=HUGGING_FACE,
    ),
    "t5": Scheme(
        "T5, mT5, UMT5, Switch Transformers",
        separate_places("q k v o", bias=""),
        beside=(r"relative_attention_bias\.weight",),  # a table of biases, which are an argument of the call
        implied={"scale": 1.0},
        config=HUGGING_FACE,
    ),
    "mpnet": Scheme("MPNet", separate_places("q k v o"), instead="t5", config=HUGGING_FACE),
    "blip": Scheme(
        "pictures of BLIP, BLIP-2 and InstructBLIP",
        joint_places("qkv", "projection"),
        biases=(("W_o",),),
        config=HUGGING_FACE,
    ),
    "internvl": Scheme(
        "pictures of InternVL and Janus",
        separate_places("q_proj k_proj v_proj projection_layer"),
        biases=(("W_o",),),
        config=HUGGING_FACE,
    ),
    "opt": Scheme(
        "OPT, BART, CLIP, Whisper, Marian, GPT-J, GPT-Neo, LFM2",
        separate_places("q_proj k_proj v_proj out_proj") | norm_places("q_layernorm k_layernorm"),  # LFM2
        grouped=True,
        biases=(("W_q", "W_v", "W_o"), ("W_o",)),  # Whisper; GPT-Neo
        buffers=CAUSAL,
        config=HUGGING_FACE,
    ),
    "whisper": Scheme(
        "Whisper as OpenAI and mlx-examples store it",
        separate_places("query key value out"),
        biases=(("W_q", "W_v", "W_o"),),
    ),
    "diffusers": Scheme(
        "diffusers.models.attention_processor.Attention, Stable Diffusion",
        separate_places("to_q to_k to_v to_out.0") | norm_places("norm_q norm_k"),
        grouped=True,
        biases=(("W_o",), _INPUTS),
        may_rotate=True,
    ),
}

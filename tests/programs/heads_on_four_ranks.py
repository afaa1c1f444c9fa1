"""Checks of split heads by four ranks beside other engines.

Letters: B batch, T rows, H heads, D num_hiddens. The oracle is the whole layer on NumPy.
"""

import warnings

import numpy as np
import torch
from heads_over_ranks import OF_ALL, torch_layer
from layers import agrees, random_layer
from sequence_over_ranks import ways_of
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mha import Rotary, parallel, weights

B, T, H, D = 4, 5, 4, 12
SIZES = {"num_hiddens": D, "num_heads": H, "bias": True, "key_dim": 4, "value_dim": 3}
NORMED = SIZES | OF_ALL
FEW = SIZES | {"num_key_value_heads": 2}  # of which two ranks use each
HEADS = "heads", "heads x ulysses", "heads x ring", "heads x gather"


def drawn(options):
    """A layer of NumPy, inputs (B, T, D) and a target, the same on every rank."""
    rng = np.random.default_rng(1)
    attention = random_layer(rng, options, "float64")
    return attention, *(rng.normal(size=(B, T, D)) for _ in range(2))


def gradient_of(parameter):
    """The whole gradient of a parameter, in the canonical layout."""
    gradient = parameter.grad.full_tensor()
    return gradient.T if gradient.ndim == 2 else gradient


def check_norms_over_all_heads(group):
    names = "norms over all heads", "norms over all heads, after the rotation"
    ways_of(group, "full", names, ("float64",), HEADS)


def check_few_heads_of_keys(group):
    names = "few heads of keys", "heads of keys on two devices", "norms over all heads, few of keys"
    ways_of(group, "full", names, ("float64",), HEADS)


def check_batches_beside_heads(group):
    for options in (SIZES, NORMED, SIZES | {"num_key_value_heads": 1}):
        batches_beside_heads(group, options)


def batches_beside_heads(group, options):
    """Heads are split over two ranks, and batches over two of those."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "heads"))
    attention, X, target = drawn(options)
    output, pull_back = attention.vjp(X, X, X)
    expected = pull_back((output - target) / B)
    row = mesh["data"].get_local_rank()
    own = slice(row * B // 2, (row + 1) * B // 2)
    inputs, wanted = (torch.tensor(Y[own]) for Y in (X, target))
    layer = parallel.parallelize(torch_layer(attention).layer, mesh["heads"])
    fully_shard(layer, mesh=mesh["data"])  # DistributedDataParallel takes no DTensors
    found = layer(inputs, inputs, inputs)
    assert agrees(found, output[own])
    ((found - wanted).square().sum() / 2 / (B // 2)).backward()  # the mean of both is that of the batch
    for name, parameter in layer.named_parameters():
        assert agrees(gradient_of(parameter), expected[name.replace("weight", "kernel")], gradient=True), name

    def check_weights():
        for name, found in parallel.gather(layer).items():
            assert np.array_equal(found, attention.weights[name]), name

    check_weights()
    wrote = weights.own_format.files.write
    written = []
    weights.own_format.files.write = lambda *given: (written.append(1), wrote(*given))
    parallel.save(layer, group.folder / "layer.safetensors")
    assert bool(written) == (group.rank == 0)  # one writes, and all wait for it
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    parallel.load(layer, group.folder / "layer.safetensors")
    check_weights()


def check_checkpoint_of_four_ranks_on_two(group):
    """What four ranks write is read by two, also where only those divide the heads of keys."""
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "heads"))["heads"]
    for options in (NORMED, NORMED | FEW):
        attention, folder = drawn(options)[0], group.folder / f"of{len(options)}"
        split = parallel.parallelize(torch_layer(attention).layer, group.mesh)
        checkpoint.save({"layer": split.state_dict()}, checkpoint_id=folder)
        other = torch_layer(random_layer(np.random.default_rng(2), options, "float64")).layer
        state = {"layer": parallel.parallelize(other, mesh).state_dict()}
        checkpoint.load(state, checkpoint_id=folder)
        other.load_state_dict(state["layer"])
        for name, found in parallel.gather(other).items():
            assert np.array_equal(found, attention.weights[name]), (options, name)


def check_a_cache_of_few_heads_of_keys(group):
    attention, X, _ = drawn(FEW | {"rotary": Rotary(2), "qk_norm": "rms"})
    expected, whole = attention(X, X, X, causal=True), torch_layer(attention)
    parallel.parallelize(whole.layer, group.mesh)
    cache = whole.cache(B, T)
    assert tuple(cache.keys.shape[:2]) == (B, 1)
    for t in range(T):
        x = torch.tensor(X[:, t : t + 1])
        with torch.no_grad():
            output, cache = whole(x, x, x, causal=True, cache=cache)
        assert agrees(output, expected[:, t : t + 1]), t


def check_a_compiled_layer(group):
    for options in (SIZES, NORMED, NORMED | FEW):
        compiled_layer(group, options)


def compiled_layer(group, options):
    """A split layer that is compiled gives the output and the gradients of the whole one."""
    attention, X, target = drawn(options)
    output, pull_back = attention.vjp(X, X, X, [5, 3, 0, 1])
    expected = pull_back(output - target)
    layer = parallel.parallelize(torch_layer(attention).layer, group.mesh)
    compiled = torch.compile(layer, backend="aot_eager")
    inputs, lengths = torch.tensor(X), torch.tensor([5, 3, 0, 1])
    found = compiled(inputs, inputs, inputs, lengths)
    assert agrees(found, output)
    (found - torch.tensor(target)).square().sum().div(2).backward()
    for name, parameter in layer.named_parameters():
        assert agrees(gradient_of(parameter), expected[name.replace("weight", "kernel")], gradient=True), name

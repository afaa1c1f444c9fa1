"""Checks by two ranks of a layer of PyTorch whose heads are split over them.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens. The oracle is NumPy.
"""

import copy
import dataclasses
import functools
import itertools
import os
import pickle
import warnings

import numpy as np
import torch
from dropping import assert_share, see_through
from layers import agrees, random_layer
from ranks import refused
from sequence_over_ranks import ways_of
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import mha
from mha import parallel
from mha.core.engine import blocks

B, Q, K, H, D = 2, 3, 5, 4, 12
SIZES = {"num_hiddens": D, "num_heads": H, "bias": True, "key_dim": 4, "value_dim": 3}
WIDTHS = SIZES | {"query_size": 7, "key_size": 6, "value_size": 5}
NORMED = WIDTHS | {"num_key_value_heads": 2, "qk_norm": "rms", "rotary": mha.Rotary(4), "softcap": 2.0}
OF_ALL = {"qk_norm": mha.Norm("layer", 0.3, "all"), "value_norm": mha.Norm("rms", 0.2, "all")}
AFTER = {"qk_norm": mha.Norm("rms", 0.3, "all", after=True), "value_norm": mha.Norm("layer", 0.2, "all")}
ONE = {"num_key_value_heads": 1}  # which both ranks use
LAYERS = {
    "grouped, normed": NORMED,
    "additive": WIDTHS | {"pooling": "additive"},
    "norms over all heads": NORMED | OF_ALL,
    "norms over all heads, after the rotation": NORMED | AFTER,
    "one head of keys": NORMED | AFTER | ONE,
}
RATE = 0.25


def torch_layer(attention, **options):
    """A layer of NumPy on PyTorch, with other options of making."""
    config = dataclasses.replace(attention.config, **options)
    made = mha.MultiHeadAttention(**vars(config), backend="torch")
    made.weights = attention.weights
    return made


def made(group, options, dtype="float64"):
    """A layer of NumPy with random weights, the same on PyTorch, and its layer, split."""
    attention = random_layer(np.random.default_rng(1), options, dtype)
    whole = torch_layer(attention)
    return attention, whole, parallel.parallelize(torch_layer(attention).layer, group.mesh)


def check_a_cache_keeps_the_heads_of_a_rank(group):
    rng = np.random.default_rng(7)
    sizes = {"num_hiddens": D, "num_heads": H, "bias": True}
    options = sizes | {"num_key_value_heads": 2, "qk_norm": "rms", "rotary": mha.Rotary(2), "window": (3, 0)}
    for others in ({}, OF_ALL, AFTER, ONE | OF_ALL):
        attention, whole, whole.layer = made(group, options | others)
        X = rng.normal(size=(B, 7, D))
        expected = attention(X, X, X, causal=True)
        cache, first = whole.cache(B), 0
        assert tuple(cache.keys.shape) == (B, 1, 4, D // H)
        for count in (3, 1, 2, 1):
            x = torch.tensor(X[:, first : first + count])
            with torch.no_grad():
                output, cache = whole(x, x, x, causal=True, cache=cache)
            np.testing.assert_allclose(output, expected[:, first : first + count], rtol=0, atol=1e-12)
            first += count
    other = attention.cache(B).to("torch")  # of all heads
    refused(lambda: whole(x, x, x, cache=other), "cache is of a layer with another configuration")


def check_output_weights_and_gradients_are_those_of_the_whole(group):
    rng = np.random.default_rng(2)
    for options in LAYERS.values():
        attention, _, split = made(group, options)
        config, gates = attention.config, ((B, H), (H,))
        for of_gates in gates:
            shapes = (B, Q, config.query_size), (B, K, config.key_size), (B, K, config.value_size), (B, Q, D)
            *inputs, cotangent = (rng.normal(size=shape) for shape in shapes)
            mask, bias = rng.random((B, H, Q, K)) < 0.7, rng.normal(size=(B, H, Q, K))
            call = {"mask": mask, "score_bias": bias, "head_gates": rng.normal(size=of_gates)}
            assert_as_whole(split, attention, inputs, cotangent, call)


def assert_as_whole(split, attention, inputs, cotangent, call):
    """A split layer gives the output, weights and gradients of the whole one, also where padding is no number."""
    clean = [np.nan_to_num(X) for X in inputs]
    expected = attention.gradients(*clean, [5, 3], cotangent=cotangent, **call)
    output, weights = attention(*clean, [5, 3], return_weights=True, **call)
    tensors = {name: torch.tensor(X) for name, X in zip(("queries", "keys", "values"), inputs, strict=True)}
    tensors |= {name: torch.tensor(X) for name, X in call.items()}
    for name in ("queries", "keys", "values", "score_bias", "head_gates"):
        tensors[name].requires_grad_()
    lengths = torch.tensor([5, 3])
    for return_weights in (False, True):
        found = split(**tensors, valid_lens=lengths, return_weights=return_weights)
        result, by_head = found if return_weights else (found, None)
        assert agrees(result, output)
        assert by_head is None or agrees(by_head, weights)
        split.zero_grad()
        for X in tensors.values():
            X.grad = None
        result.backward(torch.tensor(cotangent))
        gradients = {name: X.grad for name, X in tensors.items() if X.requires_grad}
        by_name = dict(split.named_parameters())
        for name in attention.weights:
            gradient = by_name[name.replace("kernel", "weight")].grad.full_tensor()
            gradients[name] = gradient.T if gradient.ndim == 2 else gradient
        assert set(gradients) == set(expected)
        for name, gradient in gradients.items():
            assert agrees(gradient, expected[name], gradient=True), (name, return_weights)


def check_heads_of_keys_that_both_ranks_use(group):
    ways_of(group, "full", ("heads of keys on two devices", "norms over all heads, few of keys"), ("float64",), "heads")


def check_rows_that_heads_elsewhere_use_count_in_norms_over_all(group):
    """What no head of a rank uses is no padding there, if it is in the means of heads on another rank."""
    rng, first, second = np.random.default_rng(5), slice(H // 2), slice(H // 2, H)
    mask, bias = np.ones((B, H, Q, K), bool), rng.normal(size=(B, H, Q, K))
    mask[:, first, 1] = mask[:, second, :, 1] = False
    bias[:, first, :, 2] = -np.inf
    mask[..., 0] = False
    call = {"mask": mask, "score_bias": bias, "head_gates": rng.normal(size=(B, H))}
    for name in ("norms over all heads", "norms over all heads, after the rotation", "one head of keys"):
        attention, _, split = made(group, LAYERS[name])
        queries, keys, values, cotangent = (
            rng.normal(size=shape) for shape in ((B, Q, 7), (B, K, 6), (B, K, 5), (B, Q, D))
        )
        keys[:, 0] = values[1, 3:] = np.nan  # which no head sees
        assert_as_whole(split, attention, (queries, keys, values), cotangent, call)


def check_the_lesson_is_split_too(group):
    rng = np.random.default_rng(3)
    attention = mha.MultiHeadAttention(**WIDTHS, dtype="float64", readable=True, backend="torch", seed=0)
    X = [rng.normal(size=shape) for shape in ((B, Q, 7), (B, K, 6), (B, K, 5))]
    output = attention(*X, [5, 3])
    parallel.parallelize(attention.layer, group.mesh)
    assert agrees(attention(*X, [5, 3]), output)
    assert attention.layer.config.num_heads == H


class Sent(TorchDispatchMode):
    """Counts the numbers that go through sums, and the bytes of those that go to one rank."""

    def __init__(self):
        super().__init__()
        self.sums, self.told = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            tensors = args[0]
            match function.__name__.partition(".")[0]:
                case "allreduce_":
                    self.sums += [X.numel() * X.element_size() for X in tensors]
                case "send":
                    self.told += sum(X.numel() * X.element_size() for X in tensors)
                case "recv_":
                    pass
                case other:
                    raise AssertionError(f"{other} was not expected")
        return function(*args, **kwargs or {})


def check_what_is_sent(group):
    T = 64
    volume = B * T * D * 8  # bytes of one output
    rng = np.random.default_rng(4)
    _, _, split = made(group, SIZES)
    X = [torch.tensor(rng.normal(size=(B, T, D)), requires_grad=True) for _ in range(3)]
    for inputs, count in ((X, 3), ([X[0]] * 3, 1), ([X[0], X[1], X[1]], 2)):
        with Sent() as forward:
            output = split(*inputs)
        with Sent() as backward:
            output.sum().backward()
        assert forward.sums == [volume], forward.sums
        assert backward.sums == [volume] * count, backward.sums
        assert 0 < forward.told <= 512 * (group.count - 1)
        assert backward.told <= 256 * count * (group.count - 1)  # that a rank is there
    _, _, split = made(group, SIZES | ONE)
    weights = [X.numel() * 8 for X in (*split.W_k.parameters(), *split.W_v.parameters())]
    assert sum(weights) == (D * 4 + 4 + D * 3 + 3) * 8
    assert sums_of(split, X) == ([volume], sorted([*weights, *[volume] * 3]))
    _, _, split = made(group, SIZES | OF_ALL)
    means = [B * T * 8] * (2 + 2 + 1)  # of queries and keys two each, of values one
    assert sums_of(split, X) == ([*means, volume], [*means, *[volume] * 3])


def sums_of(split, inputs):
    """The bytes of the sums of a call, forward and backward, in order of size."""
    with Sent() as forward:
        output = split(*inputs)
    with Sent() as backward:
        output.sum().backward()
    return sorted(forward.sums), sorted(backward.sums)


def see_through_ranks(group):
    """A split layer that returns the weights that dropout has left, times K, (B, Q, H*K), and inputs for it."""
    attention, inputs = see_through("torch", RATE, (8, H, 32, 16), dtype="float64")
    return parallel.parallelize(attention.layer, group.mesh), [torch.tensor(X) for X in inputs]


def check_dropout(group):
    split, inputs = see_through_ranks(group)
    split.train()

    def pattern():
        """The factors of all weights, (heads, B * Q * K)."""
        return split(*inputs).detach().reshape(8, 32, H, -1).transpose(0, 2).reshape(H, -1)  # (H, Q*B*K)

    torch.manual_seed(11)
    first, second = pattern(), pattern()
    after = torch.rand(1, dtype=torch.float64)
    torch.manual_seed(11)
    assert torch.equal(pattern(), first)
    assert torch.equal(pattern(), second)
    assert torch.equal(torch.rand(1, dtype=torch.float64), after)
    for drawn in (first, after):  # and so the next layer draws alike
        everywhere = [torch.empty_like(drawn) for _ in range(group.count)]
        distributed.all_gather(everywhere, drawn)
        assert all(torch.equal(X, drawn) for X in everywhere)

    kept = (first != 0).numpy()
    assert agrees(first[kept], np.full(int(kept.sum()), 1 / (1 - RATE)))
    chance = (1 - RATE) ** 2 + RATE**2
    for head in range(H):
        assert_share(kept[head], 1 - RATE)
        assert_share((second != 0).numpy()[head] == kept[head], chance)
        for other in range(head):
            assert_share(kept[head] == kept[other], chance)


def check_dropout_of_pieces_that_are_computed_again(group):
    split, inputs = see_through_ranks(group)
    split.train()
    before, blocks.SCORES = blocks.SCORES, 1000  # scores at a time
    try:
        values = inputs[2].clone().requires_grad_()
        torch.manual_seed(5)
        output = split(*inputs[:2], values)
        cotangent = torch.arange(output.numel(), dtype=torch.float64).reshape(output.shape).cos()
        output.backward(cotangent)
    finally:
        blocks.SCORES = before
    # The output is linear in values: with the same weights dropped, both are the same sum.
    assert agrees((values.grad * values.detach()).sum(), np.array((output * cotangent).sum().item()), gradient=True)


def check_calls_that_differ_are_refused_on_both(group):
    rng = np.random.default_rng(6)
    attention, _, split = made(group, SIZES | {"dropout": 0.5})
    X, second = torch.tensor(rng.normal(size=(B, K, D))), group.rank == 1
    mask = torch.ones((1, K) if second else (K, K), dtype=torch.bool)
    calls = {
        "queries": ((X[:, second:], X, X), {}),
        "batch": ((X[second:],) * 3, {}),
        "valid_lens": ((X, X, X), {"valid_lens": torch.tensor([3, 4 if second else 5])}),
        "valid_lens of one": ((X, X, X), {"valid_lens": torch.tensor([3, 4]) if second else None}),
        "mask": ((X, X, X), {"mask": mask}),
        "score_bias": ((X, X, X), {"score_bias": X.new_zeros(K, K) if second else None}),
        "head_gates": ((X, X, X), {"head_gates": X.new_ones(H) if second else None}),
        "head_gates of samples": ((X, X, X), {"head_gates": X.new_ones((B, H) if second else (H,))}),
        "offset": ((X, X, X), {"causal": True, "offset": int(second)}),
        "causal": ((X, X, X), {"causal": second}),
        "training": ((X, X, X), {"training": second}),
        "return_weights": ((X, X, X), {"return_weights": second}),
    }
    calls["one array"] = ((X.clone() if second else X, X, X), {})
    calls["requires_grad"] = ((X.clone().requires_grad_(second), X, X), {})
    named = {"batch": "queries", "valid_lens of one": "valid_lens", "head_gates of samples": "head_gates"}
    for name, (inputs, options) in calls.items():
        refused(lambda: split(*inputs, **options), named.get(name, name), "rank 1", "rank 0")  # noqa: B023
    assert agrees(split(X, X, X, training=False), attention(X.numpy(), X.numpy(), X.numpy()))  # they still agree


def check_other_numbers_on_one_rank_are_refused_where_that_is_asked(group):
    _, _, split = made(group, SIZES)
    X, second = torch.zeros(B, K, D, dtype=torch.float64), group.rank == 1
    other, mask = X + second, torch.ones(K, K, dtype=torch.bool)
    calls = {"queries": ((other, X, X), {}), "values": ((X, X, other), {})}
    calls["mask"] = ((X, X, X), {"mask": mask.tril() if second else mask})
    calls["head_gates"] = ((X, X, X), {"head_gates": X.new_full((H,), 1.0 + second)})
    for name, (inputs, options) in calls.items():
        split(*inputs, **options)  # not noticed
        os.environ["MHA_CHECK_RANKS"] = "1"
        assert split(X, X, X).shape == (B, K, D)
        refused(lambda: split(*inputs, **options), f"the digest of {name} of rank 1")  # noqa: B023
        del os.environ["MHA_CHECK_RANKS"]
    with torch.no_grad():
        split.W_o.bias.to_local().add_(second)
    split(X, X, X)
    os.environ["MHA_CHECK_RANKS"] = "1"
    refused(lambda: split(X, X, X), "the digest of the weights of rank 1")
    os.environ["MHA_CHECK_RANKS"] = "yes"
    refused(lambda: split(X, X, X), "MHA_CHECK_RANKS is 'yes', expected one of 0, 1")
    del os.environ["MHA_CHECK_RANKS"]
    whole = mha.MultiHeadAttention(**SIZES, backend="torch", seed=group.rank).layer
    refused(lambda: mha.parallel.parallelize(whole, group.mesh), "the digest of the weights of rank 1")


def check_what_is_refused(group):
    _, whole, split = made(group, SIZES)
    X = torch.zeros(B, K, D, dtype=torch.float64)
    holder = copy.copy(whole)
    holder.layer = split
    for call in (lambda: copy.deepcopy(split), lambda: holder.vjp(X, X, X), lambda: holder.gradients(X, X, X)):
        refused(call, "2 ranks", "mha.parallel.gather")
    refused(lambda: holder.trace(X, X, X), "2 ranks", "mha.parallel.gather")
    for by in (X.requires_grad_(), split.W_v.weight):
        output = split(X.detach() if by is not X else X, X.detach(), X.detach())
        (gradient,) = torch.autograd.grad(output.square().sum(), by, create_graph=True)
        gradient = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        refused(lambda: gradient.square().sum().backward(), "once_differentiable", kind=RuntimeError)  # noqa: B023
    refused(lambda: parallel.parallelize(split, group.mesh), "split already")
    refused(lambda: pickle.dumps(split), "2 ranks", "mha.parallel.save")
    refused(lambda: made(group, SIZES | {"num_heads": 3}), "num_heads is 3", "2")
    refused(lambda: parallel.parallelize(whole, group.mesh), "attention.layer", kind=TypeError)
    refused(lambda: parallel.parallelize(whole.layer, "ranks"), "DeviceMesh", kind=TypeError)
    for call in (lambda: holder.weights, lambda: holder.to("numpy"), lambda: holder.save(group.folder / "none")):
        refused(call, "mha.parallel.gather", "mha.parallel.save", "mha.parallel.load", kind=RuntimeError)
    assert not (group.folder / "none").exists()


def sharded(group, attention):
    """A layer whose weights lie on the ranks in parts by `fully_shard`."""
    layer = torch_layer(attention).layer
    fully_shard(layer, mesh=group.mesh)
    return layer


def check_weights_are_collected_saved_and_loaded(group):
    for options in LAYERS.values():
        attention, whole, split = made(group, options)
        for number, layer in enumerate((split, sharded(group, attention))):
            assert any(isinstance(X, DTensor) for X in layer.parameters())
            found = parallel.gather(layer)
            assert list(found) == list(attention.weights)
            assert all(np.array_equal(X, attention.weights[name]) for name, X in found.items())
            path = group.folder / f"{number} of {attention.config.pooling}.safetensors"
            parallel.save(layer, path)  # all wait for the one that writes
            again = mha.load(path)
            assert again.config == attention.config
            assert all(np.array_equal(X, attention.weights[name]) for name, X in again.weights.items())
            with torch.no_grad():
                for X in layer.parameters():
                    X.zero_()
            assert parallel.load(layer, path) is layer
            assert all(np.array_equal(X, attention.weights[name]) for name, X in parallel.gather(layer).items())
            refused(lambda: parallel.save(layer, group.folder), "is a directory", kind=OSError)  # noqa: B023
            whole.layer = layer
            refused(lambda: whole.weights, "mha.parallel.gather", kind=RuntimeError)  # noqa: B023
    other = made(group, SIZES)[2]
    refused(lambda: parallel.load(other, path), "query_size=7, expected 12")
    path = group.folder / "scaled.safetensors"
    parallel.save(made(group, SIZES | {"scale": 0.7})[2], path)
    refused(lambda: parallel.load(other, path), "scale=0.7, expected None as the layer")


def check_checkpoints_of_torch(group):
    attention, _, split = made(group, NORMED | ONE)
    warnings.simplefilter("ignore")
    checkpoint.save({"layer": split.state_dict()}, checkpoint_id=group.folder / "split")
    other = torch_layer(random_layer(np.random.default_rng(9), NORMED | ONE, "float64"))
    state = {"layer": other.layer.state_dict()}
    checkpoint.load(state, checkpoint_id=group.folder / "split")  # into a whole one: other ranks, too
    assert all(np.array_equal(X, attention.weights[name]) for name, X in other.weights.items())

    checkpoint.save({"layer": other.layer.state_dict()}, checkpoint_id=group.folder / "whole")
    with torch.no_grad():
        for X in split.parameters():
            X.zero_()
    state = {"layer": split.state_dict()}
    checkpoint.load(state, checkpoint_id=group.folder / "whole")  # and back
    split.load_state_dict(state["layer"])
    assert all(np.array_equal(X, attention.weights[name]) for name, X in parallel.gather(split).items())


def check_training(group):
    for options in (SIZES | {"qk_norm": "layer"}, SIZES | ONE | {"qk_norm": "rms"}):
        rng = np.random.default_rng(7)
        attention, whole, split = made(group, options)
        X, target = (torch.tensor(rng.normal(size=(B, K, D))) for _ in range(2))
        norms = []
        for layer in (whole.layer, split):
            optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
            for _ in range(3):
                optimizer.zero_grad()
                (layer(X, X, X, causal=True) - target).square().sum().backward()
                norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
                optimizer.step()
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        assert agrees(norms[1], norms[0].numpy(), gradient=True), options
        trained = whole.weights
        assert not np.array_equal(trained["W_k.kernel"], attention.weights["W_k.kernel"]), options
        for name, found in parallel.gather(split).items():
            assert agrees(found, trained[name], gradient=True), (options, name)
        if "num_key_value_heads" in options:  # whose weights are whole on both ranks, and stay alike
            own = split.W_k.weight.to_local().detach()
            everywhere = [torch.empty_like(own) for _ in range(group.count)]
            distributed.all_gather(everywhere, own)
            assert all(torch.equal(X, own) for X in everywhere)


def check_kernels_that_another_plan_splits_are_refused(group):
    """They would give wrong numbers."""
    columns = {name: ColwiseParallel() for name in ("W_q", "W_k", "W_v")}
    hiding = [{}, {"causal": True}, {"valid_lens": [3, 5]}, {"mask": torch.ones(5, 5, dtype=torch.bool)}]
    X = torch.ones(2, 5, D)
    for plan in (columns | {"W_o": RowwiseParallel()}, *({name: style} for name, style in columns.items())):
        words = f"{next(iter(plan))} gave 6 features, expected 12 for 2 heads: a plan that splits kernels"
        for pooling in ("dot", "additive"):
            layer = mha.MultiHeadAttention(D, 2, pooling=pooling, backend="torch").layer
            call = functools.partial(parallelize_module(layer, group.mesh, plan), X, X, X)
            for options, return_weights in itertools.product(hiding, (False, True)):
                again = functools.partial(call, **options, return_weights=return_weights)
                refused(again, words, "mha.parallel.parallelize")


def check_model_by_plan(group):
    attention = random_layer(np.random.default_rng(8), SIZES, "float64")
    model = torch.nn.ModuleDict({"body": torch.nn.ModuleList([torch_layer(attention).layer, torch.nn.Linear(2, 2)])})
    plan = parallel.plan(model)
    assert list(plan) == ["body.0"]
    assert list(parallel.plan(model["body"][0])) == [""]
    parallelize_module(model, group.mesh, plan)
    assert isinstance(model["body"][0].W_q.weight, DTensor)
    X = np.random.default_rng(9).normal(size=(B, K, D))
    assert agrees(model["body"][0](*[torch.tensor(X)] * 3), attention(X, X, X))
    refused(lambda: parallel.plan(torch.nn.Linear(2, 2)), "Linear")

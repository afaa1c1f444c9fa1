"""Work out the configuration of a layer from its canonical weights, and check that their sizes fit together."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.core.options.config import GATES, Config
from mha.core.options.norms import norm
from mha.weights import argument_names

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
NORMED = ("q_norm.scale", "k_norm.scale")
# Options of files that the configuration of a layer need not have
FOLDED = "fold_one"  # True if a norm with weight w multiplies by 1 + w
BARE = "bare_norms"  # True if norms of queries and keys have no weights
TIED = "values_are_keys"  # True if W_v has no arrays, and is W_k


def config_of_sizes(
    canonical: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    num_heads: int,
    grouped: bool,
    options: dict[str, Any],
) -> Config:
    """Return the configuration that canonical weights show; their sizes and those among the options must fit together.

    canonical: the weights, of which only shapes and dtypes are used; names: of the arrays that hold them, for errors;
    grouped: True if several heads of queries may share one head of keys and values.
    """
    sizes = {name: canonical[f"{name}.kernel"].shape for name in PROJECTIONS}
    called = {name: names[f"{name}.kernel"] for name in PROJECTIONS}
    for name, (_, outputs) in sizes.items():
        bias = canonical.get(f"{name}.bias")
        if bias is not None and len(bias) != outputs:
            raise ValueError(
                f"{names[f'{name}.bias']} has {len(bias)} numbers for {name}, expected {outputs}, the outputs of "
                f"{called[name]}; is that transposed?"
            )
    (query_size, queries), (key_size, keys) = sizes["W_q"], sizes["W_k"]
    (value_size, values), (merged, num_hiddens) = sizes["W_v"], sizes["W_o"]
    heads = argument_names.name("num_heads")
    groups, left = divmod(keys * num_heads, queries)
    fewer = 0 < groups < num_heads and not left
    if keys != queries and not (grouped and fewer):
        raise ValueError(
            f"{called['W_k']} has {keys} outputs, expected {queries} as {called['W_q']}"
            + (f": {groups} heads of keys for {num_heads} heads of queries are not supported" if fewer else "")
        )
    for name, count, what in (("W_q", num_heads, heads), ("W_v", groups, "the heads of keys")):
        what = heads if count == num_heads else what
        if sizes[name][1] % count:
            raise ValueError(f"{called[name]} has {sizes[name][1]} outputs, expected a multiple of {what} = {count}")
    key_dim, value_dim = queries // num_heads, values // groups
    if merged != value_dim * num_heads:
        outputs = f"the outputs of {called['W_v']}"
        shared = outputs if groups == num_heads else f"{num_heads} / {groups} times {outputs}"
        raise ValueError(f"{called['W_o']} has {merged} inputs, expected {value_dim * num_heads}, {shared}")
    _check_gate(canonical, names, num_heads, options)
    derived = {"key_dim": key_dim, "num_key_value_heads": groups}
    for name, found in derived.items():
        if (expected := options.pop(name, found)) != found:
            raise ValueError(
                f"{called['W_q']} and {called['W_k']} have {queries} and {keys} outputs, which make {name} = {found} "
                f"with {num_heads} heads, expected {expected}"
            )
    if not options.pop(BARE, False):
        _check_norms(canonical, names, {"q_norm.scale": num_heads, "k_norm.scale": groups}, key_dim, options)
    return Config(
        num_hiddens, num_heads, bias=any(name.endswith("bias") for name in canonical),
        query_size=query_size, key_size=key_size, value_size=value_size, value_dim=value_dim, **derived,
        dtype=checks.dtype_name(canonical["W_q.kernel"].dtype), **options,
    )  # fmt: skip


def _check_gate(
    canonical: Mapping[str, np.ndarray], names: Mapping[str, str], num_heads: int, options: dict[str, Any]
) -> None:
    """Check that an output gate is there if the options ask for it, that its sizes fit, and set its kind."""
    given, kernel = options.get("output_gate"), canonical.get("W_g.kernel")
    if kernel is None:
        if given is not None:
            raise ValueError(
                f"{argument_names.name('output_gate')} is {given!r}, but the layer has no weights of a gate"
            )
        return
    inputs, merged = len(canonical["W_q.kernel"]), len(canonical["W_o.kernel"])
    shapes = {"element": (inputs, merged), "head": (inputs, num_heads)}
    if given is not None:
        shapes = {given: shapes[checks.choice(argument_names.name("output_gate"), given, GATES)]}
    found = [kind for kind, shape in shapes.items() if kernel.shape == shape]
    if not found:
        wanted = " or ".join(f"{shape} of output_gate={kind!r}" for kind, shape in shapes.items())
        raise ValueError(f"{names['W_g.kernel']} is a kernel of (in, out) = {kernel.shape}, expected {wanted}")
    options["output_gate"] = found[0]


def _check_norms(
    canonical: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    heads: Mapping[str, int],
    width: int,
    options: Mapping[str, Any],
) -> None:
    """Check that weights of norms of queries and keys are there if, and only if, the options ask for them."""
    kind = norm(argument_names.name("qk_norm"), options.get("qk_norm"))
    for weight in NORMED:
        if weight not in canonical:
            if kind is not None:
                raise ValueError(
                    f"{argument_names.name('qk_norm')} is {options['qk_norm']!r}, but the layer has no weights of "
                    "norms of queries and keys"
                )
        elif kind is None:
            raise argument_names.LackingError(
                "qk_norm",
                'an mha.Norm, "rms" or "layer"',
                f"{names[weight]} is the weight of a norm, and its name does not show which; pass "
                f"{argument_names.setting(qk_norm=argument_names.Code('...'))} as the model computes it",
            )
        elif (size := len(canonical[weight])) != kind.size(heads[weight], width):
            each = f"the width of a head, or {heads[weight] * width} of a norm with over='all'"
            every = f"the width of all {heads[weight]} heads, or {width} of a norm with over='head'"
            raise ValueError(
                f"{names[weight]} has {size} numbers, expected {kind.size(heads[weight], width)}, "
                f"{every if kind.over == 'all' else each}"
            )

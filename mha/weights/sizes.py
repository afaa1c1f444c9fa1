"""The configuration of a layer by its canonical weights, whose sizes must go together."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha import checks
from mha.config import Config

PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
NORMED = ("q_norm.scale", "k_norm.scale")


def configured(
    canonical: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    num_heads: int,
    grouped: bool,
    options: dict[str, Any],
) -> Config:
    """The configuration that canonical weights show, which must go together.

    Args:
        canonical: the weights, of which shapes and dtypes alone are looked at; biases may lack.
        names: what the arrays are called that hold them.
        num_heads: number of heads.
        grouped: whether several of them may share one of keys and values.
        options: of the configuration besides; sizes among them must be those of the weights.

    Raises TypeError or ValueError if they do not go together.
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
    groups, left = divmod(keys * num_heads, queries)
    fewer = 0 < groups < num_heads and not left
    if keys != queries and not (grouped and fewer):
        raise ValueError(
            f"{called['W_k']} has {keys} outputs, expected {queries} as {called['W_q']}"
            + (f": {groups} heads of keys for {num_heads} heads of queries are not supported" if fewer else "")
        )
    for name, count, what in (("W_q", num_heads, "num_heads"), ("W_v", groups, "the heads of keys")):
        what = "num_heads" if count == num_heads else what
        if sizes[name][1] % count:
            raise ValueError(f"{called[name]} has {sizes[name][1]} outputs, expected a multiple of {what} = {count}")
    key_dim, value_dim = queries // num_heads, values // groups
    if merged != value_dim * num_heads:
        outputs = f"the outputs of {called['W_v']}"
        shared = outputs if groups == num_heads else f"{num_heads} / {groups} times {outputs}"
        raise ValueError(f"{called['W_o']} has {merged} inputs, expected {value_dim * num_heads}, {shared}")
    told = {"key_dim": key_dim, "num_key_value_heads": groups}
    for name, found in told.items():
        if (expected := options.pop(name, found)) != found:
            raise ValueError(
                f"{called['W_q']} and {called['W_k']} have {queries} and {keys} outputs, which make {name} = {found} "
                f"with {num_heads} heads, expected {expected}"
            )
    _check_norms(canonical, names, key_dim, options)
    return Config(
        num_hiddens, num_heads, bias=any(name.endswith("bias") for name in canonical),
        query_size=query_size, key_size=key_size, value_size=value_size, value_dim=value_dim, **told,
        dtype=checks.dtype_name(canonical["W_q.kernel"].dtype), **options,
    )  # fmt: skip


def _check_norms(
    canonical: Mapping[str, np.ndarray], names: Mapping[str, str], width: int, options: Mapping[str, Any]
) -> None:
    """The weights of norms of queries and keys, which are there or not, as the options say."""
    kind = options.get("qk_norm")
    for weight in NORMED:
        if weight not in canonical:
            if kind is not None:
                raise ValueError(f"qk_norm is {kind!r}, but the layer has no weights of norms of queries and keys")
        elif kind is None:
            raise TypeError(
                f'qk_norm is None, expected "rms" or "layer": {names[weight]} is the weight of a norm, and its name '
                "does not show which; pass qk_norm=... as the model computes it"
            )
        elif len(canonical[weight]) != width:
            raise ValueError(
                f"{names[weight]} has {len(canonical[weight])} numbers, expected {width}, the width of a head"
            )

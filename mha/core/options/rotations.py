"""Rotations of models that read longer texts than they were first trained on, from the names in their `config.json`.

Letters: n pairs of components that turn, 2n = dim. Frequency i is rope_theta ** (-2i / dim) before the change.
"""

import dataclasses
import math
from collections.abc import Sequence

from mha.core.options import checks
from mha.core.options.positions import Rotary


def linear(dim: int, *, rope_theta: float, factor: float, interleaved: bool = False) -> Rotary:
    """The rotation of type "linear": every pair turns `factor` times more slowly.

    Args:
        dim: number of components that turn, an even number.
        rope_theta, factor: positive numbers of the model's `config.json`.
        interleaved: as of `mha.Rotary`.

    Raises TypeError or ValueError if an argument is not as above.

    Source: Chen et al., Extending Context Window of Large Language Models via Positional Interpolation (2023).
    """
    plain, factor = _plain_rotation(dim, rope_theta, interleaved), checks.positive("factor", factor)
    return dataclasses.replace(plain, frequencies=tuple(angle / factor for angle in plain.angles()))


def proportional(
    dim: int, *, rope_theta: float, partial_rotary_factor: float = 1.0, factor: float = 1.0, interleaved: bool = False
) -> Rotary:
    """The rotation of type "proportional": all components are paired, and the last pairs do not turn.

    Args:
        dim: width of a head, an even number.
        rope_theta, factor: positive numbers of the model's `config.json`; every pair turns `factor` times more slowly.
        partial_rotary_factor: the share of the pairs that turn, above 0 and at most 1.
        interleaved: as of `mha.Rotary`.

    Raises TypeError or ValueError if an argument is not as above.

    Source: the rotation of Gemma 4 in transformers 5.23.
    """
    slower = linear(dim, rope_theta=rope_theta, factor=factor, interleaved=interleaved)
    share = checks.positive("partial_rotary_factor", partial_rotary_factor)
    if share > 1:
        raise ValueError(f"partial_rotary_factor is {share}, expected at most 1: the share of the pairs that turn")
    turning = int(share * dim // 2)
    angles = slower.angles()
    return dataclasses.replace(slower, frequencies=(*angles[:turning], *[0.0] * (len(angles) - turning)))


def dynamic(
    dim: int,
    *,
    rope_theta: float,
    factor: float = 1.0,
    max_position_embeddings: int | None = None,
    length: int | None = None,
    alpha: float | None = None,
    interleaved: bool = False,
) -> Rotary:
    """The rotation of type "dynamic": the base grows with the length of the text, or by `alpha` at any length.

    Args:
        dim: number of components that turn, an even number above 2.
        rope_theta, factor, max_position_embeddings: positive numbers of the model's `config.json`.
        length: the number of tokens of the text, None = at most max_position_embeddings, so that nothing changes.
        alpha: the base is rope_theta * alpha ** (dim / (dim - 2)), whatever the length, as in Hunyuan's models; then
            the other two are not looked at.
        interleaved: as of `mha.Rotary`.

    Raises TypeError or ValueError if an argument is not as above.

    Source: the rotations of transformers 5.23, of type "dynamic" and of Hunyuan's models.
    """
    plain = _plain_rotation(dim, rope_theta, interleaved)
    if dim < 4:
        raise ValueError(f"dim is {dim}, expected 4 or more: the base grows with a power of dim / (dim - 2)")
    if alpha is not None:
        growth = checks.positive("alpha", alpha)
    else:
        factor = checks.positive("factor", factor)
        most = checks.size("max_position_embeddings", max_position_embeddings)
        longest = most if length is None else max(most, checks.size("length", length))
        growth = factor * longest / most - (factor - 1)
    return dataclasses.replace(plain, base=plain.base * growth ** (dim / (dim - 2)))


def yarn(
    dim: int,
    *,
    rope_theta: float,
    factor: float,
    original_max_position_embeddings: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool = True,
    interleaved: bool = False,
) -> Rotary:
    """The rotation of type "yarn": slow pairs turn `factor` times more slowly, fast ones as before; with a magnitude.

    Args:
        dim: number of components that turn, an even number.
        rope_theta, factor: positive numbers of the model's `config.json`.
        original_max_position_embeddings: the number of positions of the first training.
        beta_fast, beta_slow: pairs that turn more often than beta_fast within these positions do not change; those
            that turn less often than beta_slow are slowed down by all of the factor; between them it is gradual.
        attention_factor: the magnitude; None = 0.1 * ln(factor) + 1, or 1 for a factor of at most 1.
        mscale, mscale_all_dim: where both are given and not 0, None is the share of two such numbers, whose logarithms
            are multiplied by mscale, and by mscale_all_dim.
        truncate: whether the gradual part begins and ends at whole numbers of pairs.
        interleaved: as of `mha.Rotary`.

    Raises TypeError or ValueError if an argument is not as above.

    Source: Peng et al., YaRN: Efficient Context Window Extension of Large Language Models (2023), sections 3.2 to 3.4;
    the names, and what stands for an absent one, are those of transformers 5.23.
    """
    plain, factor = _plain_rotation(dim, rope_theta, interleaved), checks.positive("factor", factor)
    length = checks.size("original_max_position_embeddings", original_max_position_embeddings)
    fast, slow = checks.positive("beta_fast", beta_fast), checks.positive("beta_slow", beta_slow)
    if fast < slow:
        raise ValueError(f"beta_fast is {fast}, expected at least beta_slow = {slow}: fast pairs turn more often")
    if plain.base <= 1:
        raise ValueError(f"rope_theta is {plain.base}, expected more than 1: pairs turn more and more slowly")
    first, last = (
        dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(plain.base)) for turns in (fast, slow)
    )
    if checks.flag("truncate", truncate):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001
    scaled = []
    for i, angle in enumerate(plain.angles()):
        slowed = min(1.0, max(0.0, (i - first) / (last - first)))  # 0 = as before
        scaled.append(angle * (1 - slowed) + angle / factor * slowed)
    if attention_factor is None:
        given = {"mscale": mscale, "mscale_all_dim": mscale_all_dim}
        own, of_all = (checks.positive(name, X) if X else 0.0 for name, X in given.items())
        attention_factor = _growth(factor, own) / _growth(factor, of_all) if own and of_all else _growth(factor, 1.0)
    magnitude = checks.positive("attention_factor", attention_factor)
    return dataclasses.replace(plain, frequencies=tuple(scaled), magnitude=magnitude)


def longrope(
    dim: int,
    *,
    rope_theta: float,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_max_position_embeddings: int,
    max_position_embeddings: int,
    length: int | None = None,
    attention_factor: float | None = None,
    interleaved: bool = False,
) -> Rotary:
    """The rotation of type "longrope": each pair is slowed down by a factor of its own, another one in long texts.

    Args:
        dim: number of components that turn, an even number 2n.
        rope_theta: a positive number of the model's `config.json`.
        short_factor, long_factor: n positive numbers each.
        original_max_position_embeddings, max_position_embeddings: the number of positions of the first training, and
            that of the model.
        length: the number of tokens of the text, for which long_factor counts if it is more than
            original_max_position_embeddings; None = it is not.
        attention_factor: the magnitude; None = sqrt(1 + ln(s) / ln(original_max_position_embeddings)), where s is
            max_position_embeddings / original_max_position_embeddings, and 1 where s is at most 1.
        interleaved: as of `mha.Rotary`.

    Raises TypeError or ValueError if an argument is not as above.

    Source: Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens (2024), and the rotation of
    Phi-3 in transformers 5.23.
    """
    plain = _plain_rotation(dim, rope_theta, interleaved)
    original = checks.size("original_max_position_embeddings", original_max_position_embeddings)
    most = checks.size("max_position_embeddings", max_position_embeddings)
    is_long = length is not None and checks.size("length", length) > original
    given = {"short_factor": short_factor, "long_factor": long_factor}
    for name, factors in given.items():
        if not isinstance(factors, (list, tuple)) or len(factors) != dim // 2:
            raise ValueError(f"{name} is {checks.brief(factors)}, expected {dim // 2} numbers: one for each pair")
        given[name] = [checks.positive(name, X) for X in factors]
    factors = given["long_factor" if is_long else "short_factor"]
    if attention_factor is None:
        share = most / original
        attention_factor = 1.0 if share <= 1 else math.sqrt(1 + math.log(share) / math.log(original))
    magnitude = checks.positive("attention_factor", attention_factor)
    angles = (angle / factor for angle, factor in zip(plain.angles(), factors, strict=True))
    return dataclasses.replace(plain, frequencies=tuple(angles), magnitude=magnitude)


def llama3_frequencies(
    dim: int,
    base: float = 500000.0,
    factor: float = 8.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original_length: int = 8192,
) -> tuple[float, ...]:
    """Frequencies of LLaMA 3.1 and later, for `Rotary(frequencies=...)`: slow rotations are made slower.

    Pairs that turn fewer than low_freq_factor times within original_length positions are slowed down by `factor`.
    Pairs that turn more than high_freq_factor times do not change. Between the two, the change is gradual;
    it is a step where they are equal.

    Args:
        dim: number of components that turn, an even number.
        base: frequency i is base ** (-2i / dim) before the change.
        factor, low_freq_factor, high_freq_factor, original_length: numbers in `rope_scaling` of a model's
            `config.json`, where the last one is called `original_max_position_embeddings`.

    Returns:
        dim / 2 frequencies in radians.

    Raises TypeError or ValueError if an argument is no positive number.

    Source: Grattafiori et al., The Llama 3 Herd of Models (2024), and the code that Meta published with LLaMA 3.1.
    """
    plain = Rotary(dim, base).angles()
    factor = checks.positive("factor", factor)
    low = checks.positive("low_freq_factor", low_freq_factor)
    high = checks.positive("high_freq_factor", high_freq_factor)
    length = checks.size("original_length", original_length)
    if high < low:
        raise ValueError(f"high_freq_factor is {high}, expected at least low_freq_factor = {low}")
    scaled = []
    for frequency in plain:
        turns = length * frequency / (2 * math.pi)
        gradual = float(turns >= high) if high == low else (turns - low) / (high - low)
        kept = min(1.0, max(0.0, gradual))  # 0 = slowed down by all of the factor
        scaled.append(frequency * (kept + (1 - kept) / factor))
    return tuple(scaled)


def _plain_rotation(dim: int, rope_theta: float, interleaved: bool) -> Rotary:
    """Make the rotation before the change."""
    return Rotary(checks.size("dim", dim), checks.positive("rope_theta", rope_theta), interleaved)


def _growth(factor: float, scale: float) -> float:
    """Return how much larger components become where a text may be `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1
